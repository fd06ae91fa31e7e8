"""Result rows as Kafka records: one JSON value a row, keyed if the sink says by what."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import TimestampType

from ebbtide.config import Settings
from ebbtide.connectors.kafka.spark_source import options
from ebbtide.pipeline import Kafka

PIPELINE_HEADER = "ebbtide-pipeline"
TIMELINE_HEADER = "ebbtide-timeline"
BATCH_HEADER = "ebbtide-batch"
"""Whose record it is, of which timeline (each rewind begins one) and, where the sink is told, of
which batch: so can a reader tell a record that comes again."""
TIMESTAMP_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"


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


def with_headers(records: DataFrame, headers: Mapping[str, str]) -> DataFrame:
    """Records with these headers after their own."""
    ours = [
        F.struct(F.lit(name).alias("key"), F.lit(value).cast("binary").alias("value"))
        for name, value in headers.items()
    ]
    own = F.coalesce("headers", F.array()) if "headers" in records.columns else F.array()
    return records.withColumn("headers", F.concat(own, F.array(*ours)))


def write(
    rows: DataFrame, sink: Kafka, settings: Settings, headers: Mapping[str, str] | None = None
) -> None:
    """Write one batch of results to the sink's topic."""
    records = with_headers(to_records(rows, sink), headers or {})
    records.write.format("kafka").option("topic", sink.topic).options(
        **options(sink, settings)
    ).save()


def writer(records: DataFrame, sink: Kafka, settings: Settings) -> DataStreamWriter:
    """A stream writer of records to the sink's topic."""
    return (
        records.writeStream.format("kafka")
        .option("topic", sink.topic)
        .options(**options(sink, settings))
    )
