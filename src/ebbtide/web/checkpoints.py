"""The list of known checkpoints, and a summary of each."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ebbtide.errors import BusyError, EbbtideError
from ebbtide.report import overview
from ebbtide.web.context import WebContext, is_fragment
from ebbtide.web.snapshots import Snapshot


def routes(context: WebContext) -> list[Route]:
    """The list, the summary of one checkpoint, and opening another one."""

    async def show(request: Request) -> Response:
        known = await run_in_threadpool(context.snapshots.entries)
        return context.render(request, "checkpoints.html", checkpoints=known)

    async def facts(request: Request) -> Response:
        key = request.path_params["key"]
        known = await run_in_threadpool(context.snapshots.find, key)
        snapshot: Snapshot | None = None
        found: overview.CheckpointSummary | None = None
        problem = next_step = ""
        row, busy = "row" in request.query_params, False
        try:
            snapshot, found = await run_in_threadpool(_facts, context, key)
        except EbbtideError as error:  # a checkpoint that cannot be read stays in the list
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
        known = await run_in_threadpool(context.snapshots.open, location)
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


def _facts(context: WebContext, key: str) -> tuple[Snapshot, overview.CheckpointSummary]:
    found = context.snapshots.read(key)
    facts = overview.summarize_checkpoint(
        found.checkpoint, found.entries, found.windows, running=found.running
    )
    return found, facts
