"""An event time and the name of its field in, the first batch that read such a record out."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone

from ebbtide import kafka
from ebbtide.checkpoint.reader import Checkpoint
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.kafka import Record
from ebbtide.times import in_utc, parse_time


def find_first_batch(
    checkpoint: Checkpoint,
    at: datetime,
    *,
    field: str,
    servers: str,
    zone: str,
    on_read: Callable[[int], None] = lambda _records: None,
) -> tuple[int, str]:
    """Read the records of every batch that can run again; stop where none can be earlier.

    Returns the batch and one line about what was read.
    """
    oldest = checkpoint.oldest_restorable
    if oldest is None:
        raise CheckpointError(f"No batch of {checkpoint.location} can run again.")
    batches = [batch for batch in checkpoint.logs.batches if batch.id >= oldest]
    start, end = checkpoint.start(oldest), batches[-1].positions
    if not end:
        raise CheckpointError(
            f"{checkpoint.location} does not read Kafka, so its event times cannot be looked up.",
            "Use --to-datetime or --to-batch.",
        )
    read = unread = 0
    found_in: set[int] = set()

    def batch_of(topic: str, partition: int, offset: int) -> int:
        return next(b.id for b in batches if b.positions.get((topic, partition), 0) > offset)

    for topic in sorted({topic for topic, _ in end}):
        retained = kafka.retained_offsets(servers, topic)
        first = {
            p: max(start.get((topic, p), 0), earliest) for p, (earliest, _) in retained.items()
        }
        last = {p: min(end[t, p], retained[p][1]) for t, p in end if t == topic and p in retained}

        def wanted(partition: int, offset: int, topic: str = topic) -> bool:
            return not found_in or batch_of(topic, partition, offset) < min(found_in)

        for record in kafka.consume_range(servers, topic, first, last, wanted):
            read += 1
            on_read(read)
            found = event_time(record, field, zone)
            if found is None:
                unread += 1
            elif found >= at:
                found_in.add(batch_of(topic, record.partition, record.offset))
    if read and unread == read:
        raise EbbtideError(
            f"None of the {read:,} records that were read has an event time in {field!r}.",
            "Check the name given with --event-time-field.",
        )
    if not found_in:
        raise CheckpointError(
            f"None of the {read:,} records since batch {oldest} has an event time from "
            f"{in_utc(at)} on.",
            "Name an earlier time.",
        )
    broken = f", {unread:,} of them without an event time" if unread else ""
    return min(found_in), f"the first batch with such a record ({read:,} records read{broken})"


def event_time(record: Record, field: str, zone: str) -> datetime | None:
    """A record's event time; None if it has none that can be read.

    >>> event_time(Record("t", 0, 0, 0, None, b'{"at":"2025-09-04T07:00:00"}'), "at", "UTC").hour
    7
    """
    try:
        found = json.loads(record.value or b"")[field]
        if isinstance(found, int | float):  # as Spark reads a number: seconds
            return datetime.fromtimestamp(found, timezone.utc)
        return parse_time(str(found), zone)
    except (ValueError, KeyError, TypeError, OverflowError, EbbtideError):
        return None
