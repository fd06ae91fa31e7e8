"""How long checkpoint, sources and sink keep what each batch needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from types import MappingProxyType

from ebbtide.checkpoint import Checkpoint, Owner, layout
from ebbtide.connectors import base, sources
from ebbtide.connectors.kafka import KafkaConnection
from ebbtide.history import Entry
from ebbtide.notes import decode, parse_note
from ebbtide.retention.window import CHECKPOINT, Window, combine

Limits = Mapping[int, base.Limit]
"""By batch."""

_RETAINED = 100
"""Spark's default for `spark.sql.streaming.minBatchesToRetain`, which no checkpoint records."""
_STOPPED = (
    "The query is stopped or idle: the checkpoint loses no batch until it runs on; then Spark "
    "removes the oldest."
)
_PACED = 20
"""How many of the last batches tell the pace."""


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
        by_batch = {batch: self.by_batch.get(batch, newest) for batch in batches}
        first = next(iter(by_batch), 0)
        retained = (
            replace(one, from_batch=max(first, one.from_batch)) if one.keeper == CHECKPOINT else one
            for one in self.retained
        )
        return replace(self, by_batch=by_batch, retained=tuple(retained))

    @property
    def oldest(self) -> int | None:
        """The oldest batch that can run again."""
        return next((batch for batch, window in self.by_batch.items() if window.open), None)


def read_windows(
    checkpoint: Checkpoint,
    owner: Owner,
    connection: KafkaConnection | None,
    *,
    entries: Mapping[int, Entry] = MappingProxyType({}),
    now: datetime | None = None,
    stopped: bool = False,
) -> Windows:
    """The window of each batch that the checkpoint can give; `owner` names source and sink.

    A guessed broker that has none of the topics is not asked.
    With `entries` of the history, what Kafka retains is looked for in older batches, too. Spark
    cleans up only while the query runs: if it is `stopped`, the checkpoint sets no time.
    """
    now = now or datetime.now(timezone.utc)
    offsets = {batch: entry.sources for batch, entry in entries.items()}
    keepers = sources.read_retention(checkpoint, owner, connection, now, offsets)
    batches = restorable(checkpoint)
    own = {} if stopped else limit_by_checkpoint(checkpoint, now)
    limits = [own, *(each.limits for each in keepers)]
    remarks = [_STOPPED] if stopped and batches else []
    return Windows(
        {batch: combine(each[batch] for each in limits if batch in each) for batch in batches},
        (*remarks, *(remark for each in keepers for remark in each.remarks)),
        tuple(_retained(batches, limits)),
    )


def _retained(batches: list[int], limits: Iterable[Limits]) -> Iterator[Retained]:
    """By keeper, the oldest batch for which it alone has all that is needed."""
    by_keeper: dict[str, dict[int, list[base.Limit]]] = {CHECKPOINT: {n: [] for n in batches[:1]}}
    for batch, limit in (item for each in limits for item in each.items()):
        by_keeper.setdefault(limit.keeper, {}).setdefault(batch, []).append(limit)
    for keeper, by_batch in by_keeper.items():
        for batch in sorted(by_batch):
            if (window := combine(by_batch[batch])).open:
                yield Retained(keeper, batch, window.until, window.estimate)
                break


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
    began = parse_note(checkpoint.folder, layout.FORK, lambda n: decode(int, n["first_batch"])) or 0
    retained = latest - oldest if oldest > began else max(_RETAINED, latest - oldest)
    limits = {}
    for batch in restorable(checkpoint):
        left = max(0, batch + retained - latest)
        with suppress(OverflowError):  # beyond the calendar
            until = now + timedelta(milliseconds=left * pace)
            limits[batch] = base.Limit(CHECKPOINT, until, estimate=True)
    return limits
