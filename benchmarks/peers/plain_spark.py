"""The works in plain Spark, as its documentation writes them: nothing of Ebbtide is imported.

`plain_spark.py WORK SERVERS TOPIC OUT FOLDER JARS BATCH`. What is tuned: RocksDB for state, as many
shuffle partitions as cores, batches of a bounded size, no web UI.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

WORK, SERVERS, TOPIC, OUT, FOLDER, JARS, BATCH = sys.argv[1:]
_SCHEMA = "event_id STRING, visit_id INT, event_time TIMESTAMP, page STRING"
_REPORT = "visit_id INT, visited_pages INT, is_finished BOOLEAN"
_GAP_MS = 600_000
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

spark = (
    SparkSession.builder.master("local[*]")
    .config("spark.driver.extraClassPath", JARS)
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def read() -> DataFrame:
    """The records of the topic."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH)
        .load()
    )


def events() -> DataFrame:
    """The events of the topic."""
    event = F.from_json(F.col("value").cast("string"), _SCHEMA)
    return read().select(event.alias("event")).select("event.*")


def windows() -> DataFrame:
    """Events per ten minutes."""
    timed = events().withWatermark("event_time", "20 minutes")
    counts = timed.groupBy(F.window("event_time", "10 minutes")).count()
    return counts.select(F.to_json(F.struct("window", "count")).alias("value"))


def visits() -> DataFrame:
    """Visits with a watermark, and the time of each event in milliseconds."""
    timed = events().withWatermark("event_time", "15 minutes")
    return timed.withColumn("ms", F.unix_millis("event_time"))


def transform_with_state() -> DataFrame:
    """Reports of visits, with transformWithState."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Pages(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            self._pages = handle.getValueState("pages", "pages INT")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: N803
        ) -> Iterator[Row]:
            times = [row["ms"] for row in rows]
            held = self._pages.get()
            pages = (held[0] if held else 0) + len(times)
            self._pages.update((pages,))
            watermark = timerValues.getCurrentWatermarkInMs()
            for timer in self._handle.listTimers():
                self._handle.deleteTimer(timer)
            self._handle.registerTimer((watermark if watermark > 0 else max(times)) + _GAP_MS)
            yield Row(visit_id=key[0], visited_pages=pages, is_finished=False)

        def handleExpiredTimer(  # noqa: N802
            self,
            key: Any,
            timerValues: Any,  # noqa: ARG002, N803
            expiredTimerInfo: Any,  # noqa: ARG002, N803
        ) -> Iterator[Row]:
            held = self._pages.get()
            self._pages.clear()
            yield Row(visit_id=key[0], visited_pages=held[0], is_finished=True)

        def close(self) -> None:
            pass

    grouped: Any = visits().groupBy("visit_id")
    found: DataFrame = grouped.transformWithState(Pages(), _REPORT, "Update", "EventTime")
    return found.select(F.to_json(F.struct("*")).alias("value"))


def apply_in_pandas() -> DataFrame:
    """Reports of visits, with applyInPandasWithState."""
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

    def follow(key: Any, frames: Iterable[Any], state: GroupState) -> Iterator[Any]:
        pages = state.get[0] if state.exists else 0
        finished = state.hasTimedOut
        if finished:
            state.remove()
        else:
            newest = 0
            for frame in frames:
                pages, newest = pages + len(frame), max(newest, int(frame["ms"].max()))
            state.update((pages,))
            watermark = state.getCurrentWatermarkMs()
            state.setTimeoutTimestamp((watermark if watermark > 0 else newest) + _GAP_MS)
        report = {"visit_id": [key[0]], "visited_pages": [pages], "is_finished": [finished]}
        yield pd.DataFrame(report)

    found = (
        visits()
        .groupBy("visit_id")
        .applyInPandasWithState(
            follow, _REPORT, "pages INT", "update", GroupStateTimeout.EventTimeTimeout
        )
    )
    return found.select(F.to_json(F.struct("*")).alias("value"))


def archive() -> None:
    """The records by hour of event time, to a Delta table."""
    time = F.from_json(F.col("value").cast("string"), "event_time TIMESTAMP")["event_time"]
    rows = read().select(
        *("key", "value", "topic", "partition", "offset", "timestamp"),
        time.alias("event_time"),
        F.to_date(time).alias("day"),
        F.hour(time).alias("hour"),
    )
    query = rows.writeStream.format("delta").partitionBy("day", "hour")
    query = query.option("checkpointLocation", f"{FOLDER}/checkpoint").trigger(availableNow=True)
    query.start(f"{FOLDER}/table").awaitTermination()


def to_kafka(result: DataFrame) -> None:
    """Write results until all that was there has been read."""
    (
        result.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("topic", OUT)
        .option("checkpointLocation", f"{FOLDER}/checkpoint")
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if WORK == "archive":
    archive()
else:
    works = {
        "windows": windows,
        "transformWithState": transform_with_state,
        "applyInPandasWithState": apply_in_pandas,
    }
    to_kafka(works[WORK]())
spark.stop()
