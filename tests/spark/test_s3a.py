"""Spark with a checkpoint on S3: it refuses one whose rewind was interrupted, on S3A as on disk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from ebbtide.checkpoint import Journal
from ebbtide.storage import open_writable
from tests import cells, store_cuts
from tests.power import PowerCutError, fragile
from tests.servers.store import Store
from tests.servers.stores import Stores
from tests.spark.conftest import ShouldBe

pytestmark = pytest.mark.usefixtures("fresh_stores")
OLD, ALL = range(3), range(4)


@pytest.fixture
def s3(use: Stores, spark: SparkSession) -> Iterator[Store]:
    """S3, which Ebbtide finds by its environment and Spark by its settings."""
    store = use("s3")
    settings = {name.removeprefix("spark.hadoop."): value for name, value in store.spark.items()}
    with cells._settings(spark, settings):
        yield store


def test_spark_refuses_what_was_interrupted_on_s3a(
    s3: Store, spark: SparkSession, tmp_path: Path, should_be: ShouldBe
) -> None:
    url = f"{s3.new_root()}/checkpoint"
    spark_url, *_ = s3.spell(url)
    run = partial(cells.run, spark, "aggregation", "changelog", tmp_path / "in", spark_url)
    cells.write_input(tmp_path / "in", OLD)
    first = run()
    for change in (store_cuts.rewind, store_cuts.undo):
        with pytest.raises(PowerCutError):
            change(url, fragile(url, _middle(s3, url, change)))
        line = store_cuts.barrier(s3.contents(url))
        assert line is not None
        with pytest.raises(StreamingQueryException) as refused:
            run()
        assert line.splitlines()[0] in str(refused.value)
        change(url)
        assert Journal.read(open_writable(url)) is None
        assert store_cuts.barrier(s3.contents(url)) is None
        cells.forget_state(spark)
        if change is store_cuts.rewind:
            assert run().batches == [store_cuts.FIRST, 2]
    cells.write_input(tmp_path / "in", ALL)
    assert cells.result("aggregation", [first, run()]) == should_be("aggregation", ALL)


def _middle(store: Store, url: str, change: store_cuts.Change) -> int:
    """After how many changes the work is half done, as it goes with a copy."""
    copy = store.write(f"{store.new_root()}/copy", store.everything(url))
    counted = fragile(copy, 1 << 60)
    change(copy, counted)
    return ((1 << 60) - counted.left[0]) // 2
