"""One batch in, its page out: what it read, did and wrote, and a sample of its records."""

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
from ebbtide.report.overview import (
    PartitionRead,
    format_end,
    list_differences,
    list_partition_reads,
    other_sources,
    summarize_run,
)
from ebbtide.retention import Window
from ebbtide.times import EPOCH, in_utc
from ebbtide.web.context import Context
from ebbtide.web.snapshots import Snapshot

PHASES = {
    "latestOffset": "asking the source how far it is",
    "getOffset": "asking the source how far it is",
    "setOffsetRange": "telling the source how far to read",
    "walCommit": "noting the plan in the offsets log",
    "getBatch": "preparing to read",
    "queryPlanning": "planning",
    "addBatch": "reading, computing, writing",
    "commitOffsets": "noting the end in the commit log",
    "commitBatch": "noting the end in the commit log",
    metrics.WHOLE: "in all",
}
"""What Spark spends a batch's time on, under its own names."""
SAMPLED = 20
_CUT = 2_000
"""So many characters of a key or a value are shown."""
_HEADERS = 20
_HEADER_NAME = 200
_HIDDEN = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"},
    **dict.fromkeys((0x7F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}
"""Characters that do not show, or turn others round: pictures of them."""


def routes(context: Context) -> list[Route]:
    """A batch, and the sample of its records."""

    async def show(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.catalogue.snapshot, request.path_params["key"])
        values = tell_page(snapshot, _number(request))
        return context.render(request, "batch.html", snapshot=snapshot, **values)

    async def records(request: Request) -> Response:
        key, id_ = request.path_params["key"], _number(request)
        found = await run_in_threadpool(_sample, context, key, id_)
        return context.render(request, "records.html", **found)

    place = "/checkpoints/{key}/batches/{id}"
    return [Route(place, show), Route(f"{place}/records", records)]


def _number(request: Request) -> int:
    """The batch that an address names."""
    text = request.path_params["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise NotFoundError(f"There is no batch {text[:20]!r}.", "A batch has a number.")
    return int(text)


def tell_page(snapshot: Snapshot, id_: int) -> dict[str, Any]:
    """What the page says of a batch."""
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
        "run": summarize_run(snapshot.checkpoint, entry, batch),
        "entry": entry,
        "took": entry.durations.get(metrics.WHOLE) if entry else None,
        "parts": list_partition_reads(snapshot.checkpoint, snapshot.entries, id_),
        "others": other_sources(sources),
        "phases": _phases(entry),
        "part": _say_part(snapshot, id_),
        "again": why_not(snapshot, id_) is None,
        "again_words": _say_again(snapshot, id_),
        "runs": _other_runs(snapshot, id_, entry),
        "reprocess": _range(entry),
        "stateful": bool(snapshot.checkpoint.operators),
    }


def why_not(snapshot: Snapshot, id_: int) -> str | None:
    """Why a batch cannot run again; None if it can, as far as is known."""
    if id_ not in snapshot.checkpoint.logs.by_id:
        return "Spark has cleaned up what it starts from"
    window = snapshot.windows.by_batch.get(id_, Window())
    return snapshot.checkpoint.restorable[id_] or window.gone


def _say_again(snapshot: Snapshot, id_: int) -> str:
    reason = why_not(snapshot, id_)
    if reason is not None:
        return f"It cannot run again: {reason}."
    return f"It can run again; {format_end(snapshot.windows.by_batch.get(id_, Window()))}."


def _say_part(snapshot: Snapshot, id_: int) -> str:
    """Which part of the timeline ran the batch, in words."""
    name = snapshot.timeline.owner_of(id_)
    for part, first, mode in snapshot.timeline.rewinds:
        if part == name:
            how = "which kept its records" if mode == layout.EXACT else "planned anew"
            return f"{name}: from batch {first} on, {how}"
    return f"{name}: as it first ran" if name else "not known"


def _phases(entry: Entry | None) -> list[tuple[str, str, int]]:
    """What took how long, the longest first; the whole comes last."""
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
    return [(one, list_differences(entry, one) if entry else ()) for one in reversed(runs)]


def _range(entry: Entry | None) -> tuple[str, str] | None:
    """The event times of a batch as a range whose end is not part of it: the next second."""
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
class Shown:
    """Bytes as a person reads them."""

    text: str
    size: int
    cut: bool = False
    binary: bool = False

    @classmethod
    def of(cls, value: bytes | None) -> Shown | None:
        r"""Text, or bytes that are none; the first two thousand characters.

        >>> Shown.of(b"\xff\x00").text, Shown.of(b"\xff\x00").binary
        ('\\xff\\x00', True)
        """
        if value is None:
            return None
        # a cut may go through a character: a few bytes more are decoded, and cut off again
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


def _sample(context: Context, key: str, id_: int) -> dict[str, Any]:
    """The first records of a batch, or in one line why there are none."""
    snapshot = context.catalogue.snapshot(key)
    parts = tell_page(snapshot, id_)["parts"]
    problem, rows = "", []
    try:
        rows = [_row(record) for record in _read(context, parts)]
    except BrokerError as error:
        problem = str(error)
    asked = sum(part.records or 0 for part in parts)
    if not problem and not rows:
        problem = _say_none(parts, asked)
    return {"id": id_, "rows": rows, "problem": problem, "in_all": asked, "key": key}


def _say_none(parts: tuple[PartitionRead, ...], asked: int) -> str:
    if not parts:
        return "This batch does not read Kafka."
    if any(part.start is None for part in parts):
        return "From where this batch read is not known any more."
    return "Kafka no longer holds its records." if asked else "This batch read no records."


def _read(context: Context, parts: tuple[PartitionRead, ...]) -> list[Record]:
    """The first records of some ranges, topic by topic."""
    wanted = [part for part in parts if part.records]
    if not wanted:
        return []
    connection = context.catalogue.connection(again=True)
    if connection is None:
        raise context.catalogue.no_broker()
    found: list[Record] = []
    for topic in dict.fromkeys(part.topic for part in wanted):
        ranges = {p.partition: (p.start or 0, p.end) for p in wanted if p.topic == topic}
        found += kafka.take(connection, topic, ranges, SAMPLED - len(found))
    return found


def _row(record: Record) -> dict[str, Any]:
    """A record as it is shown."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "at": record.timestamp_ms,
        "key": Shown.of(record.key),
        "value": Shown.of(record.value),
        "headers": [
            (name[:_HEADER_NAME].translate(_HIDDEN), Shown.of(value))
            for name, value in record.headers[:_HEADERS]
        ],
        "more_headers": max(0, len(record.headers) - _HEADERS),
    }
