"""The page of one checkpoint, and its timeline as columns of numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide.checkpoint import log_files
from ebbtide.history import Entry, metrics
from ebbtide.report import overview
from ebbtide.retention import Window
from ebbtide.times import EPOCH
from ebbtide.web.context import WebContext
from ebbtide.web.snapshots import PerSnapshot, Snapshot

_MARKED = ("rewind", "undo", "fork")
_COLUMNS = (
    *("id", "at", "rows", "broken", "duration", "watermark", "earliest", "latest"),
    *("lag", "state_rows", "state_bytes", "committed", "replayable"),
)
_JSON = "application/json"


def routes(context: WebContext) -> list[Route]:
    """The page, and the data of its timeline."""
    texts = PerSnapshot(_encode_timeline)

    async def show(request: Request) -> Response:
        known = await run_in_threadpool(context.snapshots.find, request.path_params["key"])
        return context.render(request, "checkpoint.html", known=known)

    async def data(request: Request) -> Response:
        key = request.path_params["key"]
        snapshot = await run_in_threadpool(context.snapshots.read, key)
        headers = {"ETag": f'"{snapshot.stamp}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        text = await run_in_threadpool(texts.get, snapshot)
        return Response(text, media_type=_JSON, headers=headers)

    return [
        Route("/checkpoints/{key}", show),
        Route("/checkpoints/{key}/timeline.json", data),
    ]


def summarize_timeline(snapshot: Snapshot) -> dict[str, Any]:
    """The timeline as plain values; times are milliseconds since 1970."""
    checkpoint, entries = snapshot.checkpoint, snapshot.entries
    logged = checkpoint.logs.by_id
    stuck = checkpoint.interrupted is not None or checkpoint.logs.barriers
    rows = [_row(snapshot, id_, entries.get(id_), logged.get(id_)) for id_ in snapshot.ids]
    columns = zip(*rows, strict=True) if rows else ((),) * len(_COLUMNS)
    return {
        "stamp": snapshot.stamp,
        "name": snapshot.name,
        "key": snapshot.key,
        "running": snapshot.running,
        "interrupted": overview.describe_health(checkpoint) if stuck else None,
        "batches": dict(zip(_COLUMNS, map(list, columns), strict=True)),
        "retained": [
            {"keeper": kept.keeper, "from_batch": kept.from_batch, "until": _ms(kept.until)}
            for kept in snapshot.windows.retained
        ],
        "marks": list(_marks(snapshot)),
    }


def _encode_timeline(snapshot: Snapshot) -> bytes:
    text = json.dumps(summarize_timeline(snapshot), separators=(",", ":"), allow_nan=False)
    return text.encode()


def _row(
    snapshot: Snapshot, id_: int, entry: Entry | None, batch: log_files.Batch | None
) -> tuple[int | None, ...]:
    """One batch, in the order of the columns."""
    window = snapshot.windows.by_batch.get(id_, Window())
    restorable = batch is not None and snapshot.checkpoint.restorable[id_] is None
    known = (int(batch is None or batch.committed), int(restorable and window.open))
    if entry is None:
        assert batch is not None
        planned, watermark = batch.offsets.timestamp_ms, batch.offsets.watermark_ms or None
        rows = snapshot.checkpoint.logs.records(batch)
        return (id_, planned, rows, None, None, watermark, *(None,) * 5, *known)
    earliest, latest = entry.event_times or (None, None)
    return (
        id_,
        _ms(entry.started),
        entry.rows,
        entry.broken,
        entry.durations.get(metrics.WHOLE),
        _ms(entry.watermark),
        _ms(earliest),
        _ms(latest),
        entry.lag,
        metrics.state_size(entry, "rows"),
        metrics.state_size(entry, "bytes"),
        *known,
    )


def _marks(snapshot: Snapshot) -> Iterator[Mapping[str, Any]]:
    """Rewinds, undos and forks, also those that were forked from it."""
    for line in snapshot.audit:
        if line.get("action") in _MARKED and isinstance(line.get("first_batch"), int):
            action, batch = line["action"], line["first_batch"]
            text = f"{action.capitalize()} to batch {batch}"
            if action == "fork":
                text = f"Forked from {line.get('origin')} at batch {batch}"
            yield _mark(action, batch, line.get("at"), text, line.get("by"))
    for fork in snapshot.forks:
        batch = fork["first_batch"]
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
    if at is None or at.tzinfo is None:
        return None
    since = at - EPOCH
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
