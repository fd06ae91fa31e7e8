"""A moment in, the event times whose results are wrong since then out, as the archive tells."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from ebbtide.advice.archived_records import NOTHING, Choice, Found, Mark, find_records, holds_before
from ebbtide.advice.inputs import Scene
from ebbtide.advice.onset import Moment
from ebbtide.archive.facts import Archive
from ebbtide.checkpoint import Checkpoint
from ebbtide.errors import EbbtideError
from ebbtide.reprocess.ranges import Span
from ebbtide.times import EPOCH, in_utc

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Wrong:
    """The event times whose results are wrong, and where they stand in the stream."""

    span: Span | None
    found: str
    """Where the range comes from; or, as a sentence, why there is none."""
    remedy: str = ""
    records: Found = NOTHING
    behind: int = 0
    """So many records has the stream read that are not archived yet."""
    lacking: int = 0
    """So many were read by the stream before the archive began."""
    cut: bool = False
    """The archive begins with these records, so windows that had begun by then lack some."""
    closed: datetime | None = None
    """Results before this are final; None if the query keeps no state or nothing is final."""
    open: bool = False
    """Whether what is wrong is also in the state from which the stream goes on."""


def find_wrong(scene: Scene, moment: Moment) -> Wrong:
    """The range of event time to reprocess: that of the records which the rewound batches read."""
    archive = scene.archive
    if isinstance(archive, EbbtideError):
        return Wrong(None, archive.problem, archive.next_step, open=scene.stateful)
    choice = _choose(scene, moment)
    found = find_records(archive, choice)
    starts = choice.starts or {}
    behind = sum(
        max(0, end - max(archive.offsets.get(p, 0), starts.get(p, 0)))
        for p, end in (choice.ends or {}).items()
    )
    closed = _closed_until(scene)
    wrong = Wrong(
        None,
        "",
        records=found,
        behind=behind,
        lacking=_count_lacking(archive, choice, found),
        cut=scene.stateful and _is_cut(scene, archive, choice),
        closed=closed,
        open=scene.stateful and (closed is None or (found.latest or closed) >= closed),
    )
    return _with_span(wrong, moment, archive, choice)


def _choose(scene: Scene, moment: Moment) -> Choice:
    checkpoint, ends = scene.checkpoint, scene.ends
    marks: dict[int, list[Mark]] = {}
    starts = None
    if isinstance(checkpoint, Checkpoint) and moment.batch is not None:
        marks = _marks(scene, checkpoint, moment.batch)
        starts = scene.of_topic(checkpoint.start(moment.batch))
    if moment.by_event_time:
        return Choice(ends, event_time=moment.at, marks=marks)
    return Choice(ends, starts, kafka_time=moment.at if starts is None else None, marks=marks)


def _count_lacking(archive: Archive, choice: Choice, found: Found) -> int:
    """What an archive that was begun too late lacks; other gaps are the topic's own."""
    if choice.starts is None:
        return 0
    lacking = 0
    for partition, end in (choice.ends or {}).items():
        start = choice.starts.get(partition, 0)
        held = min(end, archive.offsets.get(partition, 0))
        first = min(held, found.first_offsets.get(partition, held))
        if first > start and not holds_before(archive, partition, start):
            lacking += first - start
    return lacking


def _is_cut(scene: Scene, archive: Archive, choice: Choice) -> bool:
    """Whether the stream had read records by then, and the archive has none of them."""
    assert isinstance(scene.checkpoint, Checkpoint)
    began = scene.of_topic(scene.checkpoint.first_offsets)
    return any(
        start > began.get(partition, 0) and not holds_before(archive, partition, start)
        for partition, start in (choice.starts or {}).items()
    )


def _marks(scene: Scene, checkpoint: Checkpoint, batch: int) -> dict[int, list[Mark]]:
    """By partition, from which offset on which watermark held: Spark drops by the batch before."""
    if scene.pipeline.watermark is None or not checkpoint.operators:
        return {}
    steps = []
    for known in checkpoint.logs.batches:
        if known.id >= batch:
            before = checkpoint.before(known.id)
            watermark = before.offsets.watermark_ms if before else 0
            steps.append((watermark, scene.of_topic(checkpoint.start(known.id))))
    firsts = [next(group) for _, group in groupby(steps, key=lambda step: step[0])]
    return {
        p: [Mark(starts.get(p, 0), watermark) for watermark, starts in firsts]
        for p in scene.ends or {}
    }


def _closed_until(scene: Scene) -> datetime | None:
    """Up to where the stream's results are final: what its last batch took as the watermark."""
    if not scene.stateful or not isinstance(scene.checkpoint, Checkpoint):
        return None
    last = scene.checkpoint.logs.latest_committed
    watermark = last.offsets.watermark_ms if last else 0
    return EPOCH + timedelta(milliseconds=watermark) if watermark else None


def _with_span(wrong: Wrong, moment: Moment, archive: Archive, choice: Choice) -> Wrong:
    records = wrong.records
    found = "the records that the batches to replay read"
    start, latest = records.earliest, records.latest
    if moment.by_event_time:
        start, found = moment.at, "as asked, up to the newest record that the stream has read"
    elif choice.starts is None:
        found = "the records that reached Kafka since then, for want of the batches"
    if start is None or latest is None:
        if choice.expected is not None:
            return _nothing(wrong, choice.expected)
        start, latest = moment.at, archive.latest
        found = "the moment as an event time, for want of records that the archive holds since then"
    if latest is None or start > latest:
        problem = f"The archive at {archive.path} holds no record from {in_utc(start)} on."
        return replace(wrong, found=problem, remedy="Let it catch up, or name an earlier time.")
    start -= (start - EPOCH) % _SECOND
    end = latest - (latest - EPOCH) % _SECOND + _SECOND
    return replace(wrong, span=Span(start, end), found=found)


def _nothing(wrong: Wrong, expected: int) -> Wrong:
    if not expected:
        return replace(wrong, found="The batches since then read no record.")
    if wrong.records.records:
        problem = "None of the records that were read since then has an event time."
        return replace(wrong, found=problem, remedy="See where they went: the dead letters.")
    problem = f"None of the {expected:,} records that were read since then is in the archive."
    return replace(wrong, found=problem, remedy="Let the archive catch up." if wrong.behind else "")
