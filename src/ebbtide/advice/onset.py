"""Find the first batch with wrong results.

Event times come from the archive, or else from the history; the rest is read from Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from ebbtide.advice.archived_records import RecordFilter, find_records
from ebbtide.advice.inputs import AdviceInputs, PipelineInputs
from ebbtide.archive import Archive
from ebbtide.checkpoint import Checkpoint
from ebbtide.errors import CheckpointError, EbbtideError, UsageError
from ebbtide.history import find_first_batch
from ebbtide.rewind import target
from ebbtide.times import echo, in_utc

_OTHERWISE = "Or leave out --event-time, and name the time at which the wrong code began to run."


@dataclass(frozen=True)
class Onset:
    """Since when results are wrong, and the first batch that wrote one."""

    at: datetime
    by_event_time: bool
    reason: str
    """How the batch was found; or, as a sentence, why it was not."""
    batch: int | None = None
    remedy: str = ""


def find_onset(
    inputs: AdviceInputs,
    at: datetime,
    *,
    by_event_time: bool,
    on_read: Callable[[int], None] = lambda _records: None,
) -> Onset:
    """The first batch at or after a time; refused if no batch ran since then."""
    checkpoint = inputs.checkpoint
    if isinstance(checkpoint, EbbtideError):
        return Onset(at, by_event_time, checkpoint.problem, remedy=checkpoint.next_step)
    if not by_event_time:
        _require_batch_since(checkpoint, at, inputs.settings.timezone)
    try:
        batch, reason = (
            _find_reader(inputs, checkpoint, at, on_read)
            if by_event_time
            else target.resolve(checkpoint, target.ToDatetime(at, inputs.settings.timezone))
        )
    except UsageError as error:  # a flag is missing: the broker to ask, or the field to look at
        return Onset(at, by_event_time, error.problem, remedy=f"{error.next_step} {_OTHERWISE}")
    except CheckpointError as error:
        remedy = _remedy(inputs, checkpoint)
        remedy += f" {_OTHERWISE}" if by_event_time else ""
        return Onset(at, by_event_time, error.problem, remedy=remedy)
    return Onset(at, by_event_time, reason, batch)


def _require_batch_since(checkpoint: Checkpoint, at: datetime, zone: str) -> None:
    last = checkpoint.logs.batches[-1] if checkpoint.logs.batches else None
    if last is not None and at.timestamp() * 1000 > last.offsets.timestamp_ms:
        raise CheckpointError(
            f"No batch was planned at or after {echo(at, zone)}: the last, {last.id}, was planned "
            f"at {in_utc(last.offsets.timestamp_ms)}. No result can be wrong since then.",
            "Name an earlier time with --since, or add --event-time if it is an event time.",
        )


def _find_reader(
    inputs: AdviceInputs, checkpoint: Checkpoint, at: datetime, on_read: Callable[[int], None]
) -> tuple[int, str]:
    """The first batch that read a record with this event time or a later one."""
    if isinstance(inputs, PipelineInputs) and (archive := _find_complete_archive(inputs)):
        return _find_in_archive(inputs, archive, checkpoint, at)
    zone = inputs.settings.timezone
    return target.resolve(
        checkpoint,
        target.ToEventTime(at, zone),
        find_event_time=partial(
            find_first_batch,
            field=inputs.event_time_field,
            connection=inputs.connection,
            zone=zone,
            on_read=on_read,
        ),
    )


def _find_complete_archive(inputs: PipelineInputs) -> Archive | None:
    """The archive, if it holds all that the stream has read."""
    archive, ends = inputs.archive, inputs.ends or {}
    if isinstance(archive, EbbtideError):
        return None
    return archive if all(archive.offsets.get(p, 0) >= end for p, end in ends.items()) else None


def _find_in_archive(
    inputs: PipelineInputs, archive: Archive, checkpoint: Checkpoint, at: datetime
) -> tuple[int, str]:
    zone, topic = inputs.settings.timezone, getattr(inputs.pipeline.source, "topic", "")
    wanted = RecordFilter(ends=inputs.ends, event_time=at)
    offsets = find_records(archive, wanted).first_offsets
    if not offsets:
        raise EbbtideError(
            f"The stream has read no record with an event time from {echo(at, zone)} on.",
            "Name an earlier time with --since, or leave out --event-time.",
        )
    first = {(topic, partition): offset for partition, offset in offsets.items()}
    batch, _ = target.resolve(checkpoint, target.ToOffsets(first, "it first"))
    return batch, f"the first that read an event time from {echo(at, zone)} on"


def _remedy(inputs: AdviceInputs, checkpoint: Checkpoint) -> str:
    oldest = checkpoint.oldest_restorable
    if oldest is None:
        return f"Type: ebbtide verify {inputs.location}"
    return f"The oldest batch that can run again is {oldest}."
