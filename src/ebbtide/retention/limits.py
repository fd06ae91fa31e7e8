"""A checkpoint in, out: for each batch how long checkpoint, Kafka and Delta keep what it needs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

from deltalake.exceptions import DeltaError

from ebbtide.checkpoint.logs import source_kind
from ebbtide.checkpoint.reader import Checkpoint, Positions, kafka_positions
from ebbtide.connectors.delta.source import Commit, Offset, Range, Table, find_range, open_table
from ebbtide.connectors.kafka import KafkaConnection, Topic
from ebbtide.connectors.kafka.source import Topics, ask_topics, list_from, made_anew
from ebbtide.errors import BrokerError, EbbtideError
from ebbtide.history.store import Entry
from ebbtide.retention.window import CHECKPOINT, DELTA, KAFKA, Limit, Window, combine
from ebbtide.rewind.fork import NOTE
from ebbtide.times import EPOCH

Limits = Mapping[int, Limit]
"""By batch."""

_RETAINED = 100
"""Spark's default for `spark.sql.streaming.minBatchesToRetain`, which no checkpoint records."""
_PACED = 20
"""How many of the last batches tell the pace."""
_STEPS = 32
"""Into how many parts a topic's retention is cut to look up times, beside those of the batches."""
_COMMITS = 100
"""How many commits of a table are read at a time, and at most so often."""


@dataclass(frozen=True)
class Retained:
    """What one keeper alone still keeps: everything from a batch on, at least until then."""

    keeper: str
    from_batch: int
    until: datetime | None
    estimate: bool = False


@dataclass(frozen=True)
class Windows:
    """Until when each batch can run again, and what could not be found out."""

    by_batch: Mapping[int, Window]
    remarks: tuple[str, ...] = ()
    retained: tuple[Retained, ...] = ()
    """By keeper, as far as it is known."""

    def at(self, batches: Iterable[int]) -> Windows:
        """For batches that can run again now: some have gone since, and some have come.

        What a later batch needs is kept at least as long.

        >>> windows = Windows({1: Window(), 2: Window(closes_first="kafka")})
        >>> windows.at([2, 3]).by_batch[3].closes_first
        'kafka'
        """
        newest = self.by_batch[max(self.by_batch)] if self.by_batch else Window()
        found = {batch: self.by_batch.get(batch, newest) for batch in batches}
        first = next(iter(found), 0)
        kept = (
            replace(one, from_batch=max(first, one.from_batch)) if one.keeper == CHECKPOINT else one
            for one in self.retained
        )
        return replace(self, by_batch=found, retained=tuple(kept))

    @property
    def oldest(self) -> int | None:
        """The oldest batch that can run again."""
        return next((batch for batch, window in self.by_batch.items() if window.open), None)


def read_windows(
    checkpoint: Checkpoint,
    note: Mapping[str, Any],
    connection: KafkaConnection | None,
    *,
    entries: Mapping[int, Entry] = MappingProxyType({}),
    now: datetime | None = None,
) -> Windows:
    """The window of each batch that the checkpoint can give; `note` is the runner's.

    A guessed broker that has none of the topics is not asked.
    With `entries` of the history, what Kafka retains is looked for in older batches, too.
    """
    now = now or datetime.now(timezone.utc)
    found: list[Limits] = [limit_by_checkpoint(checkpoint, now)]
    remarks: list[str] = []
    topics: Topics | None = None
    try:
        topics = ask_topics(checkpoint, connection)
        if topics is not None and connection is not None:
            asked = (checkpoint, connection, topics, note.get("source"), now)
            found.append(limit_by_kafka(*asked, entries))
    except BrokerError as error:
        remarks.append(f"How long Kafka keeps the records is not known: {error}")
    else:
        remarks += _remark_topics(checkpoint, topics)
    for role, limit in (("source", limit_by_source), ("sink", limit_by_sink)):
        known = note.get(role) or {}
        if known.get("kind") == "delta" and "path" in known:
            try:
                table = open_table(known["path"])
                found += [limit(checkpoint, table, now)] if table else []
            except (DeltaError, EbbtideError, OSError, ValueError) as error:
                why = str(error).splitlines()[0]
                remarks.append(f"How long {known['path']} keeps its files is not known: {why}")
    batches = restorable(checkpoint)
    return Windows(
        {batch: combine(limits[batch] for limits in found if batch in limits) for batch in batches},
        tuple(remarks),
        tuple(_retained(batches, found)),
    )


def _retained(batches: list[int], found: Iterable[Limits]) -> Iterator[Retained]:
    """By keeper, the oldest batch for which it alone has all that is needed."""
    by_keeper: dict[str, dict[int, list[Limit]]] = {CHECKPOINT: {n: [] for n in batches[:1]}}
    for limits in found:
        for batch, limit in limits.items():
            by_keeper.setdefault(limit.keeper, {}).setdefault(batch, []).append(limit)
    for keeper, kept in by_keeper.items():
        windows = ((batch, combine(limits)) for batch, limits in sorted(kept.items()))
        first = next(((batch, window) for batch, window in windows if window.open), None)
        if first is not None:
            yield Retained(keeper, first[0], first[1].until, first[1].estimate)


