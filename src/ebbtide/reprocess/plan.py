"""A pipeline and a range in, all that reprocessing it would do out: steps 1 to 4, nothing changed.

**1** widen to whole windows and needed look-back, said aloud; **2** pin the archive's version and
its highest offsets, and say what of the range has not arrived in the archive yet; **3** prune by
partition, so that cost follows the range; **4** cut into chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import functions as F  # noqa: N812

from ebbtide.archive.facts import Archive, Cost
from ebbtide.archive.layout import archive_of
from ebbtide.checkpoint import log_files, read_logs
from ebbtide.checks import OK, REFUSE, WARN, Check, CheckKind
from ebbtide.connectors import OutputPosition, connector_of
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.kafka.spark import read_range
from ebbtide.errors import BrokerError, EbbtideError
from ebbtide.pipeline import Kafka
from ebbtide.reprocess.journal import Run, new_run_id
from ebbtide.reprocess.logic import Logic
from ebbtide.reprocess.ranges import (
    Chunk,
    Shape,
    Span,
    cut,
    needed_input,
    say_length,
    whole_results,
)
from ebbtide.storage import open_folder
from ebbtide.times import EPOCH, in_utc


@dataclass(frozen=True)
class Request:
    """What was asked: the flags of `ebbtide reprocess`."""

    reference: str
    asked: Span
    chunk: timedelta | None = None
    only_changed: bool = False
    max_active: int = 1
    backwards: bool = False
    servers: str | None = None
    """Kafka's address, if one was named: a retry must not go to another."""


@dataclass(frozen=True)
class Plan:
    """All that a reprocess would do."""

    pipeline: str
    request: Request
    zone: str
    shape: Shape
    owned: Span
    """The results that begin in it are made anew."""
    reads: Span
    """The event times that they are made of."""
    archive: Archive
    cost: Cost
    records: int
    """Archived records in what is read."""
    output: str
    position: OutputPosition
    chunks: tuple[Chunk, ...]
    checks: tuple[Check, ...]

    @property
    def refusal(self) -> Check | None:
        """The first reason not to do it."""
        return next((check for check in self.checks if check.verdict == REFUSE), None)

    def require(self) -> None:
        """Raise the first reason not to do it."""
        if (check := self.refusal) is not None:
            raise EbbtideError(f"{check.detail[:1].upper()}{check.detail[1:]}.", check.next)

    def begin(self) -> Run:
        """A run of this plan, with all that must not drift."""
        return Run(
            id=new_run_id(self.pipeline),
            pipeline=self.pipeline,
            reference=self.request.reference,
            zone=self.zone,
            asked=self.request.asked,
            owned=self.owned,
            chunks=self.chunks,
            archive_version=self.archive.version,
            shape=self.shape.describe(),
            position=self.position,
            only_changed=self.request.only_changed,
            max_active=self.request.max_active,
            backwards=self.request.backwards,
            servers=self.request.servers,
        )

    def to_dict(self) -> dict[str, Any]:
        """As `-o json` shows it."""
        return {
            "pipeline": self.pipeline,
            "timezone": self.zone,
            "asked": _pair(self.request.asked),
            "results": _pair(self.owned),
            "reads": _pair(self.reads),
            "shape": self.shape.describe(),
            "archive": {
                "path": self.archive.path,
                "version": self.archive.version,
                "offsets": self.archive.offsets,
                "files": self.archive.files,
                "bytes": self.archive.bytes,
            },
            "cost": {
                "files": self.cost.files,
                "bytes": self.cost.bytes,
                "records": self.records,
            },
            "output": self.output,
            "chunks": [{"number": c.number, **_pair(c.owns)} for c in self.chunks],
            "checks": [check.to_dict() for check in self.checks],
        }


def plan_reprocess(logic: Logic, request: Request) -> Plan:
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
    return Plan(
        pipeline=logic.pipeline.name,
        request=request,
        zone=logic.settings.timezone,
        shape=logic.shape,
        owned=owned,
        reads=whole.reads,
        archive=logic.archive,
        cost=cost,
        records=records,
        output=sink.format_output(pipeline.sink, logic.settings),
        position=position,
        chunks=tuple(chunks),
        checks=checks,
    )


def _pair(span: Span) -> dict[str, str]:
    return {"start": in_utc(span.start), "end": in_utc(span.end)}


def _check_range(asked: Span, owned: Span, reads: Span, shape: Shape) -> Check:
    what = shape.describe()
    if shape.kind == "session":
        back, ahead = owned.start - reads.start, reads.end - owned.end
        detail = (
            f"{what}: looks back {say_length(back)} and ahead {say_length(ahead)}, so reads {reads}"
        )
        return Check(CheckKind.RANGE, OK, detail)
    if owned == asked:
        return Check(CheckKind.RANGE, OK, f"{what}: {asked} cuts none")
    return Check(CheckKind.RANGE, WARN, f"{what}: {asked} cuts one, so it is widened to {reads}")


def _check_archive(archive: Archive, reads: Span, records: int) -> Check:
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


def _check_arrived(logic: Logic, reads: Span) -> Check:
    """What of the range is in the topic, and not in the archive yet."""
    source, _ = archive_of(logic.pipeline)
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
    logic: Logic, source: Kafka, start: dict[int, int], end: dict[int, int], reads: Span
) -> int:
    raw = read_range(logic.spark, source, logic.settings, start, end)
    time = F.col(f"`{logic.pipeline.event_time}`")
    rows = logic.decoder.decode(raw, "arriving")
    return rows.where((time >= F.lit(reads.start)) & (time < F.lit(reads.end))).count()


def _check_live(logic: Logic, owned: Span, reads: Span, at: OutputPosition) -> Check:
    """Whether the stream may still write results of the range itself."""
    batch = _last_batch(logic)
    found = _check_open(logic, owned, reads, batch)
    if found.verdict != OK or batch is not None or at.version is None:
        return found
    detail = "its checkpoint is not in the home, so nobody knows what it has yet to write"
    return Check(found.kind, WARN, f"{detail}; in a table that would be there twice")


def _check_open(logic: Logic, owned: Span, reads: Span, batch: log_files.Batch | None) -> Check:
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
