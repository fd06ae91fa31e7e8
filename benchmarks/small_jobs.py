"""The small queries that several benchmarks run: as pipelines, and as a plain script of PySpark.

`python -m benchmarks.small_jobs windowed SERVERS TOPIC CHECKPOINT [NAME=VALUE …]` is what somebody
would write without Ebbtide; the names are settings of Spark, and `trigger`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.pipeline import Kafka, Pipeline
from ebbtide.runtime import java

SCHEMA = "id BIGINT, at TIMESTAMP"
TOPIC = os.environ.get("EBBTIDE_BENCH_TOPIC", "events")


def count_by_window(rows: DataFrame) -> DataFrame:
    """How many events each ten minutes have."""
    return rows.groupBy(F.window("at", "10 minutes")).agg(
        F.count("*").alias("events"), F.max("id").alias("id")
    )


def pass_on(rows: DataFrame) -> DataFrame:
    """Each event, changed a little."""
    return rows.select("id", F.date_trunc("minute", "at").alias("minute"))


TRANSFORMS = {"windowed": count_by_window, "stateless": pass_on}


def make_pipeline(work: str, topic: str) -> Pipeline:
    """A work as a pipeline."""
    return Pipeline(
        f"{topic}-{work}",
        source=Kafka(topic, schema=SCHEMA),
        event_time="at",
        watermark="10 minutes" if work == "windowed" else None,
        transform=TRANSFORMS[work],
        sink=Kafka(f"{topic}-out"),
        output_mode="update" if work == "windowed" else "append",
    )


windowed, stateless = (make_pipeline(work, TOPIC) for work in TRANSFORMS)


def main(work: str, servers: str, topic: str, checkpoint: str, *pairs: str) -> None:
    """Run a work with PySpark alone, until SIGTERM."""
    os.environ["JAVA_HOME"] = str(java.spark_java_home())  # the same Java for all
    options: dict[str, str] = dict(pair.split("=", 1) for pair in pairs)
    trigger = options.pop("trigger", None)
    builder: Any = SparkSession.builder
    builder = builder.config("spark.jars", ",".join(map(str, java.jars("spark"))))
    for name, value in {"spark.ui.enabled": "false", **options}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    raw = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    event = F.from_json(F.col("value").cast("string"), SCHEMA).alias("event")
    rows = raw.select(event).select("event.*")
    if work == "windowed":
        rows = rows.withWatermark("at", "10 minutes")
    result = TRANSFORMS[work](rows)
    writer = result.select(F.to_json(F.struct("*")).alias("value")).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", f"{topic}-out")
    writer = writer.outputMode("update" if work == "windowed" else "append")
    if trigger:
        writer = writer.trigger(processingTime=trigger)
    query = writer.option("checkpointLocation", checkpoint).start()
    signal.signal(signal.SIGTERM, lambda *_: query.stop())
    while not query.awaitTermination(1):
        pass
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
