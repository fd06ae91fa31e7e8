"""Plan a reprocess (steps 1 to 4): read everything that it depends on, and change nothing.

**1** widen to whole windows and needed look-back, said aloud; **2** pin the archive's version and
its highest offsets, and say what of the range has not arrived in the archive yet; **3** prune by
partition, so that cost follows the range; **4** cut into chunks.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from pyspark.sql import functions as F  # noqa: N812

from ebbtide.archive import Archive
from ebbtide.checkpoint import log_files, read_logs
from ebbtide.checks import OK, REFUSE, WARN, Check, CheckKind
from ebbtide.connectors import connector_of, streams
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.kafka import spark as kafka_spark
from ebbtide.errors import BrokerError, EbbtideError
from ebbtide.pipeline import Kafka
from ebbtide.reprocessing.logic import Logic
from ebbtide.reprocessing.ranges import (
    Chunk,
    EventTimeRange,
    Shape,
    cut,
    format_length,
    needed_input,
    whole_results,
)
from ebbtide.reprocessing.request import ReprocessPlan, ReprocessRequest
from ebbtide.storage import open_folder
from ebbtide.times import EPOCH, in_utc


def plan_reprocess(logic: Logic, request: ReprocessRequest) -> ReprocessPlan:
    """Plan a reprocess: reads, changes nothing."""
    # 1
    owned = whole_results(request.asked, logic.shape)
    whole = logic.reach(Chunk(1, owned, needed_input(owned, logic.shape)))
    # 2
    pipeline, sink = logic.pipeline, connector_of(logic.pipeline.sink).sink
    position = sink.position(pipeline, logic.settings)
    records = logic.raw(whole.reads).count()
    checks = (
        _check_range(request.asked, owned, whole.reads, logic.shape),
        _check_archive(logic.archive, whole.reads, records),
        _check_arrived(logic, whole.reads),
        _check_live(logic, owned, whole.reads, position),
        sink.check_reprocess(pipeline.sink, pipeline, dated=logic.shape.start is not None),
        _check_comparison(logic, only_changed=request.only_changed),
    )
    # 3
    cost = logic.archive.cost(whole.reads.start, whole.reads.end)
    # 4
    chunks = cut(owned, logic.shape, request.chunk)
    return ReprocessPlan(
        pipeline=logic.pipeline.name,
        request=request,
        zone=logic.settings.timezone,
        shape=logic.shape,
        owned=owned,
        reads=whole.reads,
        archive=replace(logic.archive, contents=()),  # its files may be many
        cost=cost,
        records=records,
        output=sink.format_output(pipeline.sink, logic.settings),
        position=position,
        chunks=tuple(chunks),
        checks=checks,
    )


def _check_range(
    asked: EventTimeRange, owned: EventTimeRange, reads: EventTimeRange, shape: Shape
) -> Check:
    what = shape.describe()
    if shape.kind == "session":
        back, ahead = owned.start - reads.start, reads.end - owned.end
        looks = f"looks back {format_length(back)} and ahead {format_length(ahead)}"
        return Check(CheckKind.RANGE, OK, f"{what}: {looks}, so reads {reads}")
    if owned == asked:
        return Check(CheckKind.RANGE, OK, f"{what}: {asked} cuts none")
    return Check(CheckKind.RANGE, WARN, f"{what}: {asked} cuts one, so it is widened to {reads}")


def _check_archive(archive: Archive, reads: EventTimeRange, records: int) -> Check:
    if records:
        detail = f"version {archive.version} holds {records:,} records of the range"
        return Check(CheckKind.ARCHIVE, OK, detail)
    if archive.earliest is None or archive.latest is None:
        covers = "it holds no record with an event time"
    else:
        covers = f"it covers {in_utc(archive.earliest)} to {in_utc(archive.latest)}"
    return Check(
        CheckKind.ARCHIVE,
        REFUSE,
        f"the archive at {archive.path} holds no record in {reads}; {covers}",
        "Check the range and its zone, or let the archive catch up.",
    )


def _check_arrived(logic: Logic, reads: EventTimeRange) -> Check:
    """What of the range is in the topic, and not in the archive yet."""
    source = cast(Kafka, logic.pipeline.source)  # nothing else is archived
    try:
        retained = broker.retained_offsets(logic.settings.kafka, source.topic)
    except BrokerError as error:
        return Check(
            CheckKind.ARRIVED, WARN, f"nobody knows whether records are missing: {error.problem}"
        )
    held = logic.archive.offsets
    lost = sum(max(0, first - held.get(p, 0)) for p, (first, _) in retained.items())
    start = {p: max(held.get(p, 0), first) for p, (first, _) in retained.items()}
    end = {p: last for p, (_, last) in retained.items() if last > start[p]}
    behind = sum(end[p] - start[p] for p in end)
    missing = _missing(logic, source, start, end, reads) if end else 0
    if missing:
        return Check(
            CheckKind.ARRIVED,
            REFUSE,
            f"{missing:,} records of the range are in topic {source.topic} and not yet archived",
            f"Wait for the archive, or type: ebbtide archive {logic.pipeline.name} --available-now",
        )
    if lost:
        detail = f"{lost:,} records left topic {source.topic} before they were archived"
        return Check(CheckKind.ARRIVED, WARN, f"{detail}; nobody knows whether the range had any")
    if behind:
        return Check(
            CheckKind.ARRIVED, OK, f"the archive is {behind:,} records behind, none of the range"
        )
    return Check(CheckKind.ARRIVED, OK, f"the archive holds all of topic {source.topic}")


def _missing(
    logic: Logic, source: Kafka, start: dict[int, int], end: dict[int, int], reads: EventTimeRange
) -> int:
    raw = kafka_spark.read_range(logic.spark, source, logic.settings, start, end)
    time = F.col(f"`{logic.pipeline.event_time}`")
    rows = logic.decoder.decode(raw, "arriving")
    return rows.where((time >= F.lit(reads.start)) & (time < F.lit(reads.end))).count()


def _check_live(
    logic: Logic, owned: EventTimeRange, reads: EventTimeRange, at: streams.OutputPosition
) -> Check:
    """Whether the stream may still write results of the range itself."""
    batch = _last_batch(logic)
    found = _check_open(logic, owned, reads, batch)
    if found.verdict != OK or batch is not None or at.version is None:
        return found
    detail = "its checkpoint is not in the home, so nobody knows what it has yet to write"
    return Check(found.kind, WARN, f"{detail}; in a table that would be there twice")


def _check_open(
    logic: Logic, owned: EventTimeRange, reads: EventTimeRange, batch: log_files.Batch | None
) -> Check:
    shape, is_replaced = logic.shape, connector_of(logic.pipeline.sink).sink.is_replaced
    kind = CheckKind.LIVE_STREAM
    if shape.kind == "stateless":
        behind = _unread(logic, batch)
        if not behind or not is_replaced:
            return Check(kind, OK, "what it has written stays; it goes on beside this")
        return Check(
            kind,
            REFUSE,
            f"the stream has yet to read {behind:,} records that the archive holds, and would "
            "write those of the range a second time",
            "Wait until it has caught up.",
        )
    closed = _watermark(logic, batch)
    # a session that begins in the range may end long after it, and all of it was read
    last_end = reads.end if shape.kind == "session" else owned.end - shape.slide + shape.size
    if closed is not None and last_end <= closed:
        return Check(kind, OK, f"every result of the range is closed (watermark {in_utc(closed)})")
    since = "has no watermark" if closed is None else f"has its watermark at {in_utc(closed)}"
    detail = f"the stream {since}, so it may still write results of the range"
    if is_replaced:
        return Check(kind, REFUSE, f"{detail} a second time", "End the range before that.")
    if logic.pipeline.sessions is not None:
        detail = f"the stream {since}, so sessions of the range may not have ended"
        return Check(kind, REFUSE, detail, "End the range before that.")
    return Check(kind, WARN, f"{detail}; the last one written counts")


def _last_batch(logic: Logic) -> log_files.Batch | None:
    """The last committed batch of the stream, if its checkpoint is where it is by default."""
    folder = logic.settings.checkpoint(logic.pipeline.name)
    if not (folder / "metadata").is_file():
        return None
    try:
        return read_logs(open_folder(str(folder))).latest_committed
    except EbbtideError:
        return None


def _unread(logic: Logic, batch: log_files.Batch | None) -> int:
    if batch is None:
        return 0
    read = {p: offset for (_, p), offset in batch.positions.items()}
    return sum(max(0, end - read.get(p, 0)) for p, end in logic.archive.offsets.items())


def _watermark(logic: Logic, batch: log_files.Batch | None) -> datetime | None:
    """Up to where results are final: by the stream's own log, else by the newest archived event."""
    if logic.pipeline.watermark is None:
        return None
    if batch is not None:
        return EPOCH + timedelta(milliseconds=batch.offsets.watermark_ms)
    if logic.archive.latest is None:
        return None
    newest = (logic.archive.latest - EPOCH) // timedelta(microseconds=1)
    delayed = f"timestamp_micros({newest}) - INTERVAL '{logic.pipeline.watermark}'"
    found = logic.spark.sql(f"SELECT unix_micros({delayed}) AS closed").collect()[0]
    return EPOCH + timedelta(microseconds=int(found["closed"]))


def _check_comparison(logic: Logic, *, only_changed: bool) -> Check:
    """Whether a result can be told from one of another time that reads the same."""
    shape = logic.shape
    if shape.start is not None:
        return Check(CheckKind.COMPARISON, OK, "by what names a result")
    detail = "the results do not say when they begin, so they are compared with all that is held"
    if not only_changed:
        return Check(CheckKind.COMPARISON, WARN, f"{detail}, and nobody can tell what is gone")
    return Check(CheckKind.COMPARISON, REFUSE, detail, "Leave out --only-changed.")
