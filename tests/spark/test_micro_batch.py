"""The micro-batch job without a broker: what it prints, what comes again, and what does not."""
# ruff: noqa: T201 - printing is what is tested

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.systems.micro_batch.pipeline import pipeline
from ebbtide.systems.micro_batch.printing import print_from_tasks
from ebbtide.testing import Crash, Rehearsal

HEADER = "✍️ Printing visits"


def visit(number: int) -> dict[str, Any]:
    return {
        "visit_id": f"140444734049152_{number}",
        "event_time": "2024-01-01T01:00:00Z",
        "page": "main",
    }


def printed(number: int, task: int = 0) -> str:
    return (
        f"Partition[{task}] > Printing visit=Row(visit_id='140444734049152_{number}', "
        "event_time=datetime.datetime(2024, 1, 1, 1, 0), page='main')"
    )


def test_the_walk(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def out() -> list[str]:
        return capsys.readouterr().out.splitlines()

    with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
        rehearsal.feed(visit(4), visit(5))
        assert out() == [HEADER, printed(4), printed(5)]
        # stopped and started: only what is new
        rehearsal.stop()
        rehearsal.feed(visit(6))
        assert out() == [HEADER, printed(6)]
        # printed, and failed before its commit: the same batch again, whole
        rehearsal.crash("after write")
        with pytest.raises(Crash):
            rehearsal.feed(visit(7), visit(8))
        assert out() == [HEADER, printed(7), printed(8)]
        (again,) = rehearsal.resume()
        assert again.id == 2
        assert out() == [HEADER, printed(7), printed(8)]


def test_tasks_print_in_their_order(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def task(rows: Any) -> None:
        for row in rows:
            print("row", row["id"])
        print("done")

    print_from_tasks(spark.range(0, 4, 1, numPartitions=2), task)
    assert capsys.readouterr().out.splitlines() == (
        ["row 0", "row 1", "done", "row 2", "row 3", "done"]
    )


def test_a_task_that_fails_prints_nothing(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def task(rows: Any) -> None:
        for row in rows:
            print(row)
            raise ValueError(f"not {row['id']}")

    with pytest.raises(Exception, match="not 0"):
        print_from_tasks(spark.range(0, 1), task)
    assert not capsys.readouterr().out
