"""Spark on forks that keep only the position: every record is read once, whatever happens."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import write_deltalake
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide import fork, read_offsets
from ebbtide.errors import CheckpointError
from ebbtide.rewind import fork as forks
from ebbtide.storage import WritableFolder
from tests import cells
from tests.power import cut

pytestmark = pytest.mark.usefixtures("fresh_stores")

Rows = list[tuple[int, list[tuple[object, ...]]]]
"""Each batch that ran with its rows, failed ones included."""
START = 1_700_000_000


def write(folder: Path, numbers: Iterable[int]) -> None:
    """A file for each number, in the order of their times."""
    folder.mkdir(exist_ok=True)
    for n in numbers:
        file = folder / f"{n:03}.json"
        file.write_text(json.dumps({"n": n, "at": START + 60 * n}))
        os.utime(file, (START + n, START + n))


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("n INT, at LONG").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder))


def run(rows: DataFrame, checkpoint: Path, *, mode: str = "append", fail_in: int = -1) -> Rows:
    """Run a query over all that is there, or until it fails in a batch."""
    ran: Rows = []

    def keep(batch: DataFrame, id_: int) -> None:
        ran.append((id_, sorted(tuple(row) for row in batch.collect())))
        if id_ == fail_in:
            raise RuntimeError("as asked")

    writer = rows.writeStream.foreachBatch(keep).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    if fail_in < 0:
        query.awaitTermination()
    else:
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
    return ran


def numbers(ran: Rows) -> list[int]:
    return [row[0] for _, rows in ran for row in rows]  # type: ignore[misc]


def test_without_state(spark: SparkSession, tmp_path: Path) -> None:
    """At a batch in the compacted log of the files, and at the next one; forked again after."""
    files, old, new = tmp_path / "in", tmp_path / "c", tmp_path / "n"
    write(files, range(12))
    assert numbers(run(stream(spark, files).select("n"), old)) == list(range(12))
    made = {8: tmp_path / "from-8", 12: new}
    fork(old, made[8], at_batch=8, offsets_only=True)
    fork(old, new, offsets_only=True)
    write(files, [12])
    for begin, where in made.items():
        failed = run(stream(spark, files).select("n"), where, fail_in=0)
        again = run(stream(spark, files).select("n"), where)
        assert (failed[0], again[0][0]) == (again[0], 0)
        assert numbers(again) == list(range(begin, 13))
    # the new query goes on as any other, past the compaction of its own log
    write(files, range(13, 22))
    assert numbers(run(stream(spark, files).select("n"), new)) == list(range(13, 22))
    assert (new / "sources/0/9.compact").exists()
    fork(new, tmp_path / "third", offsets_only=True)
    write(files, [22])
    for where in (new, tmp_path / "third"):
        assert numbers(run(stream(spark, files).select("n"), where)) == [22]


def test_nothing_new(spark: SparkSession, tmp_path: Path) -> None:
    files, old, new = tmp_path / "in", tmp_path / "c", tmp_path / "n"
    write(files, range(3))
    run(stream(spark, files).select("n"), old)
    fork(old, new, offsets_only=True)
    assert numbers(run(stream(spark, files).select("n"), new)) == []
    assert numbers(run(stream(spark, files).select("n"), new)) == []
    write(files, [3])
    assert numbers(run(stream(spark, files).select("n"), new)) == [3]


def count(rows: DataFrame) -> DataFrame:
    return rows.groupBy((F.col("n") % 3).alias("key")).agg(F.count("*"), F.sum("n"))


def truth(read: Iterable[int]) -> dict[object, tuple[object, ...]]:
    by_key: dict[int, list[int]] = {}
    for n in read:
        by_key.setdefault(n % 3, []).append(n)
    return {key: (len(of), sum(of)) for key, of in by_key.items()}


def last_rows(ran: Rows) -> dict[object, tuple[object, ...]]:
    return {row[0]: row[1:] for _, rows in ran for row in rows}


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[None]:
    """Settings that a test makes are gone after it."""
    names = {*cells.HDFS, *cells.STORES["v2"], "spark.sql.shuffle.partitions"}
    before = {name: spark.conf.get(name, None) for name in names}
    yield
    use(spark, before)


def use(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.mark.usefixtures("conf")
@pytest.mark.parametrize(
    ("old_store", "new_store"), [("hdfs", "hdfs"), ("rocksdb", "rocksdb"), ("hdfs", "v2")]
)
def test_another_aggregation(
    old_store: str, new_store: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The new code has other state, in another number of partitions, in another store."""
    files, old, new = tmp_path / "in", tmp_path / "c", tmp_path / "n"
    write(files, range(3))
    use(spark, {**cells.STORES[old_store], "spark.sql.shuffle.partitions": "2"})
    first = stream(spark, files).groupBy(F.col("n").cast("string")).count()
    run(first, old, mode="update")
    cells.forget_state(spark)
    fork(old, new, offsets_only=True)

    use(spark, {**cells.STORES[new_store], "spark.sql.shuffle.partitions": "3"})
    write(files, range(3, 6))
    run(count(stream(spark, files)), new, mode="update", fail_in=0)
    ran = run(count(stream(spark, files)), new, mode="update")
    write(files, range(6, 8))
    ran += run(count(stream(spark, files)), new, mode="update")
    assert last_rows(ran) == truth(range(3, 8))
    assert len(list((new / "state/0").glob("[0-9]"))) == 3


