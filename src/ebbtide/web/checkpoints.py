"""The list of known checkpoints, and the page of each: its summary and its timeline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ebbtide.errors import BusyError, CheckpointError, EbbtideError, UnreachableError
from ebbtide.history import metrics
from ebbtide.report import overview
from ebbtide.retention import Window
from ebbtide.times import EPOCH
from ebbtide.web.context import WebContext, is_fragment
from ebbtide.web.pages import CheckpointPage, checkpoint_route
from ebbtide.web.per_snapshot import PerSnapshot
from ebbtide.web.snapshots import Snapshot

_MILLISECOND = timedelta(milliseconds=1)
_SLOW_SECONDS = 15.0
"""A store that has not answered for so long counts as unreachable."""
_LOOKS = {overview.RUNNING: "live", overview.MAY_RUN: "live", overview.INTERRUPTED: "warn"}
STATUSES = (
    *("broken", "unreachable", overview.INTERRUPTED),
    *(overview.RUNNING, overview.MAY_RUN, overview.STOPPED, "being read"),
)
"""The worst first, as they are sorted."""
_MARKED = ("rewind", "undo", "fork")
_COLUMNS = (
    *("id", "at", "rows", "broken", "duration", "watermark", "earliest", "latest"),
    *("lag", "state_rows", "state_bytes", "committed", "replayable"),
)


def routes(context: WebContext) -> list[Route]:
    """The list, opening another checkpoint, and the page of one with its data."""
    encode = partial(json.dumps, separators=(",", ":"), allow_nan=False)
    timelines = PerSnapshot(lambda snapshot: encode(summarize_timeline(snapshot)))

    def show_list(request: Request) -> Response:
        known = context.snapshots.entries()
        return context.render(request, "checkpoints.html", checkpoints=known, statuses=STATUSES)

    def facts(request: Request) -> Response:
        known = context.snapshots.find(request.path_params["key"])
        row = "row" in request.query_params
        values: dict[str, Any] = {"snapshot": None, "facts": None, "error": None, "busy": False}
        try:
            values["snapshot"] = one = context.snapshots.read(known.key)
            values["facts"] = overview.summarize_checkpoint(
                one.checkpoint,
                one.entries,
                one.windows,
                running=one.running,
                is_idle=one.is_idle,
            )
        except EbbtideError as error:  # a checkpoint that cannot be read stays in the list
            values |= {"error": error, "busy": isinstance(error, BusyError)}
            if values["busy"] and not row:
                raise
        waited = context.snapshots.waited(known.key)
        values |= {
            "known": known,
            "title": context.snapshots.title_of(known),
            "condition": _status_of(values["facts"], values["error"], waited),
            "statuses": STATUSES,
        }
        return context.render(request, "facts.html", row=row, **values)

    async def add(request: Request) -> Response:
        location = str((await request.form()).get("location", ""))
        known = await run_in_threadpool(context.snapshots.open, location)
        context.audit.write("open", known.location, "added to the list")
        path = f"/checkpoints/{known.key}"
        if is_fragment(request):
            return Response(headers={"HX-Redirect": path})
        return RedirectResponse(path, 303)

    def show(request: Request) -> Response:
        known = context.snapshots.find(request.path_params["key"])
        title = context.snapshots.title_of(known)
        return context.render(request, "checkpoint.html", known=known, title=title)

    def forget(request: Request) -> Response:
        known = context.snapshots.forget(request.path_params["key"])
        context.audit.write("forget", known.location, "removed from the list")
        if not is_fragment(request):
            return RedirectResponse("/", 303)
        return context.render(request, "row.html", known=known, forgotten=True)

    def remember(request: Request) -> Response:
        known = context.snapshots.remember(request.path_params["key"])
        context.audit.write("open", known.location, "added to the list")
        return context.render(request, "row.html", known=known, forgotten=False)

    def timeline(page: CheckpointPage) -> Response:
        headers = {"ETag": f'"{page.snapshot.stamp}"'}
        if page.request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        text = timelines.get(page.snapshot)
        return Response(text, media_type="application/json", headers=headers)

    return [
        Route("/", show_list),
        Route("/checkpoints", add, methods=["POST"]),
        Route("/checkpoints/{key}", show),
        Route("/checkpoints/{key}/facts", facts),
        Route("/checkpoints/{key}/forget", forget, methods=["POST"]),
        Route("/checkpoints/{key}/remember", remember, methods=["POST"]),
        checkpoint_route(context, "/timeline.json", timeline),
    ]


def _status_of(
    facts: Mapping[str, Any] | None, error: EbbtideError | None, waited: float
) -> tuple[str, str]:
    """The status of a checkpoint in the list, and how it looks."""
    if facts is not None:
        return facts["status"], _LOOKS.get(facts["status"], "plain")
    if isinstance(error, BusyError) and waited < _SLOW_SECONDS:
        return "being read", "plain"
    reached = isinstance(error, CheckpointError) and not isinstance(error, UnreachableError)
    return "broken" if reached else "unreachable", "refuse"


def summarize_timeline(snapshot: Snapshot) -> dict[str, Any]:
    """The timeline as plain values; times are milliseconds since 1970."""
    checkpoint = snapshot.checkpoint
    stuck = checkpoint.interrupted is not None or checkpoint.logs.barriers
    rows = [_row(snapshot, id_) for id_ in snapshot.ids]
    columns = zip(*rows, strict=True) if rows else ((),) * len(_COLUMNS)
    return {
        "stamp": snapshot.stamp,
        "name": snapshot.name,
        "key": snapshot.key,
        "running": snapshot.running,
        "interrupted": overview.describe_health(checkpoint) if stuck else None,
        "batches": dict(zip(_COLUMNS, map(list, columns), strict=True)),
        "retained": [
            {"keeper": one.keeper, "from_batch": one.from_batch, "until": _ms(one.until)}
            for one in snapshot.windows.retained
        ],
        "marks": list(_marks(snapshot)),
    }


def _row(snapshot: Snapshot, id_: int) -> tuple[int | None, ...]:
    """One batch, in the order of the columns."""
    entry, batch = snapshot.entries.get(id_), snapshot.checkpoint.logs.by_id.get(id_)
    window = snapshot.windows.by_batch.get(id_, Window())
    restorable = batch is not None and snapshot.checkpoint.restorable[id_] is None
    flags = (int(batch is None or batch.committed), int(restorable and window.open))
    if entry is None:
        assert batch is not None
        planned, watermark = batch.offsets.timestamp_ms, batch.offsets.watermark_ms or None
        rows = snapshot.checkpoint.logs.records(batch)
        return (id_, planned, rows, None, None, watermark, *(None,) * 5, *flags)
    earliest, latest = entry.event_times or (None, None)
    took, size = entry.durations.get(metrics.WHOLE), metrics.state_size
    return (
        *(id_, _ms(entry.started), entry.rows, entry.broken, took, _ms(entry.watermark)),
        *(_ms(earliest), _ms(latest), entry.lag, size(entry, "rows"), size(entry, "bytes")),
        *flags,
    )


def _marks(snapshot: Snapshot) -> Iterator[Mapping[str, Any]]:
    """Rewinds, undos and forks, including forks of this checkpoint."""
    for line in snapshot.audit:
        if line.get("action") in _MARKED and isinstance(line.get("first_batch"), int):
            action, batch = line["action"], line["first_batch"]
            text = f"{action.capitalize()} to batch {batch}"
            if action == "fork":
                at = line.get("at_batch", batch)
                text = f"Forked from {line.get('origin')} at batch {at}"
            yield _mark(action, batch, line.get("at"), text, line.get("by"))
    for fork in snapshot.forks:
        at = fork.get("at_batch")
        batch = at if isinstance(at, int) else fork["first_batch"]
        text = f"Fork {fork.get('checkpoint')} at batch {batch}"
        yield _mark("fork", batch, fork.get("made_at"), text, fork.get("made_by"))


def _mark(kind: str, batch: int, at: Any, text: str, by: Any) -> Mapping[str, Any]:
    when = f", {at[:19].replace('T', ' ')}" if isinstance(at, str) else ""
    return {"kind": kind, "batch": batch, "at": _ms(at), "text": f"{text} by {by}{when}"}


def _ms(at: str | datetime | None) -> int | None:
    """A time in milliseconds since 1970; None if it is not a time.

    >>> _ms("1970-01-01T00:00:01.500Z"), _ms("soon")
    (1500, None)
    """
    if isinstance(at, str):
        # not `parse_time`, which is slow: there are tens of thousands of times
        try:
            at = datetime.fromisoformat(at.replace("Z", "+00:00"))
        except ValueError:
            return None
    return (at - EPOCH) // _MILLISECOND if at and at.tzinfo else None
