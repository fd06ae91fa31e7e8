"""A PySpark program as people write them, with one line of Ebbtide's; a test runs and kills it.

python plain_job.py FOLDER BOOTSTRAP_SERVERS: four queries over the same events, until all is read.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import ebbtide

FOLDER, BROKER = sys.argv[1:3]
SCHEMA = "at TIMESTAMP, page STRING, n INT"

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", os.environ["JARS"])
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.databricks.delta.snapshotPartitions", 1)
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
ebbtide.attach(spark)


def from_files() -> DataFrame:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return stream.json(f"{FOLDER}/in")


def from_kafka() -> DataFrame:
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", BROKER)
    stream = stream.option("subscribe", "clicks").option("startingOffsets", "earliest")
    value = F.from_json(F.col("value").cast("string"), SCHEMA).alias("click")
    return stream.option("maxOffsetsPerTrigger", 3).load().select(value).select("click.*")


def merge(batch: DataFrame, _number: int) -> None:
    """Keep the last state of each event."""
    session = batch.sparkSession
    batch.createOrReplaceTempView("news")
    session.sql(
        f"MERGE INTO delta.`{FOLDER}/merged` old USING news ON old.n = news.n "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


class CountPages(StatefulProcessor):
    """How many events each page has had."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n INT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        del timerValues
        before = self._count.get()
        count = (before[0] if before else 0) + len(list(rows))
        self._count.update((count,))
        yield Row(page=key[0], count=count)

    def close(self) -> None:
        pass


def start(name: str, rows: DataFrame, form: str, mode: str = "append") -> None:
    writer = rows.writeStream.queryName(name).outputMode(mode).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{FOLDER}/checkpoints/{name}")
    writer.format(form).option("path", f"{FOLDER}/{name}").start()


spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{FOLDER}/merged` ({SCHEMA}) USING delta")
windows = from_kafka().withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute"))
start("windows", windows.count(), "delta")
start("copies", ebbtide.observe(from_files(), event_time="at"), "parquet")
pages = from_files().withWatermark("at", "1 minute").groupBy("page")
spark.conf.set(
    "spark.sql.streaming.stateStore.providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
)
counted = pages.transformWithState(CountPages(), "page STRING, count INT", "append", "eventTime")
start("pages", counted, "delta")
merged = (
    from_files()
    .withWatermark("at", "1 minute")
    .writeStream.queryName("merges")
    .trigger(availableNow=True)
)
merged = merged.option("checkpointLocation", f"{FOLDER}/checkpoints/merges")
merged.foreachBatch(merge).start()
for query in spark.streams.active:
    query.awaitTermination()
