"""Show how far a task is, what came of it, and the points of its plot."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ebbtide.errors import NotFoundError
from ebbtide.web.context import WebContext, is_fragment
from ebbtide.web.tasks import KEPT, Task


def routes(context: WebContext) -> list[Route]:
    """A task, what a plot needs of it, and how to stop it."""

    async def show(request: Request) -> Response:
        task = _find(context, request)
        if request.query_params.get("seen") == str(task.steps):
            return Response(status_code=204)  # nothing new: htmx leaves the page as it is
        return render_task(context, request, task)

    async def points(request: Request) -> Response:
        task = _find(context, request)
        progress = {"state": task.state, "done": task.done, "total": task.total}
        return JSONResponse({**progress, "points": getattr(task.result, "points", None)})

    async def cancel(request: Request) -> Response:
        task = _find(context, request)
        context.tasks.cancel(task.id)
        return answer_started(context, request, task)

    return [
        Route("/tasks/{id}.json", points),
        Route("/tasks/{id}", show),
        Route("/tasks/{id}/cancel", cancel, methods=["POST"]),
    ]


def answer_started(context: WebContext, request: Request, task: Task) -> Response:
    """Show the task that a form has begun: to htmx in place, else as a page of its own."""
    if is_fragment(request):
        return render_task(context, request, task)
    return RedirectResponse(f"/tasks/{task.id}", 303)


def render_task(context: WebContext, request: Request, task: Task) -> Response:
    """The page of a task."""
    return context.render(request, "task.html", task=task)


def _find(context: WebContext, request: Request) -> Task:
    task = context.tasks.find(request.path_params["id"])
    if task is None:
        raise NotFoundError(
            f"There is no such task: the web UI remembers the last {KEPT} since it was started.",
            "What was done to a checkpoint stands in the audit log.",
        )
    return task