def restorable(checkpoint: Checkpoint) -> list[int]:
    """The batches that the checkpoint can give, oldest first."""
    return [batch for batch, reason in checkpoint.restorable.items() if reason is None]


def limit_by_checkpoint(checkpoint: Checkpoint, now: datetime) -> Limits:
    """When Spark will have cleaned up what a batch starts from, if the query goes on as it did.

    So many batches stay as the log shows, once Spark has begun to clean up, and else 100. A fork
    begins with few.
    """
    batches = checkpoint.logs.batches
    paced = [batch.offsets.timestamp_ms for batch in batches[-_PACED:]]
    if len(paced) < 2 or paced[-1] <= paced[0]:
        return {}
    pace = (paced[-1] - paced[0]) / (len(paced) - 1)
    latest, oldest = batches[-1].id, batches[0].id
    began = (checkpoint.folder.read_note(NOTE) or {}).get("first_batch", 0)
    retained = latest - oldest if oldest > began else max(_RETAINED, latest - oldest)
    found = {}
    for batch in restorable(checkpoint):
        left = max(0, batch + retained - latest)
        try:
            until = now + timedelta(milliseconds=left * pace)
        except OverflowError:  # beyond the calendar
            continue
        found[batch] = Limit(CHECKPOINT, until, estimate=True)
    return found


def limit_by_kafka(
    checkpoint: Checkpoint,
    connection: KafkaConnection,
    topics: Topics,
    noted: Mapping[str, Any] | None,
    now: datetime,
    entries: Mapping[int, Entry] = MappingProxyType({}),
) -> Limits:
    """How long Kafka keeps the records from the first of a batch on.

    Kafka drops a partition's records from the oldest on, and stops at the first segment with one
    that is young enough. So a record stays as long as the youngest before it, or it itself, does.
    Of the batches that only the history knows, the oldest one that Kafka still has is named.
    """
    now_ms = _to_ms(now - EPOCH)
    times = {
        name: _first_since(checkpoint, connection, topic, now_ms)
        for name, topic in topics.items()
        if topic.retention_ms is not None
    }

    def judge(batch: int, start: Positions) -> Limit:
        parts = list_from(checkpoint, start, topics)
        bad = next((part for part in parts if part.status != "ok"), None)
        gone = made_anew(topics, batch, noted)
        if gone is None and bad is not None:
            gone = f"{bad.topic} partition {bad.partition}: {bad.status}"
        if gone is not None:
            return Limit(KAFKA, gone=gone)
        ends = []
        for part in parts:
            kept = topics[part.topic].retention_ms
            if kept is None or part.latest is None or part.new >= part.latest:
                continue
            stamps = [at for offset, at in times[part.topic][part.partition] if offset <= part.new]
            # one that is older than the retention may go at any moment
            ends.append(max(max(stamps, default=0) + kept, now_ms))
        return Limit(KAFKA, _from_ms(min(ends, default=None)))

    found = {batch: judge(batch, checkpoint.start(batch)) for batch in restorable(checkpoint)}
    return _oldest_kept(checkpoint, entries, judge) | found


def _oldest_kept(
    checkpoint: Checkpoint,
    entries: Mapping[int, Entry],
    judge: Callable[[int, Positions], Limit],
) -> dict[int, Limit]:
    """The oldest batch of the history that Kafka still has; it has those after it, too."""
    logged = checkpoint.logs.by_id
    older = [id_ for id_ in sorted(entries) if id_ not in logged and id_ - 1 in entries]

    def limit(id_: int) -> Limit:
        before = kafka_positions(entries[id_ - 1].sources)
        return judge(id_, {**checkpoint.first_offsets, **before})

    at = bisect_left(older, True, key=lambda id_: limit(id_).gone is None)
    return {older[at]: limit(older[at])} if at < len(older) else {}


