"""Spark on forks: what each gives is what should have been, and the original stays as it is."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.rewind import fork as forks
from tests import cells
from tests.spark.conftest import ShouldBe
from tests.trees import snapshot

pytestmark = pytest.mark.usefixtures("fresh_stores")

OLD, ALL = range(6), range(9)
CELLS = [
    ("hdfs", "join", 5),
    ("rocksdb", "tws", 2),
    ("v2", "session", 2),
    ("changelog", "windowed", 1),
]


@pytest.mark.parametrize(
    ("store", "query", "count"), CELLS, ids=[f"{store}-{query}" for store, query, _ in CELLS]
)
def test_forks_at_random_batches(
    store: str,
    query: str,
    count: int,
    spark: SparkSession,
    tmp_path: Path,
    should_be: ShouldBe,
) -> None:
    """Run on with the original out of sight, so that nothing is read from it by an old path."""
    checkpoint, files = tmp_path / "checkpoint", tmp_path / "in"
    run = partial(cells.run, spark, query, store, files)
    cells.write_input(files, OLD)
    first = run(checkpoint, snapshots=True)
    cells.forget_state(spark)  # and with it the eager maintenance
    before = snapshot(checkpoint)
    chosen = random.Random(f"{store} {query}").sample(range(first.batches[-1] + 2), count)
    made = [forks.fork_checkpoint(str(checkpoint), str(tmp_path / f"{n}"), n) for n in chosen]
    assert snapshot(checkpoint) == before
    hidden = checkpoint.rename(tmp_path / "hidden")
    cells.write_input(files, ALL)
    for fork in made:
        ran = run(Path(fork.checkpoint), files_per_batch=len(ALL))
        assert ran.batches[0] == fork.first_batch
        assert cells.result(query, [first, ran]) == should_be(query, ALL)
    assert snapshot(hidden) == before
