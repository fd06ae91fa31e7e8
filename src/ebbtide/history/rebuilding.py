"""Complete the history of batches that no run has recorded, from Kafka or from Spark's logs."""

from __future__ import annotations

from ebbtide.checkpoint import Checkpoint, Timeline, log_files
from ebbtide.connections import KafkaConnection
from ebbtide.history.event_times import (
    OnRead,
    RecordTally,
    count_records,
    no_such_field,
    not_held,
    read_times,
    total,
)
from ebbtide.history.store import Entry, format_exactly, kept_entries, write_rebuilt
from ebbtide.times import EPOCH, in_utc


def rebuild_history(
    checkpoint: Checkpoint,
    *,
    field: str,
    connection: KafkaConnection,
    zone: str,
    on_read: OnRead = lambda _records: None,
) -> tuple[list[Entry], list[int]]:
    """Write entries for committed batches that have none, read from Kafka.

    Returns them, and the batches whose records Kafka lacks.
    They have only what records and logs tell: rows, event times, offsets and watermark.
    """
    entries, timeline = kept_entries(checkpoint), Timeline.read(checkpoint.folder)
    whole = {id_ for id_, e in entries.items() if e.event_times is not None or not e.rebuilt}
    lacking = [b for b in checkpoint.logs.batches if b.committed and b.id not in whole]
    lost = not_held(checkpoint, lacking, connection)
    held = [batch for batch in lacking if batch not in lost]
    tallies = count_records(read_times(checkpoint, held, field, connection, zone, on_read), EPOCH)
    if (read := total(tallies, "records")) and total(tallies, "without") == read:
        raise no_such_field(read, field)
    rebuilt = [_rebuild(batch, timeline, tallies.get(batch.id, RecordTally())) for batch in held]
    if rebuilt:
        write_rebuilt(checkpoint.folder, rebuilt)
    return rebuilt, [batch.id for batch in lost]


def fill_gaps(checkpoint: Checkpoint) -> list[Entry]:
    """Write entries for committed batches that have none: their run was killed before it could.

    They have what the logs tell; event times can be added later, from Kafka.
    """
    entries, timeline = kept_entries(checkpoint), Timeline.read(checkpoint.folder)
    filled = [
        _rebuild(batch, timeline, RecordTally(records))
        for batch in checkpoint.logs.batches
        if batch.committed and batch.id not in entries
        if (records := checkpoint.logs.records(batch)) is not None
    ]
    if filled:
        write_rebuilt(checkpoint.folder, filled)
    return filled


def _rebuild(batch: log_files.Batch, timeline: Timeline, tally: RecordTally) -> Entry:
    times = None
    if tally.earliest is not None and tally.latest is not None:
        times = (format_exactly(tally.earliest), format_exactly(tally.latest))
    return Entry(
        batch.id,
        timeline.owner_of(batch.id) or "",
        started=in_utc(batch.offsets.timestamp_ms),
        ended=in_utc(batch.offsets.timestamp_ms),
        sources=batch.offsets.sources,
        rows=tally.records,
        broken=tally.without,
        event_times=times,
        watermark=in_utc(w) if (w := batch.offsets.watermark_ms) else None,
        rebuilt=True,
    )
