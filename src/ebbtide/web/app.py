"""The web UI as an application: its routes, and errors as pages."""

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
from ebbtide.web.context import FOLDER, WebContext
from ebbtide.web.filters import format_time
from ebbtide.web.safety import Safety

_STATUS = {
    NotFoundError: 404,
    UsageError: 422,
    MissingExtraError: 501,
    BrokerError: 503,
    BusyError: 503,
}
_PAGES = (checkpoints, timeline, batches, metrics, rewind, undo, state, reprocess, progress)


class WebApp(Starlette):
    """The web UI; its guard wraps everything, even the page that reports a bug."""

    context: WebContext

    def build_middleware_stack(self) -> ASGIApp:
        """Add the guard to the middleware of Starlette."""
        return Safety(super().build_middleware_stack(), self.context)


def make_app(context: WebContext) -> Starlette:
    """Create the web UI, ready to be served."""

    async def audit(request: Request) -> Response:
        lines = await run_in_threadpool(context.audit.read)
        names = ("at", "by", "action", "target", "outcome")
        rows = [[line.get(name, "") for name in names] for line in lines]
        rows = [[format_time(at), *rest] for at, *rest in rows]
        return context.render(request, "audit.html", rows=rows, file=context.audit.file)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, EbbtideError)
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
        again = isinstance(error, BusyError) and request.method == "GET"
        answer = _show(context, request, error.problem, error.next_step, status, again=again)
        if again:  # htmx reloads a part of a page, the browser a whole page
            answer.headers["Refresh"] = "2"
        return answer

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problem = "There is no such page." if error.status_code == 404 else f"{error.detail}."
        return _show(context, request, problem, "", error.status_code)

    async def broken(request: Request, error: Exception) -> Response:
        problem = f"Ebbtide itself failed ({type(error).__name__})."
        return _show(context, request, problem, "The terminal shows why. Please report it.", 500)

    app = WebApp(
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
    context: WebContext,
    request: Request,
    problem: str,
    next_step: str,
    status: int,
    *,
    again: bool = False,
) -> Response:
    """Show an error as a page, and log it if the request was to change something."""
    if request.method == "POST":
        with suppress(EbbtideError):  # the log itself may be the problem
            context.audit.write(request.method, request.url.path, f"refused: {problem}")
    values = {"problem": problem, "next_step": next_step, "code": status, "again": again}
    return context.render(request, "error.html", status, **values)
