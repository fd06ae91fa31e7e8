"""The targets of a rewind, and the batch that each one means in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, ClassVar

from ebbtide.checkpoint import Checkpoint
from ebbtide.checks import REFUSE
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.notes import INVALID
from ebbtide.parsing import parse_json
from ebbtide.rewind import checks
from ebbtide.times import echo, in_utc, parse_duration, parse_time

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class ToBatch:
    """Batch B is the first to run again."""

    batch: int

    def __str__(self) -> str:
        return f"--to-batch {self.batch}"


@dataclass(frozen=True)
class ShiftBy:
    """The last N committed batches again; N is negative, as in Kafka's own tools."""

    batches: int

    def __post_init__(self) -> None:
        if self.batches >= 0:
            raise UsageError(
                f"--shift-by {self.batches} does not go back.",
                "Give a negative number: --shift-by -3 runs the last 3 batches again.",
            )

    def __str__(self) -> str:
        return f"--shift-by {self.batches}"


@dataclass(frozen=True)
class _ToTime:
    flag: ClassVar[str]
    at: datetime
    zone: str = "UTC"

    @classmethod
    def parse(cls, text: str, zone: str = "UTC") -> Self:
        """From a time as typed."""
        return cls(parse_time(text, zone), zone)

    def __str__(self) -> str:
        return f"{self.flag} {in_utc(self.at)}"


@dataclass(frozen=True)
class ToDatetime(_ToTime):
    """The first batch planned at or after a time."""

    flag = "--to-datetime"


@dataclass(frozen=True)
class ToEventTime(_ToTime):
    """The first batch that reads a record of this event time or later."""

    flag = "--to-event-time"


@dataclass(frozen=True)
class ByDuration:
    """The first batch planned since so long ago."""

    ago: timedelta
    text: str
    zone: str = "UTC"

    @classmethod
    def parse(cls, text: str, zone: str = "UTC") -> ByDuration:
        """From an ISO-8601 duration."""
        return cls(parse_duration(text), text, zone)

    def __str__(self) -> str:
        return f"--by-duration {self.text}"


@dataclass(frozen=True)
class ToOffsets:
    """The latest batch from which on every record from these offsets on is read again."""

    offsets: dict[tuple[str, int], int]
    text: str

    @classmethod
    def parse(cls, text: str) -> ToOffsets:
        """From Spark's own form, `{"visits":{"0":12}}`."""
        try:
            offsets = {
                (topic, int(partition)): int(offset)
                for topic, partitions in parse_json(text).items()
                for partition, offset in partitions.items()
            }
        except (*INVALID, OverflowError):
            offsets = {}
        if not offsets or min(offsets.values()) < 0:
            raise UsageError(
                f"{text!r} names no offsets.", """Write them as '{"visits":{"0":12,"1":30}}'."""
            )
        return cls(offsets, text)

    def __str__(self) -> str:
        return f"--to-offsets '{self.text}'"


@dataclass(frozen=True)
class ToEarliest:
    """The oldest batch that can be run again."""

    def __str__(self) -> str:
        return "--to-earliest"


@dataclass(frozen=True)
class ToLatestGood:
    """The newest batch that can be run again."""

    def __str__(self) -> str:
        return "--to-latest-good"


_ByTime = ToDatetime | ByDuration | ToEventTime
Target = ToBatch | ShiftBy | _ByTime | ToOffsets | ToEarliest | ToLatestGood
FindEventTime = Callable[[Checkpoint, datetime], tuple[int, str]]
"""Reads the source's records: the first batch with one at or after a time, and what to say."""


def resolve(
    checkpoint: Checkpoint,
    target: Target,
    *,
    replan: bool = False,
    find_event_time: FindEventTime | None = None,
) -> tuple[int, str]:
    """The first batch to run again, and one line that says how it was found."""
    if not checkpoint.logs.batches:
        raise CheckpointError(
            f"{checkpoint.location} has no batch yet: its folder offsets is empty.",
            "There is nothing to rewind.",
        )
    match target:
        case ToBatch(batch):
            return _existing(checkpoint, batch), "as asked"
        case ShiftBy(batches):
            if (latest := checkpoint.logs.latest_committed) is None:
                raise CheckpointError(
                    f"No batch of {checkpoint.location} is committed.",
                    "There is nothing to rewind.",
                )
            batch = _existing(checkpoint, latest.id + batches + 1)
            last = "last batch" if batches == -1 else f"last {-batches} batches"
            return batch, f"the {last}, up to {latest.id}"
        case ToDatetime(at, zone):
            return _planned_since(checkpoint, at, zone)
        case ByDuration(ago, _, zone):
            return _planned_since(checkpoint, datetime.now(timezone.utc) - ago, zone)
        case ToOffsets():
            return _reading(checkpoint, target)
        case ToEventTime(at, zone):
            if find_event_time is None:
                raise UsageError(
                    "--to-event-time needs the name of the field that holds the event time.",
                    "Add --event-time-field NAME.",
                )
            batch, how = find_event_time(checkpoint, at)
            return batch, f"event time {echo(at, zone)}: {how}"
        case ToEarliest():
            oldest = _first_good(checkpoint, newest=False, replan=replan)
            return oldest, "the oldest batch that can run again"
        case ToLatestGood():
            newest = _first_good(checkpoint, newest=True, replan=replan)
            return newest, "the newest batch that can run again"


