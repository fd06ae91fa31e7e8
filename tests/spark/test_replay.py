"""Exact replays without a broker: every batch as it was planned, and what new code changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide import Console, Delta, Files, Pipeline
from ebbtide.checkpoint import read_checkpoint
from ebbtide.config import Settings
from ebbtide.errors import UsageError
from ebbtide.replaying import ReplayOptions, ReplayResult, replay_pipeline
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.runtime.stream import StreamOptions, run_stream
from tests import cells
from tests.trees import snapshot

BATCHES = 30
SCHEMA = "k INT, v INT, at TIMESTAMP"
START = datetime(2025, 9, 4, 7, tzinfo=timezone.utc)
CHEAP = {**cells.HDFS, **cells.LAZY, "spark.sql.shuffle.partitions": "1"}


@pytest.fixture(autouse=True)
def cheap_state(spark: SparkSession, one_session: None) -> Iterator[None]:
    """Few partitions, and a store that starts at once."""
    del one_session
    before = {name: spark.conf.get(name, None) for name in CHEAP}
    for name, value in CHEAP.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def write_files(folder: Path, count: int) -> Path:
    """Three rows a file, five minutes later each; the source reads them in this order."""
    folder.mkdir()
    for n in range(count):
        at = START + timedelta(minutes=5 * n)
        rows = [{"k": k, "v": 10 * n + k, "at": at.isoformat()} for k in range(3)]
        path = folder / f"{n:03}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_756_969_200 + n,) * 2)
    return folder


def pairs(rows: DataFrame) -> DataFrame:
    """Each row with those of the same key in the ten minutes after it."""
    later = rows.select(*(F.col(name).alias(f"{name}2") for name in rows.columns))
    near = "k = k2 AND at2 > at AND at2 <= at + INTERVAL 10 MINUTES"
    return rows.join(later, F.expr(near)).select("k", "v", "v2")


def fixed_pairs(rows: DataFrame) -> DataFrame:
    """The same, but a number from 250 on counts ten times."""
    v = F.when(F.col("v") >= 250, F.col("v") * 10).otherwise(F.col("v"))
    return pairs(rows).withColumn("v", v)


def rows_of_batch(n: int) -> set[str]:
    """What batch n should write: file n is the later one of each pair."""
    return {
        json.dumps({"k": k, "v": 10 * m + k, "v2": 10 * n + k}, separators=(",", ":"))
        for m in (n - 2, n - 1)
        for k in range(3)
        if m >= 0 and n < BATCHES
    }


def times_ten(row: str) -> str:
    found = json.loads(row)
    return json.dumps(found | {"v": found["v"] * 10}, separators=(",", ":"))


def changed_in(n: int) -> set[str]:
    return {row for row in rows_of_batch(n) if json.loads(row)["v"] >= 250}


@dataclass(frozen=True)
class Stage:
    settings: Settings
    pipeline: Pipeline
    checkpoint: Path

    def run(self) -> None:
        options = StreamOptions(str(self.checkpoint), available_now=True)
        run_stream(self.pipeline, self.settings, options)

    def replay(
        self,
        transform: Callable[[DataFrame], DataFrame] | None = None,
        on_batch: Callable[[int, int], None] = lambda _done, _all: None,
        **options: Any,
    ) -> ReplayResult:
        pipeline = replace(self.pipeline, transform=transform or self.pipeline.transform)
        chosen = ReplayOptions(str(self.checkpoint), **options)
        return replay_pipeline(pipeline, self.settings, chosen, on_batch=on_batch)

    def rewind(self, batch: int) -> None:
        plan = plan_rewind(
            RewindRequest(
                str(self.checkpoint), ToBatch(batch), assume_stopped=True, remedy="restore"
            )
        )
        apply_rewind(plan, assume_stopped=True)


def make(folder: Path, files: int, **more: Any) -> Stage:
    source = Files(
        str(write_files(folder / "in", files)),
        schema=SCHEMA,
        options={"maxFilesPerTrigger": "1"},
    )
    pipeline = Pipeline(
        "pairs", **{"source": source, "event_time": "at", "transform": pairs, **more}
    )
    return Stage(Settings(home=folder / "home"), pipeline, folder / "checkpoint")


class PlugPulledError(Exception):
    """Somebody pulls the plug."""


def jsons(rows: DataFrame) -> list[str]:
    return sorted(row[0] for row in rows.select(F.to_json(F.struct("*"))).collect())


def test_thirty_batches_with_a_rate_limit_a_watermark_and_a_join(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    stage = make(tmp_path, BATCHES, watermark="10 minutes", sink=Files(str(out), "parquet"))
    stage.run()
    truth = sorted(row for n in range(BATCHES) for row in rows_of_batch(n))
    assert jsons(spark.read.parquet(str(out))) == truth
    last = BATCHES  # the one without input in which the last watermark was moved

    # new code to scratch: exactly the rows that it changes, and nothing is touched
    before = snapshot(tmp_path)
    found = stage.replay(fixed_pairs, to_scratch=True, from_batch=25, to_batch=29, rows=None)
    assert [v.verdict for v in found.verdicts] == ["identical"] + ["differs"] * 4
    for verdict in found.verdicts[1:]:
        assert set(verdict.old) == changed_in(verdict.batch)
        assert set(verdict.new) == {times_ten(row) for row in changed_in(verdict.batch)}
        assert (verdict.added, verdict.removed) == (len(verdict.new), len(verdict.old))
        assert (verdict.old_rows, verdict.new_rows, verdict.reason) == (6, 6, "")
    after = snapshot(tmp_path)
    assert {path: after[path] for path in before} == before
    assert all(path.startswith("home/") for path in set(after) - set(before))
    assert found.scratch is not None
    # a rewind of it must not take back what the first has written
    noted = json.loads(Path(found.scratch, "checkpoint/.ebbtide/pipeline.json").read_text())
    assert "sink" not in noted
    now = rows_of_batch(26) - changed_in(26) | {times_ten(row) for row in changed_in(26)}
    assert jsons(spark.read.parquet(f"{found.scratch}/rows/26")) == sorted(now)

    # the same code in place, all that there is, killed after ten batches and started again
    stage.rewind(0)

    def kill(done: int, _all: int) -> None:
        if done == 10:
            raise PlugPulledError

    with pytest.raises(PlugPulledError):
        stage.replay(on_batch=kill)
    assert read_checkpoint(str(stage.checkpoint)).logs.batches[-1].id == 9
    steps: list[tuple[int, int]] = []
    found = stage.replay(on_batch=lambda done, all_: steps.append((done, all_)))
    assert (steps[0], steps[-1]) == ((10, last + 1), (last + 1, last + 1))
    assert [(v.batch, v.verdict) for v in found.verdicts] == [
        (batch, "identical") for batch in range(last + 1)
    ]
    assert jsons(spark.read.parquet(str(out))) == truth
    with monkeypatch.context() as nothing:
        nothing.setattr("ebbtide.runtime.session.build_session", None)
        assert stage.replay() == found

    # new code in place: the old rows are those that the rewind has set aside, of a compacted entry
    stage.rewind(29)
    verdict = stage.replay(fixed_pairs, rows=2).verdicts[0]
    assert (verdict.batch, verdict.verdict, verdict.added, verdict.removed) == (29, "differs", 6, 6)
    assert set(verdict.old) < changed_in(29)
    assert len(verdict.new) == len(verdict.old) == 2


def test_new_code_in_place_over_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    """The old rows are read from commits that the restore has undone."""
    table = tmp_path / "table"
    spark.sql(f"CREATE TABLE delta.`{table}` ({SCHEMA}) USING delta PARTITIONED BY (k)")
    stage = make(tmp_path, 3, transform=lambda rows: rows, sink=Delta(str(table)))
    stage.run()
    fix = Fix("v > 20 AND k > 0")
    (beside,) = stage.replay(fix, to_scratch=True, from_batch=2).verdicts
    assert (beside.added, beside.removed, beside.reason) == (2, 2, "")
    stage.rewind(1)
    found = stage.replay(fix, rows=1)
    assert [v.verdict for v in found.verdicts] == ["identical", "differs"]
    differs = found.verdicts[1]
    assert (differs.added, differs.removed, differs.reason) == (2, 2, "")
    assert [json.loads(row)["v"] for row in (*differs.old, *differs.new)] == [21, 210]
    assert [
        row.v for row in spark.read.format("delta").load(str(table)).orderBy("v").collect()
    ] == [
        *(0, 1, 2, 10, 11, 12, 20),
        *(210, 220),
    ]
    assert stage.replay(fix).verdicts[1].verdict == "differs"
    # vacuumed: the verdict stays, and why there is no more to it is said
    stage.rewind(2)
    for path in table.rglob("*.parquet"):
        path.unlink()
    lost = stage.replay(rows=1).verdicts[0]
    assert lost.verdict == "differs"
    assert lost.reason.startswith("the differing rows cannot be shown: ")


def test_what_is_not_compared(tmp_path: Path) -> None:
    stage = make(tmp_path, 2, transform=lambda rows: rows, sink=Console())
    stage.run()
    fixed: dict[str, Any] = {"to_scratch": True, "from_batch": 0, "scratch": str(tmp_path / "mine")}
    found = stage.replay(Fix("v = 1"), **fixed)
    assert [(v.verdict, v.old_rows, v.new_rows, v.added) for v in found.verdicts] == [
        ("differs", 3, 3, None),
        ("identical", 3, 3, None),
    ]
    assert found.verdicts[0].reason.endswith("its sink does not show which rows it wrote")
    with pytest.raises(UsageError, match="mine is not empty"):
        stage.replay(**fixed)
    for path in (stage.checkpoint / ".ebbtide/history").iterdir():
        path.unlink()
    found = stage.replay(to_scratch=True, from_batch=1)
    assert [(v.batch, v.verdict, v.reason) for v in found.verdicts] == [
        (1, "not compared", "the history has no first run of it")
    ]


@dataclass(frozen=True)
class Fix:
    """Code that counts some rows ten times."""

    which: str

    def __call__(self, rows: DataFrame) -> DataFrame:
        v = F.when(F.expr(self.which), F.col("v") * 10).otherwise(F.col("v"))
        return rows.withColumn("v", v)
