"""The browser statistics without a broker: the scenario's steps, without state and with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.pipeline import Pipeline
from ebbtide.systems.browser_stats.pipeline import stateful, stateless
from ebbtide.testing import Crash, Rehearsal, RehearsedBatch, run_batch

SENT = {
    "a": ["10:00 Firefox", "10:01 Chrome", "10:02 Safari"],
    "b": ["10:00 Firefox", "10:03 Firefox"],
    "c": ["09:40 Firefox"],
    "d": ["09:30 Firefox"],
    "e": ["10:30 Firefox"],
    "f": ["10:00 Firefox"],
}
EACH = {"Firefox 10:00 1 10:00", "Chrome 10:00 1 10:01", "Safari 10:00 1 10:02"}


def visits(sent: list[str]) -> list[dict[str, Any]]:
    return [
        {"userId": 1, "page": "index.html", "eventTime": f"2024-10-06T{at}:00Z", "browser": browser}
        for at, browser in map(str.split, sent)
    ]


def short(rows: list[dict[str, Any]]) -> set[str]:
    """Browser, start of the window, count, last event time."""
    return {
        f"{row['browser']} {row['window']['start']:%H:%M} {row['count']} "
        f"{row['last_event_time_in_window']:%H:%M}"
        for row in rows
    }


def walk(pipeline: Pipeline, spark: SparkSession, folder: Path) -> dict[str, list[RehearsedBatch]]:
    with Rehearsal(pipeline, spark, folder) as rehearsal:
        return {step: rehearsal.feed(*visits(sent)) for step, sent in SENT.items()}


def test_without_state(spark: SparkSession, tmp_path: Path) -> None:
    found = walk(stateless, spark, tmp_path)
    assert {step: [short(batch.rows) for batch in batches] for step, batches in found.items()} == {
        "a": [EACH],
        "b": [{"Firefox 10:00 2 10:03"}],
        "c": [{"Firefox 09:40 1 09:40"}],
        "d": [{"Firefox 09:30 1 09:30"}],
        "e": [{"Firefox 10:30 1 10:30"}],
        "f": [{"Firefox 10:00 1 10:00"}],
    }


def test_with_state(spark: SparkSession, tmp_path: Path) -> None:
    found = walk(stateful, spark, tmp_path)
    # where the watermark moves, an empty batch follows
    assert {step: [short(batch.rows) for batch in batches] for step, batches in found.items()} == {
        "a": [EACH, set()],
        "b": [{"Firefox 10:00 3 10:03"}, set()],
        "c": [{"Firefox 09:40 1 09:40"}],
        "d": [set()],
        "e": [{"Firefox 10:30 1 10:30"}, set()],
        "f": [set()],
    }
    marks = {step: f"{batches[-1].watermark:%H:%M}" for step, batches in found.items()}
    assert marks == {
        "a": "09:42",
        "b": "09:43",
        "c": "09:43",
        "d": "09:43",
        "e": "10:10",
        "f": "10:10",
    }


def test_with_state_a_crash_counts_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    with Rehearsal(stateful, spark, tmp_path) as rehearsal:
        rehearsal.feed(*visits(SENT["a"]))
        rehearsal.crash("after write")
        with pytest.raises(Crash):
            rehearsal.feed(*visits(SENT["b"]))
        again = rehearsal.resume()
        assert short(again[0].rows) == {"Firefox 10:00 3 10:03"}


def test_all_at_once(spark: SparkSession) -> None:
    """As a plain batch nothing is late, and both are the same function."""
    everything = visits([visit for sent in SENT.values() for visit in sent])
    due = {
        *("Firefox 10:00 4 10:03", "Chrome 10:00 1 10:01", "Safari 10:00 1 10:02"),
        *("Firefox 09:40 1 09:40", "Firefox 09:30 1 09:30", "Firefox 10:30 1 10:30"),
    }
    for pipeline in (stateless, stateful):
        assert short(run_batch(pipeline, spark, everything)) == due
