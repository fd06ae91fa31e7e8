"""The list of known checkpoints, and a summary of each."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ebbtide.errors import BusyError, EbbtideError
from ebbtide.report import overview
from ebbtide.web.context import WebContext, is_fragment


def routes(context: WebContext) -> list[Route]:
    """The list, the summary of one checkpoint, and opening another one."""

    def show(request: Request) -> Response:
        return context.render(request, "checkpoints.html", checkpoints=context.snapshots.entries())

    def facts(request: Request) -> Response:
        known = context.snapshots.find(request.path_params["key"])
        row = "row" in request.query_params
        values: dict[str, Any] = {"snapshot": None, "facts": None, "error": None, "busy": False}
        try:
            values["snapshot"] = one = context.snapshots.read(known.key)
            values["facts"] = overview.summarize_checkpoint(
                one.checkpoint, one.entries, one.windows, running=one.running
            )
        except EbbtideError as error:  # a checkpoint that cannot be read stays in the list
            values |= {"error": error, "busy": isinstance(error, BusyError)}
            if values["busy"] and not row:
                raise
        return context.render(request, "facts.html", known=known, row=row, **values)

    async def add(request: Request) -> Response:
        location = str((await request.form()).get("location", ""))
        known = await run_in_threadpool(context.snapshots.open, location)
        context.audit.write("open", known.location, "added to the list")
        path = f"/checkpoints/{known.key}"
        if is_fragment(request):
            return Response(headers={"HX-Redirect": path})
        return RedirectResponse(path, 303)

    return [
        Route("/", show),
        Route("/checkpoints", add, methods=["POST"]),
        Route("/checkpoints/{key}/facts", facts),
    ]
