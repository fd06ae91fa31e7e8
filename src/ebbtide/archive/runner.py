"""Run the query that copies a pipeline's topic into its Delta table, record by record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from ebbtide.archive import layout
from ebbtide.archive.facts import Archive, find_archive, read_archive
from ebbtide.archive.resume import check_kafka, resume, starting_offsets
from ebbtide.archive.write import create_table, set_property, to_rows
from ebbtide.config import Settings
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.kafka import spark as kafka_spark
from ebbtide.errors import ArchiveError
from ebbtide.pipeline import Delta, Pipeline
from ebbtide.runtime import BatchReport, StreamOptions, StreamResult, failures, stream
from ebbtide.storage import Folder


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
            rows = to_rows(kafka_spark.read_stream(spark, source, self._settings, limit), self._of)
            if self._archive is None:
                marks = layout.properties(self._of, self._settings, folder.url)
                create_table(spark, self._path, marks)
                self._check_ours(folder)
            elif not self._archive.is_of(folder):
                set_property(spark, self._path, layout.CHECKPOINT_PROPERTY, folder.url)
        return rows

    def _check_ours(self, folder: Folder) -> None:
        # two queries that start at the same time both find no table
        created = read_archive(self._of, self._settings)
        if not created.is_of(folder):
            raise ArchiveError(
                f"Another query, with checkpoint {created.checkpoint}, has just made {self._path}.",
                "Leave the archive to it, or stop it first.",
            )
