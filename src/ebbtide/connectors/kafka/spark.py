"""Read and write a Kafka topic with Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType, TimestampType

from ebbtide.checkpoint import read_logs
from ebbtide.config import Settings
from ebbtide.connectors import streams
from ebbtide.connectors.kafka.admin import list_topics, retained_offsets
from ebbtide.connectors.progress import READ
from ebbtide.connectors.spark.digests import observe_output, with_hash
from ebbtide.connectors.spark.records import make_decoder
from ebbtide.connectors.spark.rows import ORDER, TIMESTAMP_FORMAT
from ebbtide.errors import CheckpointError
from ebbtide.pipeline import Kafka
from ebbtide.storage import Folder

_FETCH = {
    # how long the broker may hold back a fetch; its default of 500 slows small batches down, and
    # holds up the questions after the last record of a range
    "kafka.fetch.max.wait.ms": "10",
    # the defaults, 500 and 1 MiB, cost a large batch many calls and requests
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
}

_RANGE = ("starting", "ending", "assign", "subscribe", "includeheaders")
"""How the options begin, in lower case, that say what to read of which topic. Some take precedence
over others, so it is not enough to set ours last."""


class KafkaStream(streams.SparkSource):
    """A topic as a stream of rows, broken records left out and counted."""

    def open_stream(
        self,
        spark: SparkSession,
        query: Callable[[DataFrame], DataFrame],
        max_offsets: int | None = None,
    ) -> streams.OpenSource:
        source, pipeline = self.pipeline.source, self.pipeline
        assert isinstance(source, Kafka)
        decoder = make_decoder(spark, pipeline, query)
        raw = read_stream(spark, source, self.settings, max_offsets)
        if pipeline.scope == "batch" or pipeline.sink.functions:
            raw = observe_read(raw)

        def read_again(start: Any, end: Any) -> DataFrame:
            first, last = (_by_partition(offset, source.topic) for offset in (start, end))
            first = {p: first.get(p, 0) for p in last}
            last = {p: offset for p, offset in last.items() if offset > first[p]}
            again = read_range(spark, source, self.settings, first, last)
            return decoder.decode(again, "again")

        return streams.OpenSource(decoder.decode(raw), decoder, read_again)

    def count_waiting(self, folder: Folder) -> int | None:
        source = self.pipeline.source
        assert isinstance(source, Kafka)
        done = None
        with suppress(CheckpointError):  # a run of it will say so
            done = read_logs(folder).latest_committed if folder.ids("offsets") else None
        positions = done.positions if done else {}
        following = {p: offset for (name, p), offset in positions.items() if name == source.topic}
        connection = self.settings.connect(source.connection)
        return count_waiting(following, retained_offsets(connection, source.topic))

    def real_time_tasks(self) -> int | None:
        source = self.pipeline.source
        assert isinstance(source, Kafka)
        return list_topics(self.settings.connect(source.connection)).get(source.topic)

    def decode(self, spark: SparkSession, raw: DataFrame) -> DataFrame:
        return make_decoder(spark, self.pipeline, self.pipeline.query).decode(raw)


def count_waiting(following: Mapping[int, int], retained: Mapping[int, tuple[int, int]]) -> int:
    """How many records a topic still holds from the next offset of each partition on.

    >>> count_waiting({0: 7}, {0: (0, 9), 1: (3, 5)})
    4
    """
    starts = {p: max(following.get(p, first), first) for p, (first, _) in retained.items()}
    # a topic that was created again may end before
    return sum(max(0, end - starts[p]) for p, (_, end) in retained.items())


def _by_partition(offset: Any, topic: str) -> dict[int, int]:
    return {int(p): position for p, position in (offset or {}).get(topic, {}).items()}


def options(kafka: Kafka, settings: Settings) -> dict[str, str]:
    """What Spark needs to reach the topic's broker, reading or writing, and what the user adds."""
    connection = {f"kafka.{name}" for name in kafka.connection}
    added = {name: v for name, v in kafka.options.items() if name.lower() not in connection}
    return settings.connect(kafka.connection).spark_options() | added


def without_range(options: Mapping[str, str]) -> dict[str, str]:
    """Options of the user's, without those that say what to read of which topic.

    >>> without_range({"startingTimestamp": "5", "Assign": "{}", "kafka.client.id": "visits"})
    {'kafka.client.id': 'visits'}
    """
    return {k: v for k, v in options.items() if not k.lower().startswith(_RANGE)}


def read_stream(
    spark: SparkSession, source: Kafka, settings: Settings, max_offsets: int | None
) -> DataFrame:
    """Every record of the topic, as it comes."""
    limit = {} if max_offsets is None else {"maxOffsetsPerTrigger": str(max_offsets)}
    return (
        spark.readStream.format("kafka")
        .option("subscribe", source.topic)
        .option("startingOffsets", source.starting_offsets)
        .options(**_FETCH)
        .options(**options(source, settings))
        .options(**limit)
        .load()
    )


def observe_read(raw: DataFrame) -> DataFrame:
    """Add the number of records read, and their total weight, to each batch's progress."""
    weight = F.crc32(F.col("partition").cast("string").cast("binary")) * F.lit(1).cast("decimal(1)")
    weighed = F.sum(weight * (F.col("offset") + 1))
    return raw.observe(READ, F.count(F.lit(1)).alias("records"), weighed.alias("weighed"))


