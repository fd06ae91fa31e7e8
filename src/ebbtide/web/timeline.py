"""One checkpoint in, its page out: a shell at once, and the timeline as columns of numbers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide.checkpoint import log_files
from ebbtide.history import Entry, metrics
from ebbtide.report.overview import describe_health
from ebbtide.retention import Window
from ebbtide.times import EPOCH
from ebbtide.web.context import Context
from ebbtide.web.snapshots import Snapshot

_MARKED = ("rewind", "undo", "fork")
_COLUMNS = (
    *("id", "at", "rows", "broken", "duration", "watermark", "earliest", "latest"),
    *("lag", "state_rows", "state_bytes", "committed", "replayable"),
)
_JSON = "application/json"


def routes(context: Context) -> list[Route]:
    """The page of one checkpoint, and the data of its timeline."""
    texts = _Texts()

    async def show(request: Request) -> Response:
        known = await run_in_threadpool(context.catalogue.find, request.path_params["key"])
        return context.render(request, "checkpoint.html", known=known)

    async def data(request: Request) -> Response:
        key = request.path_params["key"]
        snapshot = await run_in_threadpool(context.catalogue.snapshot, key)
        headers = {"ETag": f'"{snapshot.stamp}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        text = await run_in_threadpool(texts.of, snapshot)
        return Response(text, media_type=_JSON, headers=headers)

    return [
        Route("/checkpoints/{key}", show),
        Route("/checkpoints/{key}/timeline.json", data),
    ]


class _Texts:
    """The JSON of each checkpoint's timeline, made once for each of its stamps."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, bytes]] = {}
        self._lock = threading.Lock()

    def of(self, snapshot: Snapshot) -> bytes:
        """The text for a snapshot."""
        with self._lock:
            stamp, text = self._made.get(snapshot.key, ("", b""))
            if stamp != snapshot.stamp:
                text = json.dumps(
                    timeline(snapshot), separators=(",", ":"), allow_nan=False
                ).encode()
                self._made[snapshot.key] = (snapshot.stamp, text)
            return text


def timeline(snapshot: Snapshot) -> dict[str, Any]:
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
        "interrupted": describe_health(checkpoint) if stuck else None,
        "batches": dict(zip(_COLUMNS, map(list, columns), strict=True)),
        "retained": [
            {"keeper": kept.keeper, "from_batch": kept.from_batch, "until": _ms(kept.until)}
            for kept in snapshot.windows.retained
        ],
        "marks": list(_marks(snapshot)),
    }


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
    """What was done to the checkpoint, and which forks were made from it."""
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
    """A time in milliseconds since 1970; None if it is none.

    >>> _ms("1970-01-01T00:00:01.500Z"), _ms("soon")
    (1500, None)
    """
    if isinstance(at, str):
        # not `parse_time`: history is not typed by people, and there are tens of thousands
        try:
            at = datetime.fromisoformat(at.replace("Z", "+00:00"))
        except ValueError:
            return None
    if at is None or at.tzinfo is None:
        return None
    since = at - EPOCH
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
