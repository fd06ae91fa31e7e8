"""Every job's transform: one body, over a stream and over a batch."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import SparkSession

from ebbtide.systems import find_pipeline
from ebbtide.systems.browser_stats.pipeline import count_by_browser
from ebbtide.systems.stream_reprocessor.pipeline import count_by_window
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


def test_browser_stats(spark: SparkSession, run_over: RunOver) -> None:
    sent = ["Firefox 10:00", "Firefox 10:03", "Chrome 10:04", "Firefox 10:05", "Firefox 10:01"]
    visits = spark.createDataFrame(
        [(b, datetime.fromisoformat(f"2024-10-06T{at}:00")) for b, at in map(str.split, sent)],
        "browser STRING, eventTime TIMESTAMP",
    )
    found = run_over(visits, count_by_browser)
    assert {tuple(row) for row in found} == {
        ("browser", "window", "count", "last_event_time_in_window")
    }
    said = {
        f"{row['browser']} {row['window']['start']:%H:%M}-{row['window']['end']:%H:%M}": (  # type: ignore[index]
            row["count"],
            f"{row['last_event_time_in_window']:%H:%M}",
        )
        for row in found
    }
    assert said == {
        "Firefox 10:00-10:05": (3, "10:03"),
        "Chrome 10:00-10:05": (1, "10:04"),
        "Firefox 10:05-10:10": (1, "10:05"),
    }


def test_visits_micro_batch(spark: SparkSession, run_over: RunOver) -> None:
    """It hands its visits on as they come."""
    visits = spark.createDataFrame(
        [("140444734049152_4", datetime(2024, 1, 1, 1), "main")],
        "visit_id STRING, event_time TIMESTAMP, page STRING",
    )
    found = run_over(visits, find_pipeline("visits-micro-batch").transform, "append")
    assert found == [
        {
            "visit_id": "140444734049152_4",
            "event_time": datetime(2024, 1, 1, 1),
            "page": "main",
        }
    ]
