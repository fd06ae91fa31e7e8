"""Test a pipeline on real Spark without a broker.

`Rehearsal` runs a pipeline as the stream that it is, over rows that a test feeds, through moved
watermarks, crashes and rewinds; `run_batch` runs it as a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

from ebbtide.checkpoint import Owner, layout, log_files
from ebbtide.config import Settings, load_settings
from ebbtide.errors import UsageError, explain_import
from ebbtide.notes import write_note
from ebbtide.pipeline import Pipeline
from ebbtide.storage import open_folder
from ebbtide.times import EPOCH, parse_time

try:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, StreamingQueryException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType
except ImportError as error:
    raise explain_import(error, "Testing a pipeline") from None

from ebbtide.connectors import connector_of
from ebbtide.runtime import session as sessions

Record = Mapping[str, Any] | bytes
"""A row as its fields, or the bytes of a message as in the topic."""
Moment = Literal["before write", "after write"]

_QUICK = {
    # for a short-lived JVM: less compiling
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
}


class Crash(Exception):  # noqa: N818 - it was requested, so it is not an error
    """The crash that `Rehearsal.crash` requested."""


@dataclass(frozen=True)
class RehearsedBatch:
    """One batch that ran.

    >>> RehearsedBatch(0, [{"page": "home", "count": 2}]).watermark is None
    True
    """

    id: int
    rows: list[dict[str, Any]]
    """The rows that it wrote, in Spark's order; times are in the session's zone (default UTC)."""
    watermark: datetime | None = None
    """The watermark with which it ran, in UTC; None before there is one."""


@contextmanager
def local_session(home: Path, *, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A real session, small and quick, in UTC, closed at the end; its log is in `home`/logs."""
    settings = Settings(home=home)
    with sessions.open_session(
        "tests", settings, master="local[2]", wanted=_QUICK, conf=conf
    ) as spark:
        yield spark


def run_batch(
    pipeline: Pipeline, spark: SparkSession, rows: Sequence[Record]
) -> list[dict[str, Any]]:
    """The results of the same pipeline over the rows as a plain batch query."""
    # an Arrow table, as a list of rows would start a Python worker
    raw = spark.createDataFrame(_to_table(rows))
    with _settings(spark, pipeline.conf):
        return _collect(pipeline.query(_decode(spark, pipeline, raw)))


