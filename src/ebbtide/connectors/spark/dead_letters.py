"""Write dead letters to a topic or a Delta table, without those that it holds already.

Several pipelines may share it, and read one topic: a letter counts as written if its own pipeline
has written it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.config import Settings
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.kafka.spark import last_header, options, read_range, with_headers
from ebbtide.connectors.spark.rows import path_exists
from ebbtide.connectors.streams import PIPELINE_HEADER
from ebbtide.pipeline import Delta, Endpoint, Kafka, Pipeline, Sink

TOPIC_CONFIG = {"max.message.bytes": str(16 * 1024 * 1024)}
"""A dead letter is its record plus a few headers, so it may be larger than any record."""
_POSITION = ("topic", "partition", "offset")

S = TypeVar("S", bound=Sink)


class DeadLetterSink(Generic[S]):
    """A topic or a table of dead letters."""

    def __init__(self, spark: SparkSession, pipeline: str, sink: S, settings: Settings) -> None:
        self._spark, self._pipeline, self._sink = spark, pipeline, sink
        self._settings = settings

    def ends(self) -> dict[int, int]:
        """Where it ends now, by partition; a table has no partitions."""
        return {}

    def without_written(self, letters: DataFrame, since: Mapping[int, int]) -> DataFrame:
        """The letters that it does not hold yet, looking at what was written after `since`."""
        raise NotImplementedError

    def append(self, letters: DataFrame) -> None:
        """Write letters."""
        raise NotImplementedError


def open_dead_letter_sink(
    spark: SparkSession, pipeline: Pipeline, settings: Settings
) -> DeadLetterSink[Any]:
    """The sink of a pipeline's dead letters."""
    sink = pipeline.dead_letter_sink
    if isinstance(sink, Delta):
        return _Table(spark, pipeline.name, sink, settings)
    return _Topic(spark, pipeline.name, sink, settings)


def configure_topics(pipeline: Pipeline) -> list[tuple[Endpoint, Mapping[str, str]]]:
    """What a pipeline reads and writes, with the settings of its topics."""
    letters = pipeline.dead_letter_sink.topics
    return [
        (endpoint, TOPIC_CONFIG if endpoint.topics == letters else {})
        for endpoint in pipeline.endpoints
    ]


class _Table(DeadLetterSink[Delta]):
    @property
    def _path(self) -> str:
        return self._settings.table(self._sink.path)

    def without_written(self, letters: DataFrame, since: Mapping[int, int]) -> DataFrame:
        del since  # a table tells by position
        if not path_exists(self._spark, f"{self._path}/_delta_log"):
            return letters
        table = self._spark.read.format("delta").load(self._path)
        written = table.where(F.col("pipeline") == F.lit(self._pipeline)).select(*_POSITION)
        return letters.join(written, list(_POSITION), "left_anti")

    def append(self, letters: DataFrame) -> None:
        rows = letters.drop("timestampType").withColumn("pipeline", F.lit(self._pipeline))
        rows.write.format("delta").mode("append").options(**self._sink.options).save(self._path)


class _Topic(DeadLetterSink[Kafka]):
    def ends(self) -> dict[int, int]:
        return {partition: latest for partition, (_, latest) in self._retained().items()}

    def without_written(self, letters: DataFrame, since: Mapping[int, int]) -> DataFrame:
        retained = self._retained()
        ends = {p: latest for p, (_, latest) in retained.items()}
        if {p: since.get(p, 0) for p in ends} == ends:
            return letters
        starts = {p: max(since.get(p, 0), earliest) for p, (earliest, _) in retained.items()}
        written = read_range(self._spark, self._sink, self._settings, starts, ends)
        ours = written.where(last_header(PIPELINE_HEADER) == F.lit(self._pipeline))
        keys = ours.select(F.col("key").cast("string").alias("written_key"))
        return letters.join(keys, _key() == keys["written_key"], "left_anti")

    def append(self, letters: DataFrame) -> None:
        (
            with_headers(letters, _headers(self._pipeline))
            .select(_key().alias("key"), "value", "headers")
            .write.format("kafka")
            .option("topic", self._sink.topic)
            .option("kafka.max.request.size", TOPIC_CONFIG["max.message.bytes"])
            .options(**options(self._sink, self._settings))
            .save()
        )

    def _retained(self) -> Mapping[int, tuple[int, int]]:
        connection = self._settings.connect(self._sink.connection)
        return broker.retained_offsets(connection, self._sink.topic)


def _key() -> Column:
    return F.to_json(F.struct(*_POSITION))


def _headers(pipeline: str) -> dict[str, Column]:
    """The reason, the pipeline, and the record's origin."""
    return {
        "ebbtide-reason": F.col("reason"),
        PIPELINE_HEADER: F.lit(pipeline),
        "ebbtide-topic": F.col("topic"),
        "ebbtide-partition": F.col("partition"),
        "ebbtide-offset": F.col("offset"),
        "ebbtide-timestamp-ms": F.unix_millis("timestamp"),
        "ebbtide-key": F.col("key"),
    }
