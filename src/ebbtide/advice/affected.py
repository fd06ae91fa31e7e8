"""Find the event times whose results are wrong, as the archive shows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from ebbtide.advice import archived_records
from ebbtide.advice.archived_records import ArchivedRecords, RecordFilter, WatermarkStart
from ebbtide.advice.inputs import PipelineInputs
from ebbtide.advice.onset import Onset
from ebbtide.archive import Archive
from ebbtide.checkpoint import Checkpoint
from ebbtide.errors import EbbtideError
from ebbtide.reprocessing import EventTimeRange
from ebbtide.times import EPOCH, in_utc

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class AffectedResults:
    """The event times whose results are wrong, and how the archive and the state cover them."""

    span: EventTimeRange | None = None
    origin: str = ""
    """Where the range comes from; or, as a sentence, why there is none."""
    remedy: str = ""
    records: ArchivedRecords = archived_records.NO_RECORDS
    behind: int = 0
    """Records that the stream has read and that are not archived yet."""
    missing: int = 0
    """Records that the stream read before the archive was started."""
    cut: bool = False
    """The archive begins with these records, so windows that were open then are incomplete."""
    closed: datetime | None = None
    """Results before this are final; None if the query keeps no state or nothing is final."""
    in_state: bool = False
    """Whether wrong values are also in the state from which the stream continues."""


def find_affected(inputs: PipelineInputs, onset: Onset) -> AffectedResults:
    """The range of event time to reprocess: that of the records that the rewound batches read."""
    archive = inputs.archive
    if isinstance(archive, EbbtideError):
        return AffectedResults(
            origin=archive.problem, remedy=archive.next_step, in_state=inputs.stateful
        )
    wanted = _affected_records(inputs, onset)
    records = archived_records.find_records(archive, wanted)
    starts = wanted.starts or {}
    behind = sum(
        max(0, end - max(archive.offsets.get(p, 0), starts.get(p, 0)))
        for p, end in (wanted.ends or {}).items()
    )
    closed = _closed_until(inputs)
    span, origin, remedy = _find_span(records, behind, onset, archive, wanted)
    return AffectedResults(
        *(span, origin, remedy, records, behind),
        missing=_count_missing(archive, wanted, records),
        cut=inputs.stateful and _is_cut(inputs, archive, wanted),
        closed=closed,
        in_state=inputs.stateful and (closed is None or (records.latest or closed) >= closed),
    )


def _affected_records(inputs: PipelineInputs, onset: Onset) -> RecordFilter:
    checkpoint, ends = inputs.checkpoint, inputs.ends
    watermarks: dict[int, list[WatermarkStart]] = {}
    starts = None
    if isinstance(checkpoint, Checkpoint) and onset.batch is not None:
        watermarks = _watermarks(inputs, checkpoint, onset.batch)
        starts = inputs.of_topic(checkpoint.start(onset.batch))
    if onset.by_event_time:
        return RecordFilter(ends, event_time=onset.at, watermarks=watermarks)
    kafka_time = onset.at if starts is None else None
    return RecordFilter(ends, starts, kafka_time, watermarks=watermarks)


def _count_missing(archive: Archive, wanted: RecordFilter, records: ArchivedRecords) -> int:
    """What an archive that was started too late lacks; other gaps are the topic's own."""
    if wanted.starts is None:
        return 0
    missing = 0
    for partition, end in (wanted.ends or {}).items():
        start = wanted.starts.get(partition, 0)
        held = min(end, archive.offsets.get(partition, 0))
        first = min(held, records.first_offsets.get(partition, held))
        if first > start and not archived_records.holds_before(archive, partition, start):
            missing += first - start
    return missing


def _is_cut(inputs: PipelineInputs, archive: Archive, wanted: RecordFilter) -> bool:
    """Whether the stream had read records by then that the archive does not hold."""
    assert isinstance(inputs.checkpoint, Checkpoint)
    began = inputs.of_topic(inputs.checkpoint.first_offsets)
    return any(
        start > began.get(partition, 0)
        and not archived_records.holds_before(archive, partition, start)
        for partition, start in (wanted.starts or {}).items()
    )


def _watermarks(
    inputs: PipelineInputs, checkpoint: Checkpoint, first_batch: int
) -> dict[int, list[WatermarkStart]]:
    """By partition, which watermark applies from which offset: Spark drops by the batch before."""
    if inputs.pipeline.watermark is None or not checkpoint.operators:
        return {}
    steps = []
    for batch in checkpoint.logs.batches:
        if batch.id >= first_batch:
            before = checkpoint.before(batch.id)
            watermark = before.offsets.watermark_ms if before else 0
            steps.append((watermark, inputs.of_topic(checkpoint.start(batch.id))))
    firsts = [next(group) for _, group in groupby(steps, key=lambda step: step[0])]
    return {
        p: [WatermarkStart(starts.get(p, 0), watermark) for watermark, starts in firsts]
        for p in inputs.ends or {}
    }


def _closed_until(inputs: PipelineInputs) -> datetime | None:
    """Up to which time the stream's results are final: the watermark of its last batch."""
    if not inputs.stateful or not isinstance(inputs.checkpoint, Checkpoint):
        return None
    last = inputs.checkpoint.logs.latest_committed
    watermark = last.offsets.watermark_ms if last else 0
    return EPOCH + timedelta(milliseconds=watermark) if watermark else None


def _find_span(
    records: ArchivedRecords, behind: int, onset: Onset, archive: Archive, wanted: RecordFilter
) -> tuple[EventTimeRange | None, str, str]:
    """The range to reprocess and its origin; or the reason why there is none, and the remedy."""
    origin = "the records that the batches to replay read"
    start, latest = records.earliest, records.latest
    if onset.by_event_time:
        start, origin = onset.at, "as given, up to the newest record that the stream has read"
    elif wanted.starts is None:
        origin = "the records that reached Kafka since then, because the batches are gone"
    if start is None or latest is None:
        if wanted.expected == 0:
            return None, "The batches since then read no records.", ""
        if wanted.expected and records.records:
            problem = "None of the records read since then has an event time."
            return None, problem, "Look for them in the dead letters."
        if wanted.expected:
            problem = f"None of the {wanted.expected:,} records read since then is in the archive."
            return None, problem, "Wait until the archive has caught up." if behind else ""
        start, latest = onset.at, archive.latest
        origin = "the given time as an event time, because the archive has no record since then"
    if latest is None or start > latest:
        problem = f"The archive at {archive.path} holds no record from {in_utc(start)} on."
        return None, problem, "Wait until the archive has caught up, or name an earlier time."
    start -= (start - EPOCH) % _SECOND
    end = latest - (latest - EPOCH) % _SECOND + _SECOND
    return EventTimeRange(start, end), origin, ""