class Rehearsal:
    """A pipeline as a real stream over a folder of input files, with a real checkpoint.

    `feed` replaces the source's topic, table or folder, and `batches` replaces the sink; the
    function of a `ForeachBatch` sink is called, too. Everything else is as in production: Spark's
    engine, the state, the watermark, broken records that are left out.

    A second rehearsal in the same folder continues where the first one stopped, such as one of the
    fixed pipeline after a rewind of `checkpoint`. Processing-time timers are not supported: Spark
    runs batches for them without end.

    ::

        with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
            rehearsal.feed({"page": "home", "event_time": "2025-09-04T07:00:00"})
            [*_, last] = rehearsal.move_watermark("2025-09-04T09:00:00")
            assert last.rows == [{"page": "home", "count": 1}]
    """

    def __init__(self, pipeline: Pipeline, spark: SparkSession, folder: Path) -> None:
        self.pipeline = pipeline
        self.batches: list[RehearsedBatch] = []
        """Every batch in the order of writing; one that ran twice is listed twice."""
        self.checkpoint = folder.absolute() / "checkpoint"
        self._spark = spark
        self._input = folder.absolute() / "input"
        self._clock = folder.absolute() / "clock"
        for place in (self._input, self._clock):
            place.mkdir(parents=True, exist_ok=True)
        self._query: StreamingQuery | None = None
        self._crash: Moment | None = None
        self._raised: Exception | None = None

    def __enter__(self) -> Rehearsal:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def feed(self, *rows: Record) -> list[RehearsedBatch]:
        """Let rows arrive as one batch, and run until all are processed.

        That includes the empty batch that follows when the watermark has moved. Fields are as in
        JSON; a datetime works too, in the session's time zone if it has none.
        """
        _add_file(self._input, _to_table(rows))
        return self.resume()

    def move_watermark(self, to: datetime | str) -> list[RehearsedBatch]:
        """Move the watermark: windows close and timers fire, but no row reaches the transform."""
        if not _has_watermark(self.pipeline):
            raise UsageError(
                f"Pipeline {self.pipeline.name} has no watermark that could move.",
                'Give it one, such as watermark="10 minutes".',
            )
        at = parse_time(to if isinstance(to, str) else to.isoformat(), _zone(self._spark))
        _add_file(self._clock, pa.table({"time": pa.array([at], pa.timestamp("us", "UTC"))}))
        return self.resume()

    def crash(self, when: Moment) -> None:
        """Let the next batch that has anything to write fail, before or after it has done so.

        `feed` then raises `Crash`. The next `feed` or `resume` starts again from the checkpoint,
        and the batch runs again, whole and under the same number.
        """
        if when not in ("before write", "after write"):
            raise UsageError(f"There is no crash {when!r}.", "Use before write or after write.")
        self._crash = when

    def resume(self) -> list[RehearsedBatch]:
        """Start the stream if it is stopped, and run what is pending."""
        before = len(self.batches)
        self._raised = None
        try:
            if self._query is None or not self._query.isActive:
                self._query = self._start()
            self._query.processAllAvailable()
        except StreamingQueryException:
            self._query = None
            if self._raised is not None:
                raise self._raised from None
            raise
        return self.batches[before:]

    def stop(self) -> None:
        """Stop normally; the next `feed` starts again from the checkpoint."""
        if self._query is not None:
            self._query.stop()
            self._query = None

    def _start(self) -> StreamingQuery:
        conf = dict(self.pipeline.conf)
        if _has_watermark(self.pipeline):
            # so that the clock alone can move the watermark
            conf["spark.sql.streaming.multipleWatermarkPolicy"] = "max"
        # `batches` takes a batch again, so a rewind needs no flag for the sink
        folder, sink = (
            open_folder(str(self.checkpoint)),
            {"kind": "foreach-batch", "name": "batches"},
        )
        owner = Owner(self.pipeline.name, sink=sink, location=folder.address)
        write_note(folder, layout.OWNER, owner.to_dict())
        # the query copies the session's settings when it starts
        with _settings(self._spark, conf):
            return self._writer().start()

    def _writer(self) -> DataStreamWriter:
        pipeline, spark = self.pipeline, self._spark
        raw = (
            spark.readStream.schema("value BINARY")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self._input))
        )
        rows = _decode(spark, pipeline, raw)
        if _has_watermark(pipeline):
            rows = self._with_clock(rows)
        elif pipeline.scope == "stream":
            rows = pipeline.query(rows)
        if pipeline.scope == "stream":
            sink = connector_of(pipeline.sink).open_sink(pipeline.sink, load_settings())
            sink.to_output(rows)  # raises if the key does not exist, as in production
        return (
            rows.writeStream.foreachBatch(self._write)
            .outputMode(pipeline.output_mode)
            .option("checkpointLocation", str(self.checkpoint))
        )

    def _with_clock(self, rows: DataFrame) -> DataFrame:
        """The pipeline's query over the rows and a clock that only moves the watermark.

        Both sides have their own watermark, so that Spark may push a filter of the transform below
        that of the rows, as in production. A condition that Spark cannot evaluate in advance keeps
        such filters from the clock's side.
        """
        pipeline, time = self.pipeline, self.pipeline.event_time
        columns = [
            (F.col("time") if field.name == time else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in rows.schema
        ]
        clock = (
            self._spark.readStream.schema("time TIMESTAMP")
            .parquet(str(self._clock))
            .select(*columns)
            .withWatermark(time, "0 seconds")
            .where(F.expr("uuid()") == "")
        )
        timed = replace(pipeline, transform=lambda rows: pipeline.transform(rows.union(clock)))
        return timed.query(rows)

    def _write(self, batch: DataFrame, number: int) -> None:
        """Stand in for the sink; keep what is raised here, as Spark turns it into text."""
        results, functions = batch, self.pipeline.sink.functions
        try:
            if self.pipeline.scope == "batch":
                results = self.pipeline.query(batch)
            if functions:
                # used by us and by them, but computed once: it may depend on state
                results.persist()
            rows = _collect(results)
            self._crash_if("before write", rows, number)
            for write in functions:
                write(results, number)
            self.batches.append(RehearsedBatch(number, rows, self._watermark(number)))
            self._crash_if("after write", rows, number)
        except Exception as error:
            self._raised = error
            raise
        finally:
            results.unpersist()

    def _crash_if(self, when: Moment, rows: list[dict[str, Any]], number: int) -> None:
        if rows and self._crash == when:
            self._crash = None
            raise Crash(f"Batch {number} of {self.pipeline.name} crashed {when}, as asked.")

    def _watermark(self, number: int) -> datetime | None:
        """From the batch's plan, which is written before it runs."""
        plan = self.checkpoint / "offsets" / str(number)
        passed = log_files.parse_offsets(plan.read_text("utf-8"), str(plan)).watermark_ms
        return EPOCH + timedelta(milliseconds=passed) if passed else None


def _has_watermark(pipeline: Pipeline) -> bool:
    return pipeline.watermark is not None and pipeline.scope == "stream"


def _decode(spark: SparkSession, pipeline: Pipeline, raw: DataFrame) -> DataFrame:
    """The rows of the pipeline's source, without the broken records of a topic."""
    source = connector_of(pipeline.source).open_source(pipeline, load_settings())
    return source.decode(spark, raw)


def _to_table(rows: Sequence[Record]) -> pa.Table:
    values = [
        row if isinstance(row, bytes) else json.dumps(row, default=_as_json).encode()
        for row in rows
    ]
    return pa.table({"value": pa.array(values, pa.binary())})


def _as_json(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{value!r} has no form in JSON; write it as in a message.")


def _add_file(folder: Path, table: pa.Table) -> None:
    """Add one file, and so one batch; Spark ignores its name until it is complete."""
    name = f"{len(list(folder.glob('*.parquet'))):06}.parquet"
    pq.write_table(table, folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


def _collect(results: DataFrame) -> list[dict[str, Any]]:
    zone = ZoneInfo(_zone(results.sparkSession))
    return [_plain(row, results.schema, zone) for row in results.collect()]


def _zone(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.sql.session.timeZone"))


def _plain(value: Any, kind: DataType, zone: ZoneInfo) -> Any:
    """A value with rows as dicts, and times in the session's zone instead of the machine's."""
    if value is None:
        return None
    match kind:
        case TimestampType():
            return value.astimezone(zone).replace(tzinfo=None)
        case StructType():
            fields = zip(kind.fields, value, strict=True)
            return {field.name: _plain(item, field.dataType, zone) for field, item in fields}
        case ArrayType():
            return [_plain(item, kind.elementType, zone) for item in value]
        case MapType():
            return {
                _plain(key, kind.keyType, zone): _plain(item, kind.valueType, zone)
                for key, item in value.items()
            }
    return value


@contextmanager
def _settings(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Apply the settings that a running session accepts, and restore its own at the end."""
    before: dict[str, str | None] = {}
    try:
        for name, value in conf.items():
            old = spark.conf.get(name, None)
            # others, such as its memory, can only be set when it is built
            with suppress(AnalysisException):
                spark.conf.set(name, value)
                before[name] = old
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
