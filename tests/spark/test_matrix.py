"""Every query over every state store: what a rewind and a replay leave is what should have been.

EBBTIDE_MATRIX=all runs all cells; without it, each query and each store a few times.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from tests import cells
from tests.spark.conftest import ShouldBe

pytestmark = pytest.mark.usefixtures("fresh_stores")

BATCH = cells.WRONG_FROM
OLD, ALL = range(BATCH + 2), range(11)
"""The files that the old timeline read, and those that are there in the end."""

RESTART = BATCH + 1
"""The replay runs one batch and is started again here. The old timeline left a snapshot of this
very version, the replay leaves none: whoever kept the old one loads it now."""

NO_EXTRA_BATCH = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}

EVERY = [(store, query) for query in cells.QUERIES for store in cells.STORES]
SAMPLE = [
    ("hdfs", "aggregation"),
    ("changelog", "windowed"),
    ("v2", "deduplication"),
    ("hdfs", "join"),
    ("changelog", "session"),
    ("rocksdb", "chained"),
    ("rocksdb", "tws"),
    ("v2", "partitions"),
]
CHOSEN = (
    [cell for cell in EVERY if cells.allowed(*cell)]
    if os.environ.get("EBBTIDE_MATRIX") == "all"
    else SAMPLE
)


@dataclass(frozen=True)
class Cell:
    """One query over one store, in a folder of its own."""

    spark: SparkSession
    store: str
    query: str
    folder: Path

    def run(self, checkpoint: Path, files: range, **more: Any) -> cells.Ran:
        cells.write_input(self.folder / "in", files)
        return cells.run(self.spark, self.query, self.store, self.folder / "in", checkpoint, **more)

    def go_wrong(self, checkpoint: Path) -> cells.Ran:
        """The old timeline: right, then started anew with the wrong logic; and what was right."""
        right = self.run(checkpoint, range(BATCH), snapshots=True, conf=NO_EXTRA_BATCH)
        wrong = self.run(checkpoint, OLD, snapshots=True, conf=NO_EXTRA_BATCH, wrong=True)
        assert (right.batches[-1], wrong.batches[0]) == (BATCH - 1, BATCH)
        assert all(RESTART in versions for versions in cells.snapshots_in(checkpoint).values())
        return right

    def replay(self, checkpoints: list[Path], before: cells.Ran) -> list[list[cells.Row]]:
        """What is in the sink of each after its replay, one more start, and new files."""
        replayed = [self.run(path, OLD, once=True) for path in checkpoints]
        after = [self.run(path, ALL, files_per_batch=len(ALL)) for path in checkpoints]
        assert {ran.batches[0] for ran in replayed} == {BATCH}
        assert {ran.batches[0] for ran in after} == {RESTART}
        pairs = zip(replayed, after, strict=True)
        return [cells.result(self.query, [before, *pair]) for pair in pairs]


def drop_logs_only(checkpoint: Path) -> None:
    """The rewind that suggests itself, and leaves all state where it is."""
    for log, last in (("offsets", BATCH), ("commits", BATCH - 1)):
        for path in (checkpoint / log).iterdir():
            if int(path.name.removeprefix(".").removesuffix(".crc")) > last:
                path.unlink()


@pytest.mark.parametrize(("store", "query"), CHOSEN, ids=["-".join(cell) for cell in CHOSEN])
def test_a_replay_leaves_what_should_have_been(
    store: str,
    query: str,
    spark: SparkSession,
    tmp_path: Path,
    should_be: ShouldBe,
) -> None:
    cell, checkpoint = Cell(spark, store, query, tmp_path), tmp_path / "checkpoint"
    before = cell.go_wrong(checkpoint)
    cells.forget_state(spark)  # and with it the eager maintenance
    naive = shutil.copytree(checkpoint, tmp_path / "naive", symlinks=True)

    plan = plan_rewind(
        RewindRequest(str(checkpoint), ToBatch(BATCH), assume_stopped=True, remedy="none")
    )
    apply_rewind(plan, assume_stopped=True)
    drop_logs_only(naive)
    leaks = store in ("hdfs", "changelog")

    ours, *theirs = cell.replay([checkpoint, naive] if leaks else [checkpoint], before)
    assert ours == should_be(query, ALL)
    assert should_be(query, ALL) not in theirs
