"""Late records: which ones Spark drops, and how many records those are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.connectors.spark.late import count_late, find_watermarked_key, with_id

SCHEMA = "visit_id INT, at TIMESTAMP"
TEN, FIVE = "10 minutes", "5 minutes"
WATERMARK_MS = 1_756_970_400_000
"""07:20, the watermark of the batch before the late ones: ten minutes before the visit at 07:30."""
COMBINED = [(n, f"07:0{n % 10}:30") for n in range(40)]
"""Late for every window of ten minutes; for Spark they are a handful of groups."""
EDGES = [(50, "07:10:00"), (51, "07:19:59"), (52, "07:20:00"), (53, "07:25:00"), (54, "07:31:00")]

Query = Callable[..., DataFrame]
"""Of rows, and of columns to group by besides the time."""


def of_windows(visits: DataFrame, *keys: str) -> DataFrame:
    return visits.groupBy(F.window("at", TEN), *keys).count()


def of_overlapping(visits: DataFrame, *keys: str) -> DataFrame:
    return visits.groupBy(F.window("at", TEN, FIVE), *keys).count()


def of_filtered(visits: DataFrame, *keys: str) -> DataFrame:
    return of_windows(visits.where("visit_id % 2 = 0"), *keys)


def of_sessions(visits: DataFrame, *keys: str) -> DataFrame:
    return visits.groupBy(F.session_window("at", FIVE), *keys).count()


def of_times(visits: DataFrame, *keys: str) -> DataFrame:
    return visits.groupBy("at", *keys).count()


def of_windows_of_windows(visits: DataFrame) -> DataFrame:
    again = F.window(F.window_time("window"), "20 minutes")
    return of_windows(visits).groupBy(again).count()


LATE: dict[Query, tuple[int, str, str]] = {
    of_windows: (42, "07:00", "07:20"),
    of_overlapping: (42, "06:55", "07:20"),  # each for one window or for both
    of_filtered: (21, "07:00", "07:20"),
    of_sessions: (41, "07:00", "07:15"),  # the gap after it has ended
    of_times: (43, "07:00", "07:20"),  # the watermark has reached it
    of_windows_of_windows: (42, "07:00", "07:20"),
}
DROPPED = {of_windows: 42, of_overlapping: 83, of_filtered: 21, of_sessions: 41, of_times: 43}
"""By Spark, if no two rows are in one group: of windows that overlap, rows are dropped singly."""


def rows(spark: SparkSession, visits: list[tuple[int, str]]) -> DataFrame:
    made = spark.createDataFrame(visits, "visit_id INT, clock STRING")
    time = F.to_timestamp(F.concat(F.lit("2025-09-04T"), "clock"))
    return made.select("visit_id", time.alias("at"))


@pytest.mark.parametrize("query", LATE)
def test_late_rows_are_counted_before_they_are_combined(
    spark: SparkSession, tmp_path: Path, query: Query
) -> None:
    late, start, end = LATE[query]
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path))
    key = find_watermarked_key(query(stream.withWatermark("at", TEN)))
    assert key is not None
    batch = with_id(rows(spark, COMBINED + EDGES))
    found = count_late(spark, query(batch), key, WATERMARK_MS)
    assert (found.records, found.exact) == (late, True)
    assert [time[11:16] for time in found.times or ()] == [start, end]
    # rows of windows that overlap cannot be told apart without their id
    apart = count_late(spark, query(batch.drop(batch.columns[-1])), key, WATERMARK_MS)
    assert (apart.records, apart.exact) == (
        (83, False) if query is of_overlapping else (late, True)
    )


@pytest.mark.parametrize("query", DROPPED)
def test_spark_drops_the_same_rows(spark: SparkSession, tmp_path: Path, query: Query) -> None:
    """Where each row is a group of its own, Spark's number is that of the rows."""
    for visits in ([(0, "07:30:00")], COMBINED + EDGES):
        rows(spark, visits).write.mode("append").parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
        running = (
            query(stream.withWatermark("at", TEN), "visit_id")
            .writeStream.format("noop")
            .outputMode("append")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        running.awaitTermination()
    progress = [json.loads(one.json()) for one in running._jsq.recentProgress()]
    (read,) = [one for one in progress if one["numInputRows"]]
    dropped = [one["numRowsDroppedByWatermark"] for one in read["stateOperators"]]
    assert sum(dropped) == DROPPED[query]


@pytest.mark.parametrize(
    "query",
    [
        lambda r: r,
        lambda r: r.dropDuplicatesWithinWatermark(["visit_id"]),
        lambda r: r.groupBy("visit_id").count(),
        # what goes into the windows depends on other batches, or comes twice
        lambda r: of_windows(r.dropDuplicates(["visit_id", "at"])),
        lambda r: of_windows(r.union(r)),
        lambda r: of_windows(r.join(r.select(F.col("visit_id").alias("v"), "at"), "at")),
    ],
)
def test_what_cannot_be_counted_from_one_batch_has_no_key(
    spark: SparkSession, tmp_path: Path, query: Query
) -> None:
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path))
    assert find_watermarked_key(query(stream.withWatermark("at", TEN))) is None
