"""A connector that nobody in Ebbtide has heard of, in Spark: run, rewound, run again, undone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from ebbtide import Pipeline
from ebbtide.checkpoint import read_checkpoint
from ebbtide.config import Settings
from ebbtide.connectors import register, registry
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.runtime.stream import StreamOptions, run_stream
from ebbtide.testing import run_batch
from tests.ledger import CONNECTOR, Ledger

pytestmark = pytest.mark.usefixtures("one_session")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    register(CONNECTOR)


def make_pipeline(tmp_path: Path, transform: Callable[[DataFrame], DataFrame]) -> Pipeline:
    return Pipeline(
        "ledger-copy",
        source=Ledger(str(tmp_path / "lines")),
        event_time="at",
        transform=transform,
        sink=Ledger(str(tmp_path / "out")),
    )


def pages(tmp_path: Path) -> dict[int, list[int]]:
    there = {int(page.stem): page for page in (tmp_path / "out").glob("*.json")}
    return {number: json.loads(there[number].read_text()) for number in sorted(there)}


def test_it_runs_goes_back_and_runs_again(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("")
    checkpoint = str(tmp_path / "c")
    options = StreamOptions(checkpoint, available_now=True)
    wrong = make_pipeline(tmp_path, lambda rows: rows.selectExpr("n * 10 AS n"))
    for line in range(3):
        with (tmp_path / "lines").open("a") as lines:
            lines.write(f"{line}\n")
        run_stream(wrong, settings, options)
    assert pages(tmp_path) == {0: [0], 1: [10], 2: [20]}
    plan = plan_rewind(RewindRequest(checkpoint, ToBatch(1), assume_stopped=True))
    details = {check.name: check.detail for check in plan.checks}
    assert details["source"] == "the ledger has 3 of 3 lines"
    apply_rewind(plan, assume_stopped=True)
    assert pages(tmp_path) == {0: [0]}
    right = make_pipeline(tmp_path, lambda rows: rows.select("n"))
    for _ in range(2):
        run_stream(right, settings, options)
    assert pages(tmp_path) == {0: [0], 1: [1], 2: [2]}
    undo_rewind(checkpoint, assume_stopped=True)
    assert pages(tmp_path) == {0: [0], 1: [10], 2: [20]}
    assert read_checkpoint(checkpoint).logs.batches[-1].id == 2


def test_its_pipeline_can_be_tested(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("7\n")
    pipeline = make_pipeline(tmp_path, lambda rows: rows.select("n"))
    assert run_batch(pipeline, spark, [{"n": 3, "at": "2025-09-04T07:00:00Z"}]) == [{"n": 3}]