def test_several_sources(spark: SparkSession, tmp_path: Path) -> None:
    """Two folders of files, one of them read twice; each keeps its own place."""
    left, right, old, new = (tmp_path / name for name in ("left", "right", "c", "n"))

    def build() -> DataFrame:
        one, two = stream(spark, left), stream(spark, right)
        return one.union(two).union(one.withColumn("n", F.col("n") + 1000)).select("n")

    write(left, range(4))
    write(right, range(100, 102))
    everything = [*range(4), *range(100, 102), *range(1000, 1004)]
    assert sorted(numbers(run(build(), old))) == everything
    fork(old, new, offsets_only=True)
    fork(old, tmp_path / "m", at_batch=2, offsets_only=True)
    write(left, range(4, 6))
    write(right, range(102, 103))
    later = [4, 5, 102, 1004, 1005]
    run(build(), new, fail_in=0)
    assert sorted(numbers(run(build(), new))) == later
    # the two folders were read file by file, side by side
    assert sorted(numbers(run(build(), tmp_path / "m"))) == sorted([*later, 2, 3, 1002, 1003])


def test_the_watermark_starts_over(spark: SparkSession, tmp_path: Path) -> None:
    """A record that is late for the old query is not late for the new one."""
    files, old, new = tmp_path / "in", tmp_path / "c", tmp_path / "n"

    def build() -> DataFrame:
        timed = stream(spark, files).withColumn("at", F.col("at").cast("timestamp"))
        return timed.withWatermark("at", "1 minute").dropDuplicates(["n", "at"]).select("n")

    write(files, (10, 30, 31))
    assert numbers(run(build(), old)) == [10, 30, 31]
    fork(old, new, offsets_only=True)
    late = files / "late.json"
    late.write_text(json.dumps({"n": 5, "at": START + 60 * 5}))
    os.utime(late, (START + 32, START + 32))
    assert numbers(run(build(), old)) == []
    assert numbers(run(build(), new)) == [5]


def test_a_delta_table_by_its_version(spark: SparkSession, tmp_path: Path) -> None:
    table, old = tmp_path / "table", tmp_path / "c"
    for n in range(3):
        write_deltalake(table, pa.table({"n": [n]}), mode="append")

    def build(**options: str) -> DataFrame:
        reader = spark.readStream.format("delta").option("maxFilesPerTrigger", 1)
        return reader.options(**options).load(str(table))

    assert numbers(run(build(), old)) == [0, 1, 2]
    # while it reads the rows with which it began, no version says where it is
    assert [read_offsets(old, batch).sources[0].options for batch in (1, 2)] == [{}, {}]
    options = dict(read_offsets(old).sources[0].options)
    assert options == {"startingVersion": "3"}
    with pytest.raises(StreamingQueryException, match="VERSION_NOT_FOUND"):
        run(build(**options), tmp_path / "early")
    for n in range(3, 5):
        write_deltalake(table, pa.table({"n": [n]}), mode="append")
    run(build(**options), tmp_path / "n", fail_in=0)
    assert numbers(run(build(**options), tmp_path / "n")) == [3, 4]
    with pytest.raises(CheckpointError, match="cannot begin at an offset without the batches"):
        fork(old, tmp_path / "m", offsets_only=True)


def test_spark_refuses_what_is_half_made(spark: SparkSession, tmp_path: Path) -> None:
    files, old, new = tmp_path / "in", tmp_path / "c", tmp_path / "n"
    write(files, range(2))
    run(stream(spark, files).select("n"), old)

    def make(on: WritableFolder) -> None:
        forks.fork_checkpoint(str(old), str(new), None, folder=on, offsets_only=True)

    cuts = refused = 0
    while cut(new, cuts, make):
        if (new / "offsets").exists() and any((new / "offsets").iterdir()):
            # its query id is written last: Spark 4.2 looks for that first
            with pytest.raises(PySparkException, match=r"Make it again: ebbtide|MISSING_METADATA"):
                run(stream(spark, files).select("n"), new)
            refused += 1
        cuts += 3
        shutil.rmtree(new, ignore_errors=True)  # one that was cut after its end is whole
    assert refused > 1
    write(files, [2])
    assert numbers(run(stream(spark, files).select("n"), new)) == [2]
