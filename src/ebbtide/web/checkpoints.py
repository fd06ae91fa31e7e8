"""The list of the known checkpoints in, what it says of each out."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ebbtide.errors import BusyError, EbbtideError
from ebbtide.report.overview import CheckpointSummary, summarize_checkpoint
from ebbtide.web.context import Context, is_fragment
from ebbtide.web.snapshots import Snapshot


def routes(context: Context) -> list[Route]:
    """The list, one checkpoint's facts, and opening another one."""

    async def show(request: Request) -> Response:
        known = await run_in_threadpool(context.catalogue.entries)
        return context.render(request, "checkpoints.html", checkpoints=known)

    async def facts(request: Request) -> Response:
        key = request.path_params["key"]
        known = await run_in_threadpool(context.catalogue.find, key)
        snapshot: Snapshot | None = None
        found: CheckpointSummary | None = None
        problem = next_step = ""
        row, busy = "row" in request.query_params, False
        try:
            snapshot, found = await run_in_threadpool(_facts, context, key)
        except EbbtideError as error:  # one that cannot be read is a line like the others
            problem, next_step, busy = error.problem, error.next_step, isinstance(error, BusyError)
            if busy and not row:
                raise
        return context.render(
            request,
            "facts.html",
            known=known,
            snapshot=snapshot,
            facts=found,
            problem=problem,
            next_step=next_step,
            row=row,
            busy=busy,
        )

    async def add(request: Request) -> Response:
        form = await request.form()
        location = str(form.get("location", ""))
        known = await run_in_threadpool(context.catalogue.open, location)
        context.audit.write("open", known.location, "added to the list")
        place = f"/checkpoints/{known.key}"
        if is_fragment(request):
            return Response(headers={"HX-Redirect": place})
        return RedirectResponse(place, 303)

    return [
        Route("/", show),
        Route("/checkpoints", add, methods=["POST"]),
        Route("/checkpoints/{key}/facts", facts),
    ]


def _facts(context: Context, key: str) -> tuple[Snapshot, CheckpointSummary]:
    found = context.catalogue.snapshot(key)
    facts = summarize_checkpoint(
        found.checkpoint, found.entries, found.windows, running=found.running
    )
    return found, facts
