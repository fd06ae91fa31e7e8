"""A context in, the page as an application out: the table of routes, and errors as pages."""

from __future__ import annotations

from contextlib import suppress

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from ebbtide.errors import (
    BrokerError,
    BusyError,
    EbbtideError,
    MissingExtraError,
    NotFoundError,
    UsageError,
)
from ebbtide.web import (
    batches,
    checkpoints,
    metrics,
    progress,
    reprocess,
    rewind,
    state,
    timeline,
    undo,
)
from ebbtide.web.context import FOLDER, Context
from ebbtide.web.filters import say_moment
from ebbtide.web.safety import Safety

_STATUS = {
    NotFoundError: 404,
    UsageError: 422,
    MissingExtraError: 501,
    BrokerError: 503,
    BusyError: 503,
}
_PAGES = (checkpoints, timeline, batches, metrics, rewind, undo, state, reprocess, progress)


class Page(Starlette):
    """The page; what guards it lies outside of everything, the page for a bug included."""

    context: Context

    def build_middleware_stack(self) -> ASGIApp:
        """As Starlette does, and the guard around it."""
        return Safety(super().build_middleware_stack(), self.context)


def make_app(context: Context) -> Starlette:
    """The page, ready to be served."""

    async def audit(request: Request) -> Response:
        lines = await run_in_threadpool(context.audit.read)
        names = ("at", "by", "action", "target", "outcome")
        rows = [[line.get(name, "") for name in names] for line in lines]
        rows = [[say_moment(at), *rest] for at, *rest in rows]
        return context.render(request, "audit.html", rows=rows, file=context.audit.file)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, EbbtideError)
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
        again = isinstance(error, BusyError) and request.method == "GET"
        answer = _show(context, request, error.problem, error.next_step, status, again=again)
        if again:  # a part of a page asks for itself, a whole one the browser
            answer.headers["Refresh"] = "2"
        return answer

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problem = "There is no such page." if error.status_code == 404 else f"{error.detail}."
        return _show(context, request, problem, "", error.status_code)

    async def broken(request: Request, error: Exception) -> Response:
        problem = f"Something is wrong with Ebbtide itself ({type(error).__name__})."
        return _show(context, request, problem, "The terminal shows more. Please report it.", 500)

    app = Page(
        routes=[
            *(route for page in _PAGES for route in page.routes(context)),
            Route("/audit", audit),
            Mount("/static", StaticFiles(directory=FOLDER / "static"), name="static"),
        ],
        exception_handlers={EbbtideError: refused, HTTPException: wrong, Exception: broken},
    )
    app.context = context
    return app


def _show(
    context: Context,
    request: Request,
    problem: str,
    next_step: str,
    status: int,
    *,
    again: bool = False,
) -> Response:
    """An error as a page; what a request to change something was told is in the log."""
    if request.method == "POST":
        with suppress(EbbtideError):  # that very log may be the problem
            context.audit.write(request.method, request.url.path, f"refused: {problem}")
    values = {"problem": problem, "next_step": next_step, "code": status, "again": again}
    return context.render(request, "error.html", status, **values)
