"""Summaries of a checkpoint and its batches that the command line and the web UI share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ebbtide.checkpoint import Checkpoint, log_files, state_files
from ebbtide.connectors import connector_of, connector_of_offset
from ebbtide.history import Entry
from ebbtide.parsing import parse_json
from ebbtide.retention import CHECKPOINT, Window
from ebbtide.times import in_utc

if TYPE_CHECKING:
    from ebbtide.retention import Windows  # the clients of Kafka and Delta with it

RUNNING, MAY_RUN, STOPPED, INTERRUPTED = "running", "may be running", "stopped", "interrupted"
"""What a checkpoint that can be read is doing."""


def format_keeper(keeper: str) -> str:
    """Who keeps what a batch needs, in words."""
    return "the checkpoint" if keeper == CHECKPOINT else connector_of(keeper).label or keeper


def summarize_checkpoint(
    checkpoint: Checkpoint,
    entries: Mapping[int, Entry],
    windows: Windows,
    *,
    running: str | None,
    is_idle: bool,
) -> dict[str, Any]:
    """A checkpoint in one line of a list, as plain values; `running` is who runs it.

    `is_idle` is whether a rewind would take it for stopped (`lease.is_idle`).
    """
    last = checkpoint.logs.batches[-1] if checkpoint.logs.batches else None
    entry = entries.get(last.id) if last else None
    newest = entry or (entries[max(entries)] if entries else None)
    window = windows.by_batch.get(-1 if windows.oldest is None else windows.oldest, Window())
    return {
        "status": describe_status(checkpoint, running=running, is_idle=is_idle),
        "warnings": list_warnings(checkpoint, entry),
        "last_batch": last.id if last else None,
        "last_at": in_utc(last.offsets.timestamp_ms) if last else None,
        "committed": last is None or last.committed,
        "rows": entry.rows if entry else checkpoint.logs.records(last) if last else None,
        "lag": newest.lag if newest else None,  # when the batch was planned
        "oldest": windows.oldest,  # the first batch that can run again
        "until": window.until,
        "estimate": window.estimate,
        "closes": format_keeper(window.closes_first) if window.closes_first else None,
        "running": running,
    }


def describe_status(checkpoint: Checkpoint, *, running: str | None, is_idle: bool) -> str:
    """What a checkpoint is doing, in a word or two; `running` is who runs it."""
    if checkpoint.interrupted is not None or checkpoint.logs.barriers:
        return INTERRUPTED
    if running:
        return RUNNING
    return STOPPED if is_idle or not checkpoint.logs.batches else MAY_RUN


def list_warnings(checkpoint: Checkpoint, last: Entry | None) -> tuple[str, ...]:
    """What somebody should look at, one sentence each, without a full stop."""
    broken = None
    if last and last.broken:
        count = f"{last.broken:,} broken record{'s' if last.broken > 1 else ''}"
        broken = f"{count} in batch {last.batch}"
    return tuple(filter(None, (describe_health(checkpoint), broken)))


def describe_health(checkpoint: Checkpoint) -> str | None:
    """Describe what is wrong with a checkpoint; None if all is well."""
    if (change := checkpoint.interrupted) is not None:
        return f"a {change.action} to batch {change.first_batch} was interrupted"
    if checkpoint.logs.barriers:
        return "a rewind was interrupted, and its journal is gone"
    if checkpoint.logs.batches and checkpoint.oldest_restorable is None:
        return "no batch can run again"
    if (count := len(checkpoint.unknown)) > 0:
        return f"{count} unknown file{'s' if count > 1 else ''}"
    return None


def summarize_batch(
    checkpoint: Checkpoint, batch: log_files.Batch, windows: Windows
) -> dict[str, Any]:
    """A batch as the logs hold it, and until when it can run again, as plain values."""
    reason = checkpoint.restorable[batch.id]
    window = windows.by_batch.get(batch.id, Window())
    return {
        "id": batch.id,
        "committed": batch.committed,
        "restorable": reason is None,
        "reason": reason,
        "timestamp": in_utc(batch.offsets.timestamp_ms),
        "watermark": in_utc(batch.offsets.watermark_ms) if batch.offsets.watermark_ms else None,
        "records": checkpoint.logs.records(batch),
        "sources": [parse_source(text) for text in batch.offsets.sources],
        "replayable": reason is None and window.open,
        "replayable_until": in_utc(window.until) if window.until else None,
        "estimate": window.estimate,
        "closes_first": window.closes_first,
        "closed": window.gone,
    }


def summarize_run(
    checkpoint: Checkpoint, entry: Entry | None, batch: log_files.Batch | None
) -> dict[str, Any]:
    """What a batch did, from its history entry or else from the logs, as plain values."""
    row: dict[str, Any] = {
        "id": entry.batch if entry else batch and batch.id,
        "committed": batch is None or batch.committed,
        "planned": batch and in_utc(batch.offsets.timestamp_ms),
        "started": None,
        "rows": batch and checkpoint.logs.records(batch),
        "watermark": in_utc(w) if batch and (w := batch.offsets.watermark_ms) else None,
        "sources": batch and batch.offsets.sources,
    }
    if entry is None:
        return row | {"event_times": None, "output": None, "rebuilt": False}
    return row | {name: value for name, value in asdict(entry).items() if name != "batch"}


@dataclass(frozen=True)
class PartitionRead:
    """What a batch read of one partition of a topic."""

    topic: str
    partition: int
    start: int | None
    """None if it is no longer known."""
    end: int

    @property
    def records(self) -> int | None:
        """The maximum number; markers of transactions have offsets, too."""
        return None if self.start is None else self.end - self.start


def list_partition_reads(
    checkpoint: Checkpoint, entries: Mapping[int, Entry], batch: int
) -> tuple[PartitionRead, ...]:
    """What a batch read of each Kafka partition, from the logs or else from the history."""
    ends = _positions(checkpoint, entries, batch)
    before = checkpoint.logs.before(batch)
    earlier = _positions(checkpoint, entries, before.id if before else batch - 1)
    has_start = bool(earlier) or batch == 0
    starts = {**checkpoint.first_offsets, **earlier}
    return tuple(
        PartitionRead(
            topic, partition, starts.get((topic, partition), 0) if has_start else None, end
        )
        for (topic, partition), end in sorted(ends.items())
    )


def _positions(
    checkpoint: Checkpoint, entries: Mapping[int, Entry], batch: int
) -> log_files.Positions:
    if (logged := checkpoint.logs.by_id.get(batch)) is not None:
        return logged.positions
    return log_files.kafka_positions(entries[batch].sources) if batch in entries else {}


def other_sources(sources: Iterable[str | None]) -> tuple[str, ...]:
    """Up to where a batch read sources other than Kafka.

    >>> other_sources(['{"visits":{"0":5}}', '{"logOffset":3}'])
    ('files 3',)
    """
    return tuple(
        format_source(parse_source(text))
        for text in dict.fromkeys(sources)
        if text is not None and not log_files.kafka_positions([text])
    )


def list_differences(now: Entry, then: Entry) -> tuple[str, ...]:
    """How another run of a batch differs from this one."""
    differences = []
    rows = [entry.output.rows if entry.output else None for entry in (then, now)]
    digests = [entry.output.digest if entry.output else None for entry in (then, now)]
    for name, old, new in (
        ("rows", then.rows, now.rows),
        ("broken", then.broken, now.broken),
        ("watermark", then.watermark, now.watermark),
        ("output rows", *rows),
    ):
        if old != new:
            differences.append(f"{name} {_format_value(old)} → {_format_value(new)}")
    if list(map(parse_source, then.sources)) != list(map(parse_source, now.sources)):
        differences.append("other records")
    for name, before, after in (
        ("output", *digests),
        ("code", then.code, now.code),
        ("versions", then.versions, now.versions),
    ):
        # only what both runs recorded can differ
        if before and after and before != after:
            differences.append(f"other {name}")
    return tuple(differences)


def _format_value(value: float | str | None) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def summarize_operator(checkpoint: Checkpoint, operator: state_files.Operator) -> dict[str, Any]:
    """The stores, versions and size of a stateful operator, as plain values."""
    versions = [version for store in operator.stores for version in store.versions.all]
    return {
        "id": operator.id,
        "name": operator.name,
        "partitions": len(operator.partition_ids),
        "stores": len(operator.stores),
        "store_names": sorted({store.name for store in operator.stores}),
        "oldest_version": min(versions, default=None),
        "newest_version": max(versions, default=None),
        "bytes": checkpoint.state_bytes[operator.id],
    }


def parse_source(offset: str | None) -> Any:
    """The offset of a source, parsed if it is JSON."""
    try:
        return None if offset is None else parse_json(offset)
    except ValueError:
        return offset


def format_source(source: Any) -> str:
    """The offset of a source in a few characters.

    >>> format_source({"visits": {"0": 17, "1": 3}}), format_source({"logOffset": 4})
    ('visits 0:17 1:3', 'files 4')
    """
    return connector_of_offset(source).source.format_offset(source)


def format_end(window: Window) -> str:
    """When the window of a batch closes, and who closes it.

    >>> format_end(Window())
    'no end is in sight'
    """
    if window.closes_first is None or window.until is None:
        return "no end is in sight"
    at = in_utc(window.until)[:16].replace("T", " ")
    when = f"{'about' if window.estimate else 'not before'} {at}"
    return f"{format_keeper(window.closes_first)} closes it first, {when}"


def make_title(query: Any, name: str) -> str:
    """A checkpoint in a title: its query, unless that is its name, and the name.

    >>> make_title("orders", "a/checkpoint"), make_title("visits", "visits")
    ('orders · a/checkpoint', 'visits')
    """
    return f"{query} · {name}" if query and query != name else name
