"""Start tasks from the web UI, and show their progress, result and plot."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ebbtide.errors import NotFoundError
from ebbtide.web.context import WebContext, is_fragment
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.tasks import KEPT, Command, Task, Work


def routes(context: WebContext) -> list[Route]:
    """A task, what a plot needs of it, and how to stop it."""

    async def show(request: Request) -> Response:
        task = _find(context, request)
        if request.query_params.get("seen") == str(task.steps):
            return Response(status_code=204)  # nothing new: htmx swaps nothing
        return context.render(request, "task.html", task=task)

    async def points(request: Request) -> Response:
        task = _find(context, request)
        progress = {"state": task.state, "done": task.done, "total": task.total}
        return JSONResponse({**progress, "points": getattr(task.result, "points", None)})

    async def cancel(request: Request) -> Response:
        task = _find(context, request)
        context.tasks.cancel(task.id)
        return _show_started(context, request, task)

    return [
        Route("/tasks/{id}.json", points),
        Route("/tasks/{id}", show),
        Route("/tasks/{id}/cancel", cancel, methods=["POST"]),
    ]


def start_task(
    context: WebContext,
    request: Request,
    snapshot: Snapshot,
    kind: str,
    title: str,
    work: Work | Command,
    query: str = "",
) -> Response:
    """Start work on a checkpoint and show it; `query` fills in its form again."""
    again = f"/checkpoints/{snapshot.key}/{kind}?{query}"
    key, target = snapshot.key, snapshot.location
    task = context.tasks.start(kind, title, key, work, target=target, again=again)
    return _show_started(context, request, task)


def _show_started(context: WebContext, request: Request, task: Task) -> Response:
    if is_fragment(request):
        return context.render(request, "task.html", task=task)
    return RedirectResponse(f"/tasks/{task.id}", 303)


def _find(context: WebContext, request: Request) -> Task:
    task = context.tasks.find(request.path_params["id"])
    if task is None:
        raise NotFoundError(
            f"There is no such task: the web UI remembers the last {KEPT} since it was started.",
            "The audit log lists what was done to a checkpoint.",
        )
    return task
