"""Run the query that copies a pipeline's topic into its Delta table, record by record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ebbtide.archive.facts import Archive, find_archive, read_archive
from ebbtide.archive.layout import (
    CHECKPOINT_PROPERTY,
    WRITE_CONF,
    archive_name,
    archive_of,
    properties,
)
from ebbtide.archive.resume import check_kafka, resume, starting_offsets
from ebbtide.archive.write import create_table, set_property, to_rows
from ebbtide.config import Settings
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.kafka import spark as kafka_spark
from ebbtide.errors import ArchiveError
from ebbtide.pipeline import Delta, Kafka, Pipeline
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

    In step **2** also: the table, the checkpoint and the topic belong together; and in step **4**:
    the table is created if there is none.
    """
    query = ArchiveQuery(pipeline, settings, options, say)
    return stream.run_query(query, settings, options, on_batch)


class ArchiveQuery:
    """The query that fills a pipeline's archive."""

    def __init__(
        self, pipeline: Pipeline, settings: Settings, options: StreamOptions, say: stream.Say
    ) -> None:
        self._topic, archive = archive_of(pipeline)
        self._of, self._path = pipeline, settings.table(archive.path)
        self._settings, self._options, self.say = settings, options, say
        self._archive: Archive | None = None
        self._starting_offsets = "earliest"
        self.pipeline: Pipeline = replace(
            pipeline,
            name=archive_name(archive),
            sink=Delta(self._path, archive.options),
            watermark=None,
            output_mode="append",
            scope="stream",
            trigger=None,
            conf={**pipeline.conf, **WRITE_CONF},
        )

    def prepare(self) -> None:
        """The broker answers, the topic is there, and the table, if there is one, is ours."""
        stream.require_topics(self._settings, {self._topic.topic: {}}, self.say)
        self._archive = find_archive(self._of, self._settings)

    def check(self, folder: Folder) -> None:
        """Where to go on, such that each record is in the table once."""
        topic, archive = self._topic.topic, self._archive
        following = resume(archive, folder, self._path)
        retained = broker.retained_offsets(self._settings.kafka, topic)
        loss_allowed = _option(self._topic, "failondataloss").lower() == "false"
        for line in check_kafka(topic, following, retained, loss_allowed=loss_allowed):
            self.say(line)
        self._starting_offsets = starting_offsets(topic, following, retained)
        if archive and archive.records and not folder.ids("offsets"):
            self.say(
                f"{folder.url} is new and the table holds {archive.records:,} records: "
                "going on after them."
            )

    def open(self, spark: SparkSession, folder: Folder) -> DataFrame:
        """The topic's raw records as rows of the table, which is there afterwards."""
        with failures.plain_errors(self.pipeline):
            source = replace(
                self._topic,
                starting_offsets=self._starting_offsets,
                options=_options(self._topic),
            )
            limit = self._options.max_offsets_per_trigger
            rows = to_rows(kafka_spark.read_stream(spark, source, self._settings, limit), self._of)
            marks = properties(self._of, self._settings, folder.url)
            if self._archive is None:
                create_table(spark, self._path, marks)
                self._check_ours(folder)
            elif self._archive.checkpoint != folder.url:
                set_property(spark, self._path, CHECKPOINT_PROPERTY, folder.url)
        return rows

    def _check_ours(self, folder: Folder) -> None:
        """Two that start at the same moment would both find no table."""
        made = read_archive(self._of, self._settings)
        if made.checkpoint != folder.url:
            raise ArchiveError(
                f"Another query, with checkpoint {made.checkpoint}, has just made {self._path}.",
                "Leave the archive to it, or stop it first.",
            )

    def follow(self, progress: dict[str, Any], report: BatchReport, *, missed: bool) -> None:
        """Records without an event time are archived like the others."""

    def close(self) -> None:
        """All is in the table."""


def _option(source: Kafka, name: str) -> str:
    """Spark takes the names of options in any case."""
    return next((value for key, value in source.options.items() if key.lower() == name), "")


def _options(source: Kafka) -> dict[str, str]:
    """The source's own, but where to begin is not for it to say, and headers belong to a record."""
    ours = ("starting", "includeheaders")
    theirs = {k: v for k, v in source.options.items() if not k.lower().startswith(ours)}
    return theirs | {"includeHeaders": "true"}
