"""Show the progress of tasks, their results, and the points of their plots."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ebbtide.errors import NotFoundError
from ebbtide.web.context import WebContext
from ebbtide.web.pages import show_started
from ebbtide.web.tasks import KEPT, Task


def routes(context: WebContext) -> list[Route]:
    """A task, what a plot needs of it, and how to stop it."""

    def find(request: Request) -> Task:
        task = context.tasks.find(request.path_params["id"])
        if task is None:
            raise NotFoundError(
                f"There is no such task: the web UI remembers the last {KEPT} since its start.",
                "The audit log lists what was done to a checkpoint.",
            )
        return task

    async def show(request: Request) -> Response:
        task = find(request)
        if request.query_params.get("seen") == str(task.steps):
            return Response(status_code=204)  # nothing new: htmx swaps nothing
        return context.render(request, "task.html", task=task)

    async def points(request: Request) -> Response:
        task = find(request)
        progress = {"state": task.state, "done": task.done, "total": task.total}
        return JSONResponse({**progress, "points": getattr(task.result, "points", None)})

    async def cancel(request: Request) -> Response:
        task = find(request)
        return show_started(context, request, context.tasks.cancel(task.id) or task)

    return [
        Route("/tasks/{id}.json", points),
        Route("/tasks/{id}", show),
        Route("/tasks/{id}/cancel", cancel, methods=["POST"]),
    ]
