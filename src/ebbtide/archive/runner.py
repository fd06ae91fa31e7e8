"""Run the query that copies a pipeline's topic into its Delta table, record by record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.archive import layout
from ebbtide.archive.choice import may_write_files
from ebbtide.archive.commit import TableWriter
from ebbtide.archive.facts import Archive, find_archive, read_archive
from ebbtide.archive.resume import check_kafka, resume, starting_offsets
from ebbtide.archive.write import create_table, set_property, to_hours, to_rows, write_hours
from ebbtide.config import Settings
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.kafka import spark as kafka_spark
from ebbtide.errors import ArchiveError
from ebbtide.pipeline import Delta, Pipeline
from ebbtide.runtime import (
    BatchReport,
    StreamOptions,
    StreamResult,
    failures,
    session,
    stream,
)
from ebbtide.storage import Folder

if TYPE_CHECKING:
    from ebbtide.archive.hours import HourSteps

_QUERY_ID = "sql.streaming.queryId"
"""Where Spark notes a query's id for the thread that runs its batches."""


def run_archive(
    pipeline: Pipeline,
    settings: Settings,
    options: StreamOptions = StreamOptions(),  # noqa: B008 - frozen
    *,
    on_batch: Callable[[BatchReport], None] = lambda _report: None,
    say: Callable[[str], None] = lambda _line: None,
) -> StreamResult:
    """Archive a pipeline's topic; the steps are those of `stream.run_query`.

    Step **2** also checks that the table, the checkpoint and the topic belong together, and step
    **4** creates the table if there is none.
    """
    query = ArchiveQuery(pipeline, settings, options, say)
    return stream.run_query(query, settings, options, on_batch)


class ArchiveQuery(stream.PipelineQuery):
    """The query that fills a pipeline's archive, with records without an event time as well."""

    def __init__(
        self, pipeline: Pipeline, settings: Settings, options: StreamOptions, say: stream.Say
    ) -> None:
        self._topic, archive = layout.archive_of(pipeline)
        self._of, self._path = pipeline, settings.table(archive.path)
        self._archive: Archive | None = None
        self._starting_offsets = "earliest"
        self._steps: HourSteps | None = None
        copy = replace(
            pipeline,
            name=layout.archive_name(archive),
            sink=Delta(self._path, archive.options),
            watermark=None,
            output_mode="append",
            scope="stream",
            trigger=None,
            profile=None,
            conf={**pipeline.conf, **layout.WRITE_CONF},
        )
        super().__init__(copy, settings, options, say)

    def prepare(self) -> None:
        """Check the broker, create a missing topic, and read the table if there is one."""
        stream.require_topics(self._settings, [(self._topic, {})], self.say)
        self._archive = find_archive(self._of, self._settings)

    def check(self, folder: Folder) -> None:
        """Find the offsets to continue from, so that each record is in the table once."""
        topic, archive = self._topic.topic, self._archive
        following = resume(archive, folder, self._path)
        connection = self._settings.connect(self._topic.connection)
        retained = broker.retained_offsets(connection, topic)
        options = {name.lower(): value for name, value in self._topic.options.items()}
        loss_allowed = options.get("failondataloss", "").lower() == "false"
        for line in check_kafka(topic, following, retained, loss_allowed=loss_allowed):
            self.say(line)
        self._starting_offsets = starting_offsets(topic, following, retained)
        if self._options.available_now:
            waiting = kafka_spark.count_waiting(following, retained)
            self.pipeline = session.compile_less(self.pipeline, waiting)
        if archive and archive.records and not folder.ids("offsets"):
            self.say(
                f"{folder.url} is new and the table holds {archive.records:,} records: "
                "continuing after them."
            )

    def open(self, spark: SparkSession, folder: Folder) -> DataFrame:
        """The topic's raw records as rows of the table, which is created if it is missing."""
        # where to start is decided in `check`, and a record has its headers
        theirs = kafka_spark.without_range(self._topic.options)
        options, limit = {**theirs, "includeHeaders": "true"}, self._options.max_offsets_per_trigger
        source = replace(self._topic, starting_offsets=self._starting_offsets, options=options)
        with failures.plain_errors(self.pipeline):
            raw = kafka_spark.read_stream(spark, source, self._settings, limit)
            if self._archive is None:
                marks = layout.properties(self._of, self._settings, folder.url)
                create_table(spark, self._path, marks)
                self._check_ours(folder)
            elif not self._archive.is_of(folder):
                set_property(spark, self._path, layout.CHECKPOINT_PROPERTY, folder.url)
            self._steps = self._choose_steps(spark)
            if self._steps is not None:
                return to_hours(raw, self._of, self._steps)
            return to_rows(raw, self._of)

    def _choose_steps(self, spark: SparkSession) -> HourSteps | None:
        """How the tasks write files themselves; None if that is left to Delta (ADR 027)."""
        sink = self.pipeline.sink
        assert isinstance(sink, Delta)
        if sink.options or not may_write_files(spark):
            return None
        from ebbtide.archive.hours import HourSteps  # it needs pyarrow

        folder = TableWriter(spark, self._path).find_folder()
        return HourSteps.of(folder, self._topic.topic, spark.version) if folder else None

    def open_writer(self, rows: DataFrame, timeline: str) -> DataStreamWriter:
        """A writer of the table: ours, or else Delta's sink."""
        if self._steps is None:
            return super().open_writer(rows, timeline)
        return rows.writeStream.foreachBatch(partial(self._write, self._steps))

    def _write(self, steps: HourSteps, batch: DataFrame, number: int) -> None:
        """One batch: **1** has the table got it already? **2** its files; **3** one commit."""
        spark = batch.sparkSession
        # 1
        query = spark.sparkContext.getLocalProperty(_QUERY_ID)
        assert query is not None
        transaction = TableWriter(spark, self._path).begin(query, number)
        if transaction is not None:
            # 2, 3
            transaction.commit(write_hours(batch, steps))

    def _check_ours(self, folder: Folder) -> None:
        # two queries that start at the same time both find no table
        created = read_archive(self._of, self._settings)
        if not created.is_of(folder):
            raise ArchiveError(
                f"Another query, with checkpoint {created.checkpoint}, has just made {self._path}.",
                "Leave the archive to it, or stop it first.",
            )
