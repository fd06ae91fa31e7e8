"""Find the first batch that read records of an event time.

The history has the earliest and the latest event time of each batch. Only batches without an entry
are read from Kafka, and those in which older records are counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from ebbtide.checkpoint import Checkpoint, log_files
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka import KafkaConnection, Record
from ebbtide.errors import CheckpointError, EbbtideError, UsageError
from ebbtide.formatting import format_batches
from ebbtide.history.store import Entry, kept_entries
from ebbtide.parsing import parse_json
from ebbtide.times import in_utc, parse_time

OnRead = Callable[[int], None]


@dataclass
class RecordTally:
    """The records of a batch, counted, and their event times."""

    records: int = 0
    without: int = 0
    """Those without a readable event time."""
    older: int | None = 0
    """Those before the time that is looked for; None if the history cannot tell."""
    earliest: datetime | None = None
    latest: datetime | None = None

    def add(self, time: datetime | None, at: datetime) -> None:
        """Count a record; `at` is the time before which it counts as older."""
        self.records += 1
        if time is None:
            self.without += 1
            return
        self.older = (self.older or 0) + (time < at)
        self.earliest = min(self.earliest or time, time)
        self.latest = max(self.latest or time, time)


Tallies = Mapping[int, RecordTally]
"""By batch."""


def count_records(times: Iterable[tuple[int, datetime | None]], at: datetime) -> Tallies:
    """Count records, given by their batch and event time; those before `at` are older."""
    tallies: dict[int, RecordTally] = {}
    for batch, time in times:
        tallies.setdefault(batch, RecordTally()).add(time, at)
    return tallies


def total(tallies: Tallies, what: str) -> int:
    """The sum of `records`, `without` or `older` over all batches."""
    return sum(getattr(tally, what) for tally in tallies.values())


def choose(tallies: Tallies, at: datetime) -> int | None:
    """The last batch to start from without missing events since a time; None if there are none.

    >>> def seven(*minutes):
    ...     times = (datetime(2025, 9, 4, 7, m, tzinfo=timezone.utc) for m in minutes)
    ...     return RecordTally(2, 0, 0, *times)
    >>> nine = seven(9, 20)
    >>> choose({3: seven(0, 9), 4: RecordTally(), 5: seven(2, 12), 6: nine}, seven(10, 10).latest)
    5
    """
    return next((b for b, tally in sorted(tallies.items()) if _reaches(tally, at)), None)


def _reaches(tally: RecordTally, at: datetime) -> bool:
    return tally.latest is not None and tally.latest >= at


def straddling(tallies: Tallies, at: datetime, first: int) -> list[int]:
    """The batches from `first` on that also hold older records."""
    return [
        batch
        for batch, tally in sorted(tallies.items())
        if batch >= first and tally.earliest is not None and tally.earliest < at
    ]


def find_first_batch(
    checkpoint: Checkpoint,
    at: datetime,
    *,
    field: str | None,
    connection: KafkaConnection | None,
    zone: str,
    on_read: OnRead = lambda _records: None,
) -> tuple[int, str]:
    """The last batch to start from without missing events since a time, and an explanation.

    Steps: **1** take the event times of the batches that can run again from the history; **2** read
    the rest from Kafka; **3** choose the batch; one whose event times a killed run left unknown
    counts as one with such events; **4** count the older records that run again too.
    """
    oldest = checkpoint.oldest_restorable
    if oldest is None:
        raise CheckpointError(f"No batch of {checkpoint.location} can run again.")
    # 1
    entries = kept_entries(checkpoint)
    batches = [batch for batch in checkpoint.logs.batches if batch.id >= oldest]
    known = _recorded(checkpoint, batches, entries, at)
    unknown = [batch for batch in batches if batch.id not in known]
    timed = min((id_ for id_, e in entries.items() if e.event_times), default=None)
    gaps = [b.id for b in unknown if not b.positions and b.id not in entries]
    gaps = [id_ for id_ in gaps if timed is not None and id_ > timed]

    def read(some: Sequence[log_files.Batch]) -> Tallies:
        if not some or not field or connection is None:
            return {}
        return count_records(read_times(checkpoint, some, field, connection, zone, on_read), at)

    # 2: a batch after one with such a record is read only to count older ones
    first = choose(known, at)
    needed = [b for b in unknown if b.id not in gaps and (first is None or b.id < first)]
    broker = _require_readable(checkpoint, needed, field, connection) if needed else None
    reading = read(unknown)
    readable = [batch for batch in needed if batch.positions]
    lost = not_held(checkpoint, readable, broker) if broker else []
    tallies = {**known, **reading}
    # 3
    first = choose(tallies, at)
    if aged := [batch.id for batch in lost if first is None or batch.id < first]:
        raise CheckpointError(
            f"Kafka no longer holds all records of {format_batches(aged)}, and the history does "
            f"not have their event times: some may be from {in_utc(at)} or later.",
            "Choose the batch yourself: --to-batch, or --to-datetime.",
        )
    notes = [f"the first batch with such a record ({_how(reading)})"]
    if gap := next((id_ for id_ in gaps if first is None or id_ < first), None):
        first = gap
        notes = [f"a run that was killed left no event times of batch {gap:,}, so it counts"]
    if first is None:
        has_entries = any(batch.id in entries for batch in batches)
        raise _nothing_since(oldest, at, reading, field, known=has_entries)
    # 4
    if mixed := {id_: tallies[id_] for id_ in straddling(tallies, at, first)}:
        unread = {id_: tally for id_, tally in mixed.items() if tally.older is None}
        more = read([checkpoint.logs.by_id[id_] for id_ in unread])
        # the topic may have lost records, or may be another one of that name
        if all(id_ in more and more[id_].records == unread[id_].records for id_ in unread):
            mixed |= more
        notes.append(_format_older(mixed))
    if blank := [batch.id for batch in unknown if batch.id > first and not reading]:
        notes.append(f"the history has no entries of {format_batches(blank)}")
    aged_out = [id_ for id_ in entries if id_ < oldest]
    if missed := [id_ for id_ in aged_out if _reaches(_tally(entries[id_], at), at)]:
        notes.append(f"{format_batches(missed)} read such records too, but cannot run again")
    return first, "; ".join(notes)


def _recorded(
    checkpoint: Checkpoint,
    batches: Sequence[log_files.Batch],
    entries: Mapping[int, Entry],
    at: datetime,
) -> dict[int, RecordTally]:
    """The event times of each batch that has an entry, or that read nothing."""
    tallies: dict[int, RecordTally] = {}
    for batch in batches:
        entry, start = entries.get(batch.id), checkpoint.start(batch.id)
        before = checkpoint.logs.before(batch.id)
        if batch.positions:
            is_empty = all(start.get(key, 0) >= end for key, end in batch.positions.items())
        else:
            is_empty = before is not None and before.offsets.sources == batch.offsets.sources
        if entry is not None and (entry.event_times is not None or 0 < entry.rows == entry.broken):
            tallies[batch.id] = _tally(entry, at)
        elif is_empty:
            tallies[batch.id] = RecordTally()
    return tallies


def _tally(entry: Entry, at: datetime) -> RecordTally:
    if entry.event_times is None:
        return RecordTally(entry.rows, entry.broken)
    # not parse_time: the history has microseconds and any year
    earliest, latest = (
        datetime.fromisoformat(time.replace("Z", "+00:00")) for time in entry.event_times
    )
    older = entry.rows - entry.broken if latest < at else None
    return RecordTally(entry.rows, entry.broken, older, earliest, latest)


def _require_readable(
    checkpoint: Checkpoint,
    unknown: Sequence[log_files.Batch],
    field: str | None,
    connection: KafkaConnection | None,
) -> KafkaConnection:
    """The broker to read event times from; raises if they cannot be read."""
    which = format_batches([batch.id for batch in unknown])
    if not unknown[-1].positions:
        raise CheckpointError(
            f"{checkpoint.location} does not read Kafka, so the event times of {which} are "
            "unknown.",
            "Use --to-datetime or --to-batch.",
        )
    if not field:
        raise UsageError(
            f"The history does not have the event times of {which}. Reading them from Kafka "
            "takes the name of the field with the event time.",
            "Add --event-time-field NAME.",
        )
    if connection is None:
        raise UsageError(
            f"The history does not have the event times of {which}, and there is no broker to "
            "read their records from.",
            "Add --bootstrap-servers.",
        )
    return connection


def _how(reading: Tallies) -> str:
    if not reading:
        return "from the history"
    without = total(reading, "without")
    broken = f", {without:,} of them without an event time" if without else ""
    return f"{total(reading, 'records'):,} records read{broken}"


def _nothing_since(
    oldest: int, at: datetime, reading: Tallies, field: str | None, *, known: bool
) -> EbbtideError:
    read = total(reading, "records")
    if read and total(reading, "without") == read and not known:
        return no_such_field(read, field)
    records = "No record" if known else f"None of the {read:,} records"
    return CheckpointError(
        f"{records} since batch {oldest} has an event time from {in_utc(at)} on.",
        "Name an earlier time.",
    )


def _format_older(mixed: Tallies) -> str:
    if any(tally.older is None for tally in mixed.values()):
        back = min(tally.earliest for tally in mixed.values() if tally.earliest)
        return (
            f"older records run again too, back to {in_utc(back)}, in {format_batches(list(mixed))}"
        )
    older = total(mixed, "older")
    word = "record" if older == 1 else "records"
    return f"{older:,} {word} older than that run again too, in {format_batches(list(mixed))}"


def read_times(
    checkpoint: Checkpoint,
    batches: Sequence[log_files.Batch],
    field: str,
    connection: KafkaConnection,
    zone: str,
    on_read: OnRead = lambda _records: None,
) -> Iterator[tuple[int, datetime | None]]:
    """The batch and event time of every record of these batches that Kafka still holds."""
    read = 0
    retained = _retained_offsets(batches, connection)
    for run in _runs(checkpoint, batches):
        start = checkpoint.start(run[0].id)
        for topic, held in retained.items():
            ends = {p: [b.positions.get((topic, p), 0) for b in run] for p in held}
            first = {p: max(start.get((topic, p), 0), held[p][0]) for p in held}
            last = {p: min(ends[p][-1], held[p][1]) for p in held}
            for record in kafka.consume_range(connection, topic, first, last):
                read += 1
                on_read(read)
                batch = run[bisect_right(ends[record.partition], record.offset)]
                yield batch.id, event_time(record, field, zone)


def _runs(
    checkpoint: Checkpoint, batches: Sequence[log_files.Batch]
) -> Iterator[list[log_files.Batch]]:
    """Group consecutive batches: each group is one range of every partition."""
    run: list[log_files.Batch] = []
    for batch in batches:
        if run and checkpoint.before(batch.id) is not run[-1]:
            yield run
            run = []
        run.append(batch)
    if run:
        yield run


def event_time(record: Record, field: str, zone: str) -> datetime | None:
    """A record's event time; None if it cannot be read.

    >>> event_time(Record("t", 0, 0, 0, None, b'{"at":"2025-09-04T07:00:00"}'), "at", "UTC").hour
    7
    """
    try:
        value = parse_json(record.value or b"")[field]
        if isinstance(value, int | float):  # as Spark reads a number: seconds
            return datetime.fromtimestamp(value, timezone.utc)
        return parse_time(str(value), zone)
    except (ValueError, KeyError, TypeError, OverflowError, OSError, EbbtideError):
        return None


def not_held(
    checkpoint: Checkpoint, batches: Sequence[log_files.Batch], connection: KafkaConnection
) -> list[log_files.Batch]:
    """The batches of which Kafka no longer has every record."""
    retained = _retained_offsets(batches, connection)

    def is_held(batch: log_files.Batch) -> bool:
        start = checkpoint.start(batch.id)
        for (topic, partition), end in batch.positions.items():
            earliest, latest = retained[topic].get(partition, (0, 0))
            first = start.get((topic, partition), 0)
            if first < end and not earliest <= first < end <= latest:
                return False
        return bool(batch.positions)

    return [batch for batch in batches if not is_held(batch)]


def _retained_offsets(
    batches: Sequence[log_files.Batch], connection: KafkaConnection
) -> dict[str, dict[int, tuple[int, int]]]:
    topics = {topic for batch in batches for topic, _ in batch.positions}
    return {topic: kafka.retained_offsets(connection, topic) for topic in sorted(topics)}


def no_such_field(read: int, field: str | None) -> EbbtideError:
    """The error for a field that no record has."""
    return EbbtideError(
        f"None of the {read:,} records that were read has an event time in {field!r}.",
        "Check the name given with --event-time-field.",
    )