def _existing(checkpoint: Checkpoint, batch: int) -> int:
    ids = list(checkpoint.logs.by_id)
    if batch in ids:
        return batch
    if batch > ids[-1]:
        raise CheckpointError(
            f"Batch {batch} has not been planned yet in {checkpoint.location}.",
            f"Its batches: {ids[0]} to {ids[-1]}. Try --to-batch {ids[-1]}.",
        )
    if batch < ids[0]:
        advice = f"none of them can run again. Try: ebbtide verify {checkpoint.location}"
        if (oldest := checkpoint.oldest_restorable) is not None:
            advice = f"the oldest that can run again is {oldest}. Try --to-earliest."
        raise CheckpointError(
            f"{'There is no' if batch < 0 else 'Spark has cleaned up'} batch {batch} in "
            f"{checkpoint.location}.",
            f"Batches {ids[0]} to {ids[-1]} are there; {advice}",
        )
    near = max(id_ for id_ in ids if id_ < batch)
    raise CheckpointError(
        f"Batch {batch} has no offsets in {checkpoint.location}.",
        f"Its batches have gaps. Try --to-batch {near}.",
    )


def _planned_since(checkpoint: Checkpoint, at: datetime, zone: str) -> tuple[int, str]:
    wanted = at.timestamp() * 1000
    batches = checkpoint.logs.batches
    first, last = batches[0], batches[-1]
    if wanted > last.offsets.timestamp_ms:
        raise CheckpointError(
            f"No batch was planned at or after {echo(at, zone)}: the last, {last.id}, was planned "
            f"at {in_utc(last.offsets.timestamp_ms)}.",
            f"Try --to-batch {last.id}.",
        )
    if first.id > 0 and wanted < first.offsets.timestamp_ms:
        raise CheckpointError(
            f"The batches of {echo(at, zone)} are gone: the oldest left, {first.id}, was planned "
            f"at {in_utc(first.offsets.timestamp_ms)}.",
            "Try --to-earliest.",
        )
    batch = next(batch for batch in batches if batch.offsets.timestamp_ms >= wanted)
    planned = in_utc(batch.offsets.timestamp_ms)
    return batch.id, f"planned at {planned}, the first from {echo(at, zone)}"


def _reading(checkpoint: Checkpoint, target: ToOffsets) -> tuple[int, str]:
    last = checkpoint.logs.batches[-1]
    for key, offset in target.offsets.items():
        end = last.positions.get(key)
        if end is None:
            read = ", ".join(f"{topic} {p}" for topic, p in last.positions) or "no Kafka partition"
            raise CheckpointError(
                f"{checkpoint.location} does not read topic {key[0]} partition {key[1]}.",
                f"It reads: {read}.",
            )
        if offset >= end:
            raise CheckpointError(
                f"Offset {offset} of {key[0]} partition {key[1]} has not been read yet: "
                f"the last batch, {last.id}, ends before {end}.",
                "Name an offset before that.",
            )
    first = next(
        batch.id
        for batch in checkpoint.logs.batches
        if any(batch.positions.get(key, 0) > offset for key, offset in target.offsets.items())
    )
    if checkpoint.before(first) is None and first > 0:
        raise CheckpointError(
            f"The batch that read {target.text} is gone; the oldest left is {first}.",
            "Try --to-earliest.",
        )
    start = checkpoint.start(first)
    early = sum(max(0, offset - start.get(key, 0)) for key, offset in target.offsets.items())
    return first, f"the batch that read these offsets; it begins {early} records earlier"


def _first_good(checkpoint: Checkpoint, *, newest: bool, replan: bool) -> int:
    ids = list(checkpoint.logs.by_id)
    for batch in reversed(ids) if newest else ids:
        if all(
            check(checkpoint, batch, replan=replan).verdict != REFUSE
            for check in (checks.check_logs, checks.check_state)
        ):
            return batch
    raise CheckpointError(
        f"No batch of {checkpoint.location} can run again: "
        f"{checkpoint.restorable[ids[-1]] or 'files of the state are damaged'}.",
        f"See: ebbtide verify {checkpoint.location}",
    )
