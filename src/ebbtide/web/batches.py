"""Show one batch: what it read, did and wrote, and a sample of its records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from ebbtide.checkpoint import layout
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka import Record
from ebbtide.errors import BrokerError, NotFoundError, UsageError
from ebbtide.history import Entry, metrics
from ebbtide.report import overview
from ebbtide.retention import Window
from ebbtide.times import in_utc, parse_time
from ebbtide.web.context import WebContext
from ebbtide.web.pages import CheckpointPage, checkpoint_route, parse_number
from ebbtide.web.snapshots import Snapshot, Snapshots

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
_CLEANED_UP = "Spark has cleaned up what it starts from"
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
    path = "/batches/{id}"
    return [
        checkpoint_route(context, path, _show),
        checkpoint_route(context, f"{path}/records", _show_records),
    ]


def _show(page: CheckpointPage) -> Response:
    return page.render("batch.html", **summarize_page(page.snapshot, _number(page)))


def _number(page: CheckpointPage) -> int:
    text = page.request.path_params["id"]
    if (number := parse_number(text)) is None:
        raise NotFoundError(f"There is no batch {text[:20]!r}.", "A batch has a number.")
    return number


def summarize_page(snapshot: Snapshot, id_: int) -> dict[str, Any]:
    """The values of the template."""
    batch, entry = snapshot.checkpoint.logs.by_id.get(id_), snapshot.entries.get(id_)
    if batch is None and entry is None:
        raise NotFoundError(
            f"Batch {id_} of {snapshot.name} is unknown.", "The timeline shows the known batches."
        )
    sources = batch.offsets.sources if batch else entry.sources if entry else ()
    ids, window = snapshot.ids, snapshot.windows.by_batch.get(id_, Window())
    obstacle = snapshot.checkpoint.restorable[id_] or window.gone if batch else _CLEANED_UP
    again = f"It cannot run again: {obstacle}."
    if obstacle is None:
        again = f"It can run again; {overview.format_end(window)}."
    return {
        "id": id_,
        "previous": max((other for other in ids if other < id_), default=None),
        "next": min((other for other in ids if other > id_), default=None),
        "run": overview.summarize_run(snapshot.checkpoint, entry, batch),
        "entry": entry,
        "took": entry.durations.get(metrics.WHOLE) if entry else None,
        "parts": overview.list_partition_reads(snapshot.checkpoint, snapshot.entries, id_),
        "others": overview.other_sources(sources),
        "phases": _phases(entry),
        "part": _format_part(snapshot, id_),
        "again": obstacle is None,
        "again_text": again,
        "runs": [  # the other runs of this batch, the last one first
            (one, overview.list_differences(entry, one) if entry else ())
            for one in reversed(snapshot.history.entries)
            if one.batch == id_ and one is not entry
        ],
        "reprocess": _range(entry),
        "stateful": bool(snapshot.checkpoint.operators),
    }


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
    phases = entry.durations.items() if entry else ()
    ordered = sorted(phases, key=lambda phase: (phase[0] == metrics.WHOLE, -phase[1]))
    return [(name, PHASES.get(name, ""), took) for name, took in ordered]


def _range(entry: Entry | None) -> tuple[str, str] | None:
    """The event times of a batch as a range that ends before the next full second."""
    if entry is None or entry.event_times is None:
        return None
    try:
        first, last = (parse_time(time).replace(microsecond=0) for time in entry.event_times)
        return in_utc(first), in_utc(last + timedelta(seconds=1))
    except (UsageError, OverflowError):
        return None


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
        try:
            text, binary = value.decode(), False
        except UnicodeDecodeError:
            text, binary = str(value[:_CUT])[2:-1], True
        shown = text[:_CUT].translate(_HIDDEN)
        return cls(shown, len(value), cut=binary or len(shown) < len(text), binary=binary)


def _show_records(page: CheckpointPage) -> Response:
    """Show the first records of a batch, or why there are none."""
    id_ = _number(page)
    parts = summarize_page(page.snapshot, id_)["parts"]
    total = sum(part.records or 0 for part in parts)
    rows, problem = [], ""
    try:
        rows = [_row(record) for record in _read(page.context.snapshots, parts)]
    except BrokerError as error:
        problem = str(error)
    if not problem and not rows:
        problem = _explain_empty(parts, total)
    return page.render("records.html", id=id_, rows=rows, problem=problem, in_all=total)


def _explain_empty(parts: tuple[overview.PartitionRead, ...], total: int) -> str:
    if not parts:
        return "This batch does not read Kafka."
    if any(part.start is None for part in parts):
        return "It is no longer known where this batch started to read."
    return "Kafka no longer holds its records." if total else "This batch read no records."


def _read(snapshots: Snapshots, parts: tuple[overview.PartitionRead, ...]) -> list[Record]:
    """The first records of the ranges, topic by topic."""
    wanted = [part for part in parts if part.records]
    if not wanted:
        return []
    connection = snapshots.connection(again=True)
    if connection is None:
        raise snapshots.no_broker()
    records: list[Record] = []
    for topic in dict.fromkeys(part.topic for part in wanted):
        ranges = {p.partition: (p.start or 0, p.end) for p in wanted if p.topic == topic}
        records += kafka.take(connection, topic, ranges, SAMPLED - len(records))
    return records


def _row(record: Record) -> dict[str, Any]:
    return asdict(record) | {
        "at": record.timestamp_ms,
        "key": BytesPreview.of(record.key),
        "value": BytesPreview.of(record.value),
        "headers": [
            (name[:_HEADER_NAME].translate(_HIDDEN), BytesPreview.of(value))
            for name, value in record.headers[:_HEADERS]
        ],
        "more_headers": max(0, len(record.headers) - _HEADERS),
    }
