"""Replay a pipeline, in place or to scratch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from ebbtide.checkpoint import Timeline
from ebbtide.config import Settings
from ebbtide.connectors import connector_of, streams
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.spark import digests
from ebbtide.history import Entry, Recorder
from ebbtide.pipeline import Pipeline
from ebbtide.replaying.run import (
    OnBatch,
    ReplayedCode,
    ReplayOptions,
    ReplayResult,
    describe_run,
    replay_code,
    rows_of,
)
from ebbtide.rewind import lease
from ebbtide.runtime import StreamOptions, cluster, failures, ownership, session, stream
from ebbtide.storage import Folder


def replay_pipeline(
    pipeline: Pipeline,
    settings: Settings,
    options: ReplayOptions = ReplayOptions(),  # noqa: B008 - frozen
    *,
    on_batch: OnBatch = lambda _done, _all: None,
    say: stream.Say = lambda _line: None,
) -> ReplayResult:
    """Run recorded batches of a pipeline again, in place after a rewind or to scratch."""
    location = options.checkpoint or settings.location("checkpoints", pipeline.name)
    locations = cluster.find_locations(pipeline, settings, checkpoint=location)
    options = cluster.check_start(pipeline, options, locations)

    def make(origin: Folder, scratch: str | None) -> ReplayedCode:
        ownership.check_owner(origin, pipeline)
        if scratch is None:
            return _InPlace(pipeline, settings, say, origin)
        return _Beside(pipeline, settings, say, origin, scratch)

    return replay_code(make, location, pipeline.name, settings, options, on_batch=on_batch)


class _InPlace:
    """The pipeline's own query, with its sink and its dead letters."""

    rows_decide = False
    _writes = True
    """Whether it writes to the pipeline's sink."""

    def __init__(
        self, pipeline: Pipeline, settings: Settings, say: stream.Say, origin: Folder
    ) -> None:
        self.name = self.app = pipeline.name
        self._pipeline, self._settings, self._origin = pipeline, settings, origin
        self._query = stream.PipelineQuery(pipeline, settings, StreamOptions(), say)
        self._timeline = Timeline.read(origin).name
        self._sink = connector_of(pipeline.sink).open_sink(pipeline.sink, settings)

    def prepare(self) -> None:
        """Check the broker and create missing topics."""
        self._query.prepare()

    def claim(
        self, folder: Folder, options: ReplayOptions, pause: lease.Pause
    ) -> AbstractContextManager[lease.Claim]:
        """Hold the checkpoint, and note whose it is."""
        return ownership.claim(
            folder.url,
            self._pipeline,
            self._settings,
            writes=self._writes,
            assume_stopped=options.assume_stopped,
            pause=pause,
        )

    def open_session(
        self, folder: Folder, options: ReplayOptions
    ) -> AbstractContextManager[SparkSession]:
        """The pipeline's session."""
        pipeline, settings = self._pipeline, self._settings
        locations = cluster.find_locations(pipeline, settings, checkpoint=folder.url).values()
        return session.open_pipeline_session(
            pipeline, settings, options.master, options.conf, locations
        )

    def open(self, spark: SparkSession, folder: Folder) -> None:
        """Apply the transform to the source."""
        self._recorder = Recorder.for_pipeline(folder, self._pipeline)
        self._rows = self._open_rows(spark, folder)

    def _open_rows(self, spark: SparkSession, folder: Folder) -> DataFrame:
        return self._query.open(spark, folder)

    def start(self, location: str) -> StreamingQuery:
        """Run one batch."""
        pipeline = self._pipeline
        with failures.plain_errors(pipeline):
            writer = self._write().queryName(pipeline.name).outputMode(pipeline.output_mode)
            return writer.option("checkpointLocation", location).trigger(once=True).start()

    def _write(self) -> DataStreamWriter:
        return self._sink.open_writer(self._rows, self._pipeline, self._timeline)

    def record(self, progress: dict[str, Any]) -> Entry:
        """Record what a batch did, and write its dead letters."""
        late = self._query.count_late(progress)
        entry = self._recorder.record(progress, late)
        self._query.follow(progress, stream.report_of(progress, late), missed=False)
        return entry

    def read_first(self, spark: SparkSession, entry: Entry) -> streams.WrittenRows:
        """The rows that the first run of a batch wrote."""
        schema = self._rows.schema
        if entry.output is not None and entry.output.rows == 0:
            return streams.WrittenRows(self._sink.as_text(spark.createDataFrame([], schema)))
        run = describe_run(self._origin, entry, self.name)
        return self._sink.read_batch(spark, run, schema)

    def read_again(self, spark: SparkSession, entry: Entry) -> streams.WrittenRows:
        """The rows that this run of a batch wrote: to the same sink."""
        return self.read_first(spark, entry)

    def close(self) -> None:
        """Save up to where the dead letters are complete."""
        self._query.close()


class _Beside(_InPlace):
    """The query over a fork, with its results in files; it writes no dead letters."""

    _writes = False

    def __init__(
        self, pipeline: Pipeline, settings: Settings, say: stream.Say, origin: Folder, scratch: str
    ) -> None:
        super().__init__(pipeline, settings, say, origin)
        self._scratch = scratch
        self._kept: StructType | None = None

    def prepare(self) -> None:
        """Check the broker, but create no topic."""
        broker.require_brokers(self._settings, self._pipeline.endpoints)

    def _open_rows(self, spark: SparkSession, folder: Folder) -> DataFrame:
        """Apply the transform to the source; broken records are counted and left out."""
        del folder
        pipeline = self._pipeline
        with failures.plain_errors(pipeline):
            source = connector_of(pipeline.source).open_source(pipeline, self._settings)
            rows = source.open_stream(spark, pipeline.query).rows
            return rows if pipeline.scope == "batch" else pipeline.query(rows)

    def _write(self) -> DataStreamWriter:
        """A writer of each batch to its own files."""
        rows = self._rows
        if self._pipeline.scope == "stream":
            rows = self._sink.observed(rows).drop(digests.HASH)
        self._kept = rows.schema

        def keep(batch: DataFrame, number: int) -> None:
            result = self._pipeline.query(batch) if self._pipeline.scope == "batch" else batch
            result.write.mode("overwrite").parquet(rows_of(self._scratch, number))

        return rows.writeStream.foreachBatch(keep)

    def read_again(self, spark: SparkSession, entry: Entry) -> streams.WrittenRows:
        """The rows that this run of a batch wrote."""
        schema = self._kept or self._rows.schema
        rows = spark.read.schema(schema).parquet(rows_of(self._scratch, entry.batch))
        return streams.WrittenRows(self._sink.as_text(rows))
