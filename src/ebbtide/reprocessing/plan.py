"""Plan a reprocess (steps 1 to 4): read everything that it depends on, and change nothing.

**1** widen the range to whole windows and add the look-back that they need; **2** pin the archive's
version, and check what of the range has not been archived yet; **3** prune by partition, so that
the cost depends on the range; **4** cut the range into chunks.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from pyspark.sql import functions as F  # noqa: N812

from ebbtide.archive import Archive
from ebbtide.checkpoint import log_files, read_logs
from ebbtide.checks import OK, Check, CheckKind
from ebbtide.connectors import connector_of, streams
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.kafka import spark as kafka_spark
from ebbtide.errors import BrokerError, EbbtideError
from ebbtide.pipeline import Kafka
from ebbtide.reprocessing import ranges
from ebbtide.reprocessing.logic import Logic
from ebbtide.reprocessing.ranges import EventTimeRange
from ebbtide.reprocessing.request import ReprocessPlan, ReprocessRequest
from ebbtide.storage import open_folder
from ebbtide.times import EPOCH, in_utc


def plan_reprocess(logic: Logic, request: ReprocessRequest) -> ReprocessPlan:
    """Plan a reprocess: reads, changes nothing."""
    # 1
    owned = ranges.whole_results(request.asked, logic.shape)
    whole = ranges.Chunk(1, owned, ranges.needed_input(owned, logic.shape))
    reads = logic.reach(whole).reads
    # 2
    pipeline, sink = logic.pipeline, connector_of(logic.pipeline.sink).sink
    position = sink.position(pipeline, logic.settings)
    records = logic.raw(reads).count()
    checks = (
        _check_range(request.asked, owned, reads, logic.shape),
        _check_archive(logic.archive, reads, records),
        _check_arrived(logic, reads),
        _check_live(logic, owned, reads, position),
        _check_output(logic),
        _check_comparison(logic.shape, only_changed=request.only_changed),
    )
    return ReprocessPlan(
        pipeline=pipeline.name,
        request=request,
        zone=logic.settings.timezone,
        shape=logic.shape,
        owned=owned,
        reads=reads,
        archive=replace(logic.archive, contents=()),  # its files may be many
        cost=logic.archive.cost(reads.start, reads.end),  # 3
        records=records,
        output=sink.format_output(pipeline.sink, logic.settings),
        position=position,
        chunks=tuple(ranges.cut(owned, logic.shape, request.chunk)),  # 4
        checks=checks,
    )


def _check_range(
    asked: EventTimeRange, owned: EventTimeRange, reads: EventTimeRange, shape: ranges.Shape
) -> Check:
    check, what = CheckKind.RANGE, shape.describe()
    if shape.kind == "session":
        back, ahead = map(ranges.format_length, (owned.start - reads.start, reads.end - owned.end))
        return check.ok(f"{what}: looks back {back} and ahead {ahead}, so reads {reads}")
    if owned == asked:
        return check.ok(f"{what}: {asked} cuts none")
    return check.warn(f"{what}: {asked} cuts one, so it is widened to {reads}")


def _check_archive(archive: Archive, reads: EventTimeRange, records: int) -> Check:
    check = CheckKind.ARCHIVE
    if records:
        return check.ok(f"version {archive.version} holds {records:,} records of the range")
    covers = "it holds no record with an event time"
    if archive.earliest is not None and archive.latest is not None:
        covers = f"it covers {in_utc(archive.earliest)} to {in_utc(archive.latest)}"
    return check.refuse(
        f"the archive at {archive.path} holds no record in {reads}; {covers}",
        "Check the range and its zone, or let the archive catch up.",
    )


def _check_arrived(logic: Logic, reads: EventTimeRange) -> Check:
    """Whether records of the range are in the topic, but not in the archive yet."""
    check = CheckKind.ARRIVED
    source = cast(Kafka, logic.pipeline.source)  # nothing else is archived
    try:
        connection = logic.settings.connect(source.connection)
        retained = broker.retained_offsets(connection, source.topic)
    except BrokerError as error:
        return check.warn(f"cannot tell whether records are missing: {error.problem}")
    held = logic.archive.offsets
    lost = sum(max(0, first - held.get(p, 0)) for p, (first, _) in retained.items())
    start = {p: max(held.get(p, 0), first) for p, (first, _) in retained.items()}
    end = {p: last for p, (_, last) in retained.items() if last > start[p]}
    if end and (missing := _count_missing(logic, source, start, end, reads)):
        return check.refuse(
            f"{missing:,} records of the range are in topic {source.topic} and not yet archived",
            f"Wait for the archive, or type: ebbtide archive {logic.pipeline.name} --available-now",
        )
    if lost:
        detail = f"{lost:,} records left topic {source.topic} before they were archived"
        return check.warn(f"{detail}; some may belong to the range")
    if behind := sum(end[p] - start[p] for p in end):
        return check.ok(f"the archive is {behind:,} records behind, none of the range")
    return check.ok(f"the archive holds all of topic {source.topic}")


def _count_missing(
    logic: Logic, source: Kafka, start: dict[int, int], end: dict[int, int], reads: EventTimeRange
) -> int:
    raw = kafka_spark.read_range(logic.spark, source, logic.settings, start, end)
    time = F.col(f"`{logic.pipeline.event_time}`")
    rows = logic.decoder.decode(raw, "arriving")
    return rows.where((time >= F.lit(reads.start)) & (time < F.lit(reads.end))).count()


def _check_live(
    logic: Logic, owned: EventTimeRange, reads: EventTimeRange, position: streams.OutputPosition
) -> Check:
    """Whether the stream may still write results of the range itself."""
    batch = _last_batch(logic)
    check = _check_open(logic, owned, reads, batch)
    if check.verdict != OK or batch is not None or position.version is None:
        return check
    detail = "its checkpoint is not in the home, so what it will still write is unknown"
    return check.kind.warn(f"{detail}; a table would then hold it twice")


def _check_open(
    logic: Logic, owned: EventTimeRange, reads: EventTimeRange, batch: log_files.Batch | None
) -> Check:
    shape, is_replaced = logic.shape, connector_of(logic.pipeline.sink).sink.is_replaced
    check = CheckKind.LIVE_STREAM
    if shape.kind == "stateless":
        unread = _count_unread(logic, batch)
        if not unread or not is_replaced:
            return check.ok("what it has written stays, and it keeps running")
        return check.refuse(
            f"the stream has yet to read {unread:,} records that the archive holds, and would "
            "write those of the range a second time",
            "Wait until it has caught up.",
        )
    closed = _watermark(logic, batch)
    # a session that begins in the range may end long after it, and all of it was read
    last_end = reads.end if shape.kind == "session" else owned.end - shape.slide + shape.size
    if closed is not None and last_end <= closed:
        return check.ok(f"every result of the range is closed (watermark {in_utc(closed)})")
    since = "has no watermark" if closed is None else f"has its watermark at {in_utc(closed)}"
    detail = f"the stream {since}, so it may still write results of the range"
    if is_replaced:
        return check.refuse(f"{detail} a second time", "End the range before that.")
    if logic.pipeline.sessions is not None:
        detail = f"the stream {since}, so sessions of the range may not have ended"
        return check.refuse(detail, "End the range before that.")
    return check.warn(f"{detail}; the last one written counts")


def _last_batch(logic: Logic) -> log_files.Batch | None:
    """The last committed batch of the stream, if its checkpoint is at the default location."""
    folder = open_folder(logic.settings.location("checkpoints", logic.pipeline.name))
    try:
        logs = read_logs(folder) if folder.exists("metadata") else None
    except EbbtideError:
        return None
    return None if logs is None else logs.latest_committed


def _count_unread(logic: Logic, batch: log_files.Batch | None) -> int:
    if batch is None:
        return 0
    read = {p: offset for (_, p), offset in batch.positions.items()}
    return sum(max(0, end - read.get(p, 0)) for p, end in logic.archive.offsets.items())


def _watermark(logic: Logic, batch: log_files.Batch | None) -> datetime | None:
    """The time before which results are final, by the stream's log or the newest archived event."""
    if logic.pipeline.watermark is None:
        return None
    if batch is not None:
        return EPOCH + timedelta(milliseconds=batch.offsets.watermark_ms)
    if logic.archive.latest is None:
        return None
    newest = (logic.archive.latest - EPOCH) // timedelta(microseconds=1)
    delayed = f"timestamp_micros({newest}) - INTERVAL '{logic.pipeline.watermark}'"
    (row,) = logic.spark.sql(f"SELECT unix_micros({delayed}) AS closed").collect()
    return EPOCH + timedelta(microseconds=int(row["closed"]))


def _check_output(logic: Logic) -> Check:
    pipeline, connector = logic.pipeline, connector_of(logic.pipeline.sink)
    opened = connector.open_sink(pipeline.sink, logic.settings)
    return opened.check_writers(logic.spark) or connector.sink.check_reprocess(
        pipeline.sink, pipeline, dated=logic.shape.start is not None
    )


def _check_comparison(shape: ranges.Shape, *, only_changed: bool) -> Check:
    """Whether a result can be told from an equal one of another time."""
    check = CheckKind.COMPARISON
    if shape.start is not None:
        return check.ok("by the columns that identify a result")
    detail = "the results do not say when they begin, so they are compared with all that is held"
    if not only_changed:
        return check.warn(f"{detail}, and results that are gone cannot be found")
    return check.refuse(detail, "Leave out --only-changed.")