def read_range(
    spark: SparkSession,
    source: Kafka,
    settings: Settings,
    start: Mapping[int, int],
    end: Mapping[int, int],
) -> DataFrame:
    """The records of the topic from `start` (inclusive) to `end` (exclusive), headers included."""
    return (
        spark.read.format("kafka")
        .options(**_FETCH)
        .options(**without_range(options(source, settings)))
        .option("assign", json.dumps({source.topic: sorted(end)}))
        .option("startingOffsets", json.dumps({source.topic: {p: start[p] for p in end}}))
        .option("endingOffsets", json.dumps({source.topic: dict(end)}))
        .option("includeHeaders", "true")
        .load()
    )


class KafkaOutput(streams.SparkSink[Kafka]):
    """A topic: one JSON value per row, with a key if the sink has one."""

    allows_real_time = True

    def to_output(self, rows: DataFrame) -> DataFrame:
        return to_records(rows, self.sink)

    def observed(self, rows: DataFrame, headers: Mapping[str, str] | None = None) -> DataFrame:
        """Records with their digest in each batch's progress.

        The headers go below, and the hash stays, which Kafka's writer passes over: so each batch
        has one step less to plan, to compile and to run.
        """
        records = with_hash(to_records(rows, self.sink))
        return observe_output(with_headers(records, headers) if headers else records)

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        writer = rows.writeStream.format("kafka").option("topic", self.sink.topic)
        return writer.options(**options(self.sink, self.settings))

    def write_batch(self, rows: DataFrame, number: int, headers: Mapping[str, str]) -> None:
        self._write(rows, {**headers, streams.BATCH_HEADER: str(number)})

    def write_chunk(self, rows: DataFrame, by: streams.Provenance, number: int) -> None:
        self._write(rows, by.headers)

    def _write(self, rows: DataFrame, headers: Mapping[str, str]) -> None:
        writer = with_headers(to_records(rows, self.sink), headers).write.format("kafka")
        writer.option("topic", self.sink.topic).options(**options(self.sink, self.settings)).save()

    def as_text(self, rows: DataFrame) -> DataFrame:
        records = to_records(rows, self.sink)
        key = F.col("key") if "key" in records.columns else F.lit(None)
        return records.select(
            key.cast("string").alias("key"), F.col("value").cast("string").alias("row")
        )

    def read_batch(
        self, spark: SparkSession, run: streams.BatchRun, schema: StructType
    ) -> streams.WrittenRows:
        start, end = run.started_ms, run.ended_ms
        records = (
            spark.read.format("kafka")
            .options(**without_range(options(self.sink, self.settings)))
            .option("subscribe", self.sink.topic)
            .option("startingTimestamp", start)
            .option("startingOffsetsByTimestampStrategy", "latest")
            .option("endingTimestamp", end + 1)
            .option("includeHeaders", "true")
            .load()
            .where(F.unix_millis("timestamp").between(start, end))
        )
        own = {streams.PIPELINE_HEADER: run.pipeline, streams.TIMELINE_HEADER: run.timeline}
        for name, ours in own.items():
            value = last_header(name)
            records = records.where(value.isNull() | (value == F.lit(ours)))
        return streams.WrittenRows(
            self.as_text(records), doubt="other records may be among its own"
        )

    def read_held(
        self, spark: SparkSession, at: streams.OutputPosition, schema: StructType, run: str
    ) -> DataFrame:
        ends = at.offsets or {}
        retained = retained_offsets(self.settings.connect(self.sink.connection), self.sink.topic)
        starts = {p: min(retained[p][0], end) for p, end in ends.items()}
        order = F.struct("timestamp", "offset").alias(ORDER)
        if sum(ends.values()) == sum(starts.values()):
            return spark.createDataFrame([], StructType(schema.fields)).withColumn(ORDER, F.lit(0))
        records = read_range(spark, self.sink, self.settings, starts, ends)
        if "value" in schema.names:
            columns = [
                F.col(f.name).cast(f.dataType).alias(f.name)
                for f in schema
                if f.name in records.columns
            ]
            return records.select(*columns, order)
        form = {"timestampFormat": TIMESTAMP_FORMAT}
        parsed = F.from_json(F.col("value").cast("string"), schema, form)
        rows = records.select(parsed.alias("row"), order).where("row IS NOT NULL")
        return rows.select("row.*", ORDER)


def to_records(rows: DataFrame, sink: Kafka) -> DataFrame:
    """`value`, and `key` if the sink has one; rows that have a `value` already stay as they are."""
    if "value" in rows.columns:
        return rows
    value = F.to_json(F.struct("*"), {"timestampFormat": TIMESTAMP_FORMAT}).alias("value")
    if sink.key is None:
        return rows.select(value)
    return rows.select(_key(rows, sink.key).alias("key"), value)


def _key(rows: DataFrame, expression: str) -> Column:
    key = F.expr(expression)
    if isinstance(rows.select(key).schema[0].dataType, TimestampType):
        return F.date_format(key, TIMESTAMP_FORMAT)
    return key.cast("string")


def last_header(name: str) -> Column:
    """The last header of that name, as text: ours come after the record's own."""
    header = F.expr(f"try_element_at(filter(headers, h -> h.key = '{name}'), -1)")
    return header["value"].cast("string")


def with_headers(records: DataFrame, headers: Mapping[str, str | Column]) -> DataFrame:
    """Records with these headers after their own."""
    texts = {name: F.lit(value).cast("string") for name, value in headers.items()}
    ours = [
        F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value"))
        for name, text in texts.items()
    ]
    own = F.coalesce("headers", F.array()) if "headers" in records.columns else F.array()
    return records.withColumn("headers", F.concat(own, F.array(*ours)))


SOURCE, SINK = KafkaStream, KafkaOutput
