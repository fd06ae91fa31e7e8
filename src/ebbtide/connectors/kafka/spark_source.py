"""A topic as raw records: as a stream, or between two offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.config import Settings
from ebbtide.connectors.progress import READ
from ebbtide.pipeline import Kafka

_FETCH_WAIT_MS = "10"
"""How long the broker may hold back a fetch: 500 by default, which small batches feel."""


def options(kafka: Kafka, settings: Settings) -> dict[str, str]:
    """What Spark needs to reach the topic's broker, reading or writing."""
    return settings.kafka.spark_options() | dict(kafka.options)


def read_stream(
    spark: SparkSession, source: Kafka, settings: Settings, max_offsets: int | None
) -> DataFrame:
    """Every record of the topic, as it comes."""
    limit = {} if max_offsets is None else {"maxOffsetsPerTrigger": str(max_offsets)}
    return (
        spark.readStream.format("kafka")
        .option("subscribe", source.topic)
        .option("startingOffsets", source.starting_offsets)
        .option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
        .options(**options(source, settings))
        .options(**limit)
        .load()
    )


def observe_read(raw: DataFrame) -> DataFrame:
    """Have each batch's progress say how many records were read, and what they weigh together."""
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
        .option("assign", json.dumps({source.topic: sorted(end)}))
        .option("startingOffsets", json.dumps({source.topic: {p: start[p] for p in end}}))
        .option("endingOffsets", json.dumps({source.topic: dict(end)}))
        .option("includeHeaders", "true")
        .options(**options(source, settings))
        .load()
    )
