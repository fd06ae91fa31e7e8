"""The page of one batch: what it read, did and wrote, and a sample of its records."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide.checkpoint import layout
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka import Record
from ebbtide.errors import BrokerError, NotFoundError
from ebbtide.history import Entry, metrics
from ebbtide.report import overview
from ebbtide.retention import Window
from ebbtide.times import EPOCH, in_utc
from ebbtide.web.context import WebContext
from ebbtide.web.snapshots import Snapshot

PHASES = {
    "latestOffset": "asking the source for its latest offset",
    "getOffset": "asking the source for its latest offset",
    "setOffsetRange": "telling the source how far to read",
    "walCommit": "writing the plan to the offset log",
    "getBatch": "preparing to read",
    "queryPlanning": "planning",
    "addBatch": "reading, computing, writing",
    "commitOffsets": "writing the commit log",
    "commitBatch": "writing the commit log",
    metrics.WHOLE: "total",
}
"""The phases of a batch by their names in Spark."""
SAMPLED = 20
_CUT = 2_000
"""Maximum number of characters that are shown of a key or a value."""
_HEADERS = 20
_HEADER_NAME = 200
_HIDDEN = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"},
    **dict.fromkeys((0x7F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}
"""Visible replacements for control characters and for those that change the direction."""


def routes(context: WebContext) -> list[Route]:
    """The page of a batch, and a sample of its records."""

    async def show(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.snapshots.read, request.path_params["key"])
        values = summarize_page(snapshot, _number(request))
        return context.render(request, "batch.html", snapshot=snapshot, **values)

    async def records(request: Request) -> Response:
        key, id_ = request.path_params["key"], _number(request)
        found = await run_in_threadpool(_sample, context, key, id_)
        return context.render(request, "records.html", **found)

    place = "/checkpoints/{key}/batches/{id}"
    return [Route(place, show), Route(f"{place}/records", records)]


def _number(request: Request) -> int:
    text = request.path_params["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise NotFoundError(f"There is no batch {text[:20]!r}.", "A batch has a number.")
    return int(text)


def summarize_page(snapshot: Snapshot, id_: int) -> dict[str, Any]:
    """The values of the template."""
    batch, entry = snapshot.checkpoint.logs.by_id.get(id_), snapshot.entries.get(id_)
    if batch is None and entry is None:
        raise NotFoundError(
            f"Nothing is known of batch {id_} of {snapshot.name}.",
            "The timeline shows the batches that are known.",
        )
    sources = batch.offsets.sources if batch else entry.sources if entry else ()
    ids = snapshot.ids
    at = bisect_left(ids, id_)
    return {
        "id": id_,
        "previous": ids[at - 1] if at else None,
        "next": ids[at + 1] if at + 1 < len(ids) else None,
        "run": overview.summarize_run(snapshot.checkpoint, entry, batch),
        "entry": entry,
        "took": entry.durations.get(metrics.WHOLE) if entry else None,
        "parts": overview.list_partition_reads(snapshot.checkpoint, snapshot.entries, id_),
        "others": overview.other_sources(sources),
        "phases": _phases(entry),
        "part": _format_part(snapshot, id_),
        "again": find_obstacle(snapshot, id_) is None,
        "again_words": _format_again(snapshot, id_),
        "runs": _other_runs(snapshot, id_, entry),
        "reprocess": _range(entry),
        "stateful": bool(snapshot.checkpoint.operators),
    }


def find_obstacle(snapshot: Snapshot, id_: int) -> str | None:
    """Why a batch cannot run again; None if it can, as far as is known."""
    if id_ not in snapshot.checkpoint.logs.by_id:
        return "Spark has cleaned up what it starts from"
    window = snapshot.windows.by_batch.get(id_, Window())
    return snapshot.checkpoint.restorable[id_] or window.gone


def _format_again(snapshot: Snapshot, id_: int) -> str:
    reason = find_obstacle(snapshot, id_)
    if reason is not None:
        return f"It cannot run again: {reason}."
    return f"It can run again; {overview.format_end(snapshot.windows.by_batch.get(id_, Window()))}."


def _format_part(snapshot: Snapshot, id_: int) -> str:
    """Which part of the timeline ran the batch."""
    name = snapshot.timeline.owner_of(id_)
    for part, first, mode in snapshot.timeline.rewinds:
        if part == name:
            how = "which kept its records" if mode == layout.EXACT else "planned again"
            return f"{name}: from batch {first} on, {how}"
    return f"{name}: as it first ran" if name else "not known"


def _phases(entry: Entry | None) -> list[tuple[str, str, int]]:
    """The phases of a batch, the longest first, then the total."""
    found = dict(entry.durations) if entry else {}
    whole = found.pop(metrics.WHOLE, None)
    phases = [(name, PHASES.get(name, ""), took) for name, took in found.items()]
    phases.sort(key=lambda phase: -phase[2])
    if whole is not None:
        phases.append((metrics.WHOLE, PHASES[metrics.WHOLE], whole))
    return phases


def _other_runs(
    snapshot: Snapshot, id_: int, entry: Entry | None
) -> list[tuple[Entry, tuple[str, ...]]]:
    """Other runs of the batch, the last one first, and in what each was not the same."""
    runs = [one for one in snapshot.history.entries if one.batch == id_ and one is not entry]
    return [(one, overview.list_differences(entry, one) if entry else ()) for one in reversed(runs)]


def _range(entry: Entry | None) -> tuple[str, str] | None:
    """The event times of a batch as a range that ends before the next full second."""
    if entry is None or entry.event_times is None:
        return None
    try:
        first, last = (
            datetime.fromisoformat(time.replace("Z", "+00:00")) for time in entry.event_times
        )
        after = EPOCH + timedelta(seconds=(last - EPOCH) // timedelta(seconds=1) + 1)
    except (ValueError, OverflowError):
        return None
    return in_utc(first.replace(microsecond=0)), in_utc(after)


@dataclass(frozen=True)
class BytesPreview:
    """Bytes as a person reads them."""

    text: str
    size: int
    cut: bool = False
    binary: bool = False

    @classmethod
    def of(cls, value: bytes | None) -> BytesPreview | None:
        r"""The beginning of a text, or of bytes that are no text.

        >>> BytesPreview.of(b"\xff\x00").text, BytesPreview.of(b"\xff\x00").binary
        ('\\xff\\x00', True)
        """
        if value is None:
            return None
        # the cut may split a character: decode a few more bytes, then cut the text
        head = value[: 4 * _CUT + 4]
        try:
            whole = len(head) == len(value)
            text = head.decode() if whole else head.decode(errors="ignore")
            binary = not whole and not _is_text(value)
        except UnicodeDecodeError:
            binary = True
        if binary:
            text = str(value[:_CUT])[2:-1]
        shown = text[:_CUT].translate(_HIDDEN)
        return cls(shown, len(value), cut=binary or len(shown) < len(text), binary=binary)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _sample(context: WebContext, key: str, id_: int) -> dict[str, Any]:
    """The first records of a batch, or why there are none."""
    snapshot = context.snapshots.read(key)
    parts = summarize_page(snapshot, id_)["parts"]
    problem, rows = "", []
    try:
        rows = [_row(record) for record in _read(context, parts)]
    except BrokerError as error:
        problem = str(error)
    asked = sum(part.records or 0 for part in parts)
    if not problem and not rows:
        problem = _explain_empty(parts, asked)
    return {"id": id_, "rows": rows, "problem": problem, "in_all": asked, "key": key}


def _explain_empty(parts: tuple[overview.PartitionRead, ...], asked: int) -> str:
    if not parts:
        return "This batch does not read Kafka."
    if any(part.start is None for part in parts):
        return "It is no longer known where this batch started to read."
    return "Kafka no longer holds its records." if asked else "This batch read no records."


def _read(context: WebContext, parts: tuple[overview.PartitionRead, ...]) -> list[Record]:
    """The first records of the ranges, topic by topic."""
    wanted = [part for part in parts if part.records]
    if not wanted:
        return []
    connection = context.snapshots.connection(again=True)
    if connection is None:
        raise context.snapshots.no_broker()
    found: list[Record] = []
    for topic in dict.fromkeys(part.topic for part in wanted):
        ranges = {p.partition: (p.start or 0, p.end) for p in wanted if p.topic == topic}
        found += kafka.take(connection, topic, ranges, SAMPLED - len(found))
    return found


def _row(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "at": record.timestamp_ms,
        "key": BytesPreview.of(record.key),
        "value": BytesPreview.of(record.value),
        "headers": [
            (name[:_HEADER_NAME].translate(_HIDDEN), BytesPreview.of(value))
            for name, value in record.headers[:_HEADERS]
        ],
        "more_headers": max(0, len(record.headers) - _HEADERS),
    }