def _first_since(
    checkpoint: Checkpoint, connection: KafkaConnection, topic: Topic, end: int
) -> dict[int, list[tuple[int, int]]]:
    """By partition, the first records since some times: those of the batches, and some between."""
    from ebbtide.connectors.kafka.admin import first_since

    kept = min(topic.retention_ms or 0, end)
    planned = {batch.offsets.timestamp_ms for batch in checkpoint.logs.batches}
    steps = {end - kept * step // _STEPS for step in range(_STEPS + 1)}
    times = sorted(at for at in planned | steps if end - kept <= at <= end)
    return first_since(connection, topic, times)


def _remark_topics(checkpoint: Checkpoint, topics: Topics | None) -> list[str]:
    if topics is None:
        unasked = "How long Kafka keeps the records is not known: add --bootstrap-servers."
        return [unasked] if checkpoint.logs.reads_kafka else []
    remarks = []
    for topic in topics.values():
        if (size := topic.retention_bytes) is not None:
            remarks.append(
                f"Topic {topic.name} keeps at most {size:,} bytes a partition: "
                "it may let go of records earlier."
            )
        if topic.compacted:
            remarks.append(
                f"Topic {topic.name} is compacted: a record whose key came again later may be gone."
            )
    return remarks


def limit_by_source(checkpoint: Checkpoint, table: Table, now: datetime) -> Limits:
    """How long the table that a query reads keeps the versions and files from a batch on."""
    ranges = _ranges(checkpoint)
    if not ranges:
        return {}
    commits = table.commits(min(needed.oldest for needed in ranges.values()))
    removals = _removals(commits)
    # a vacuum takes only what was taken out long enough ago
    ended = _to_ms(now - EPOCH - table.file_retention)
    vacuumed = frozenset(table.missing(file.path for file in removals if file.at_ms < ended))
    found = {}
    for batch, needed in ranges.items():
        gone = [v for v in range(needed.first, needed.last + 1) if v not in table.versions]
        files = [file for file in removals if file.is_in(needed)]
        lost = next((file.path for file in files if file.path in vacuumed), None)
        if gone or lost is not None:
            why = f"the log of {table.path} no longer has version {gone[0]}" if gone else None
            found[batch] = Limit(DELTA, gone=why or f"{table.path} was vacuumed: {lost} is gone")
            continue
        found[batch] = Limit(DELTA, _end(table, commits.get(needed.oldest), files))
    return found


def _ranges(checkpoint: Checkpoint) -> dict[int, Range]:
    """By batch, what it and those after it read of a Delta table; of its first Delta source."""
    planned = checkpoint.logs.batches[-1].offsets.sources if checkpoint.logs.batches else ()
    index = next((n for n, text in enumerate(planned) if source_kind(text) == "delta"), None)
    if index is None:
        return {}
    ends = {
        batch.id: Offset.parse(batch.offsets.sources[index] or "")
        for batch in checkpoint.logs.batches
        if index < len(batch.offsets.sources) and batch.offsets.sources[index] is not None
    }
    last = max(ends)
    found = {}
    for batch in restorable(checkpoint):
        before = checkpoint.before(batch)
        start = ends.get(before.id) if before else None
        if batch in ends:
            found[batch] = find_range(start, ends[batch], ends[last])
    return found


@dataclass(frozen=True)
class _Removal:
    """A file that was taken out of a table."""

    path: str
    at_ms: int
    version: int
    added: int | None
    """The version that had added it; None if that is older than what was read."""

    def is_in(self, needed: Range) -> bool:
        """Whether a range reads it."""
        if self.added is None or self.added < needed.first:
            return needed.snapshot is not None and self.version > needed.snapshot
        return self.added <= needed.last


def _removals(commits: Mapping[int, Commit]) -> list[_Removal]:
    added: dict[str, int] = {}
    found = []
    for version, commit in sorted(commits.items()):
        for path, at in commit.removed.items():
            found.append(_Removal(path, at, version, added.get(path)))
        added.update(dict.fromkeys(commit.added, version))
    return found


def _end(table: Table, oldest: Commit | None, files: list[_Removal]) -> datetime | None:
    """When a table may first let go of its oldest log entry or of a file."""
    ends = [file.at_ms + _to_ms(table.file_retention) for file in files]
    if oldest is not None:
        ends.append(int(oldest.modified * 1000) + _to_ms(table.log_retention))
    return _from_ms(min(ends, default=None))


def limit_by_sink(checkpoint: Checkpoint, table: Table, _now: datetime) -> Limits:
    """How long a table can be brought back to the version before a batch's commit."""
    batches = restorable(checkpoint)
    if not batches:
        return {}
    commits: dict[int, Commit] = {}
    written: dict[int, int] = {}
    newest = table.version
    for _ in range(_COMMITS):
        chunk = table.commits(max(0, newest - _COMMITS + 1), newest)
        commits |= chunk
        for version, commit in chunk.items():
            if (noted := commit.noted.get(checkpoint.logs.query_id)) is not None:
                written[noted] = min(version, written.get(noted, version))
        newest -= _COMMITS
        if newest < 0 or not chunk or min(written, default=batches[0] + 1) <= batches[0]:
            break
    removals = _removals(commits)
    found = {}
    for batch in batches:
        # before the first commit, and without one, there is nothing to be brought back
        before = min((v for other, v in written.items() if other >= batch), default=0) - 1
        if before >= 0:
            needed = Range(before, before + 1, before)
            files = [file for file in removals if file.is_in(needed)]
            found[batch] = Limit(DELTA, _end(table, commits.get(before), files))
    return found


def _to_ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _from_ms(milliseconds: int | None) -> datetime | None:
    """A time; None if it lies beyond the calendar, as for ever does."""
    try:
        return None if milliseconds is None else EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
