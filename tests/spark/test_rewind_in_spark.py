"""What Spark does with a checkpoint that was interrupted, rewound or brought back.

EBBTIDE_CUTS=all cuts the power before every change, on six layouts; without it, before a few of
them, on three. (That every cut is safe and finishes is tested without Spark, in tests/crash.)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from ebbtide.checkpoint import read_checkpoint
from ebbtide.checkpoint.verification import verify_checkpoint
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder
from tests import cells
from tests.power import barrier, cut, fragile
from tests.spark.conftest import ShouldBe
from tests.trees import snapshot

pytestmark = pytest.mark.usefixtures("fresh_stores")

FIRST = 2
OLD, ALL = range(5), range(7)
EVERY = os.environ.get("EBBTIDE_CUTS") == "all"
CUTS = [("changelog", "aggregation"), ("v2", "session"), ("hdfs", "join")]
if EVERY:
    CUTS += [("hdfs", "aggregation"), ("rocksdb", "windowed"), ("rocksdb", "tws")]
KEEP_FIVE = {
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0",
}


def rewind(checkpoint: Path, batch: int, on: WritableFolder | None = None) -> None:
    plan = plan_rewind(
        RewindRequest(str(checkpoint), ToBatch(batch), assume_stopped=True, remedy="none")
    )
    apply_rewind(plan, assume_stopped=True, folder=on)


def undo(checkpoint: Path, on: WritableFolder | None = None) -> None:
    undo_rewind(str(checkpoint), assume_stopped=True, folder=on)


def cut_points(
    checkpoint: Path, change: Callable[[Path, WritableFolder], None], tmp: Path
) -> list[int]:
    """After how many changes to cut the power: all that there are, or a few from all parts."""
    counted = fragile(shutil.copytree(checkpoint, tmp / "counted"), 1 << 60)
    change(tmp / "counted", counted)
    shutil.rmtree(tmp / "counted")
    steps = (1 << 60) - counted.left[0]
    few = [3, steps // 4, steps // 2, 3 * steps // 4, steps - 4]
    return list(range(steps)) if EVERY else few


@pytest.mark.parametrize(("store", "query"), CUTS, ids=["-".join(cell) for cell in CUTS])
def test_spark_refuses_what_was_interrupted(
    store: str, query: str, spark: SparkSession, tmp_path: Path, should_be: ShouldBe
) -> None:
    """Once for each distinct tree that a power cut leaves in a rewind and in an undo."""
    checkpoint, files = tmp_path / "checkpoint", tmp_path / "in"
    run = partial(cells.run, spark, query, store, files)
    cells.write_input(files, OLD)
    first = run(checkpoint)
    before = snapshot(checkpoint)

    def refuses(change: Callable[..., None], *batch: int) -> None:
        whole = shutil.copytree(checkpoint, tmp_path / "whole")
        change(whole, *batch)
        ends = (snapshot(checkpoint), snapshot(whole))
        shutil.rmtree(whole)
        seen = []
        for n in cut_points(checkpoint, lambda path, on: change(path, *batch, on), tmp_path):
            broken = shutil.copytree(checkpoint, tmp_path / "broken")
            assert cut(broken, n, partial(change, broken, *batch))
            tree = snapshot(broken)
            if (line := barrier(broken)) is None:
                assert tree in ends, "Spark would start on something in between"
            elif tree not in seen:
                with pytest.raises(StreamingQueryException) as refused:
                    run(broken)
                assert line.splitlines()[0] in str(refused.value)
                assert "Finish it: ebbtide" in line
                seen.append(tree)
            shutil.rmtree(broken)
        assert len(seen) >= 3

    refuses(rewind, FIRST)
    rewind(checkpoint, FIRST)
    again = run(checkpoint)
    assert again.batches[0] == FIRST
    refuses(undo)
    undo(checkpoint)
    assert {path: snapshot(checkpoint)[path] for path in before} == before
    cells.write_input(files, ALL)
    after = run(checkpoint)
    assert cells.result(query, [first, after]) == should_be(query, ALL)


@pytest.mark.parametrize(
    ("store", "query", "batch", "replan"),
    [
        ("rocksdb", "aggregation", 0, False),
        ("hdfs", "aggregation", 0, True),
        ("v2", "aggregation", 3, True),
    ],
)
def test_from_the_beginning_and_with_new_boundaries(
    store: str,
    query: str,
    batch: int,
    replan: bool,
    spark: SparkSession,
    tmp_path: Path,
    should_be: ShouldBe,
) -> None:
    checkpoint, files = tmp_path / "checkpoint", tmp_path / "in"
    run = partial(cells.run, spark, query, store, files)
    cells.write_input(files, OLD)
    first = run(checkpoint, wrong=True)
    cells.forget_state(spark)
    plan = plan_rewind(
        RewindRequest(
            str(checkpoint), ToBatch(batch), replan=replan, assume_stopped=True, remedy="none"
        )
    )
    apply_rewind(plan, assume_stopped=True)
    again = run(checkpoint)
    assert again.batches[0] == batch
    assert cells.result(query, [first, again]) == should_be(query, OLD)


@pytest.mark.parametrize("store", ["hdfs", "rocksdb", "changelog", "v2"])
def test_undo_after_spark_has_cleaned_up(
    store: str, spark: SparkSession, tmp_path: Path, should_be: ShouldBe
) -> None:
    """Five batches are kept, and so many follow that nothing up to the first one is left."""
    checkpoint, files = tmp_path / "checkpoint", tmp_path / "in"
    run = partial(cells.run, spark, "aggregation", store, files, checkpoint)
    cells.write_input(files, range(7))
    old = run(conf=KEEP_FIVE, snapshots=True)
    batch = old.batches[-1] - 2
    cells.forget_state(spark)
    rewind(checkpoint, batch)
    cells.write_input(files, range(7, 20))
    new = run(conf=KEEP_FIVE, snapshots=True)
    assert new.batches[0] == batch
    there = read_checkpoint(str(checkpoint))
    assert all(batch < store.versions.all[0] for store in there.stores), "not cleaned up yet"
    assert there.logs.batches[0].id > batch
    ssts = set((checkpoint / "state").rglob("*.sst"))

    cells.forget_state(spark)  # stop the whole application: maintenance goes on after a query
    undo(checkpoint)
    back = read_checkpoint(str(checkpoint))
    assert back.logs.latest_committed is not None
    assert back.logs.latest_committed.id == old.batches[-1]
    proofs = {p.batch: p.verdict for p in verify_checkpoint(str(checkpoint)).proofs}
    assert [proofs[n] for n in range(batch, old.batches[-1] + 1)] == ["good"] * 3
    if store != "hdfs":
        assert set((checkpoint / "state").rglob("*.sst")) > ssts, "none had been reaped"
    after = run(files_per_batch=3)
    assert after.batches[0] == old.batches[-1] + 1
    assert cells.result("aggregation", [old, after]) == should_be("aggregation", range(20))
