"""The web UI as an application: its routes, and errors as pages."""

from __future__ import annotations

from contextlib import suppress

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ebbtide import errors
from ebbtide.errors import BusyError, EbbtideError
from ebbtide.web import batches, checkpoints, metrics, progress, reprocess, rewind, state
from ebbtide.web.audit import merge_changes
from ebbtide.web.context import FOLDER, WebContext
from ebbtide.web.safety import Safety

_STATUS = {
    errors.NotFoundError: 404,
    errors.UsageError: 422,
    errors.MissingExtraError: 501,
    errors.BrokerError: 503,
    errors.BusyError: 503,
}
_PAGES = (checkpoints, batches, metrics, rewind, state, reprocess, progress)


def make_app(context: WebContext) -> Safety:
    """Create the web UI, ready to be served; its guard wraps everything, even error pages."""

    def audit(request: Request) -> Response:
        lines = merge_changes(context.audit.read(), context.snapshots.changes())
        known = {one.location: one for one in context.snapshots.entries()}
        file = context.audit.file
        return context.render(request, "audit.html", lines=lines, known=known, file=file)

    async def show_error(request: Request, error: Exception) -> Response:
        code = 500
        if isinstance(error, EbbtideError):
            code = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
        elif isinstance(error, HTTPException):
            code = error.status_code
            error = EbbtideError("There is no such page." if code == 404 else f"{error.detail}.")
        else:
            problem = f"Ebbtide itself failed ({type(error).__name__})."
            error = EbbtideError(problem, "The terminal shows why. Please report it.")
        if request.method == "POST":
            with suppress(EbbtideError):  # the log itself may be the problem
                context.audit.write(request.method, request.url.path, f"refused: {error.problem}")
        again = isinstance(error, BusyError) and request.method == "GET"
        answer = context.render(request, "error.html", code, error=error, code=code, again=again)
        if again:  # htmx reloads a part of a page, the browser a whole page
            answer.headers["Refresh"] = "2"
        return answer

    app = Starlette(
        routes=[
            *(route for page in _PAGES for route in page.routes(context)),
            Route("/audit", audit),
            Mount("/static", StaticFiles(directory=FOLDER / "static"), name="static"),
        ],
        exception_handlers=dict.fromkeys((EbbtideError, HTTPException, Exception), show_error),
    )
    return Safety(app, context)
