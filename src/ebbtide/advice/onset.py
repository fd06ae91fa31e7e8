"""A moment in, the first batch from it on out.

The archive tells event times, or else the history; what neither knows is read from Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ebbtide.advice.archived_records import Choice, find_records
from ebbtide.advice.inputs import Scene
from ebbtide.archive.facts import Archive
from ebbtide.checkpoint import Checkpoint
from ebbtide.errors import CheckpointError, EbbtideError, UsageError
from ebbtide.history.event_times import find_first_batch
from ebbtide.rewind import target
from ebbtide.times import echo, in_utc


@dataclass(frozen=True)
class Moment:
    """Since when results are wrong, and the first batch that made one."""

    at: datetime
    by_event_time: bool
    found: str
    """How it was found; or, as a sentence, why it was not."""
    batch: int | None = None
    remedy: str = ""


def find_moment(
    scene: Scene,
    at: datetime,
    *,
    by_event_time: bool,
    on_read: Callable[[int], None] = lambda _records: None,
) -> Moment:
    """The first batch from a moment on; refused if nothing has happened since then."""
    checkpoint = scene.checkpoint
    if isinstance(checkpoint, EbbtideError):
        return Moment(at, by_event_time, checkpoint.problem, remedy=checkpoint.next_step)
    if not by_event_time:
        _require_batch_since(checkpoint, at, scene.settings.timezone)
    try:
        batch, found = (
            _reading(scene, checkpoint, at, on_read)
            if by_event_time
            else target.resolve(checkpoint, target.ToDatetime(at, scene.settings.timezone))
        )
    except (CheckpointError, UsageError) as error:  # of the latter: no broker can be asked
        return Moment(at, by_event_time, error.problem, remedy=_remedy(scene, checkpoint))
    return Moment(at, by_event_time, found, batch)


def _require_batch_since(checkpoint: Checkpoint, at: datetime, zone: str) -> None:
    last = checkpoint.logs.batches[-1] if checkpoint.logs.batches else None
    if last is not None and at.timestamp() * 1000 > last.offsets.timestamp_ms:
        raise CheckpointError(
            f"No batch was planned at or after {echo(at, zone)}: the last, {last.id}, was planned "
            f"at {in_utc(last.offsets.timestamp_ms)}. So no result can be wrong since then.",
            "Name an earlier time with --since, or add --event-time if it is an event time.",
        )


def _reading(
    scene: Scene, checkpoint: Checkpoint, at: datetime, on_read: Callable[[int], None]
) -> tuple[int, str]:
    """The first batch that read a record of this event time or later."""
    zone, topic = scene.settings.timezone, getattr(scene.pipeline.source, "topic", "")
    if isinstance(scene.archive, Archive) and _holds_all(scene.archive, scene.ends or {}):
        chosen = Choice(ends=scene.ends, event_time=at)
        offsets = find_records(scene.archive, chosen).first_offsets
        if not offsets:
            raise EbbtideError(
                f"No record that the stream has read has an event time from {echo(at, zone)} on.",
                "Name an earlier time with --since, or leave out --event-time.",
            )
        first = {(topic, partition): offset for partition, offset in offsets.items()}
        batch, _ = target.resolve(checkpoint, target.ToOffsets(first, "it first"))
        return batch, f"the first that read an event time from {echo(at, zone)} on"
    return target.resolve(
        checkpoint,
        target.ToEventTime(at, zone),
        find_event_time=lambda found, since: find_first_batch(
            found,
            since,
            field=scene.pipeline.event_time,
            connection=scene.broker.connection,
            zone=zone,
            on_read=on_read,
        ),
    )


def _holds_all(archive: Archive, ends: dict[int, int]) -> bool:
    return all(archive.offsets.get(p, 0) >= end for p, end in ends.items())


def _remedy(scene: Scene, checkpoint: Checkpoint) -> str:
    oldest = checkpoint.oldest_restorable
    if oldest is None:
        return f"See: ebbtide verify {scene.location}"
    return f"The oldest batch that can run again is {oldest}."
