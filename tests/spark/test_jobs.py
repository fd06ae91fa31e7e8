"""Every job's transform: one body, over a stream and over a batch."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import SparkSession

from ebbtide.jobs.visits_windows_counter import count_by_window
from tests.spark.conftest import RunOver


def test_visits_windows_counter(spark: SparkSession, run_over: RunOver) -> None:
    times = ["07:00:00", "07:09:59", "07:10:00", "07:25:00", "07:00:00"]
    visits = spark.createDataFrame(
        [(n, datetime.fromisoformat(f"2025-09-04T{at}")) for n, at in enumerate(times)],
        "visit_id INT, event_time TIMESTAMP",
    )
    found = {
        str(row["window"]["start"])[11:16]: row["count"]  # type: ignore[index]
        for row in run_over(visits, count_by_window)
    }
    assert found == {"07:00": 3, "07:10": 1, "07:20": 1}
