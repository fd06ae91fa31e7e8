"""Replays of plain functions: fixed code is checked batch by batch before it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

import ebbtide
from ebbtide.checkpoint import read_checkpoint
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.history import kept_entries, read_history
from ebbtide.replaying import ReplayResult
from ebbtide.rewind import sinks
from ebbtide.storage import open_folder
from tests import cells
from tests.spark.test_replay import CHEAP, SCHEMA, jsons, write_files
from tests.trees import snapshot

Build = Callable[[SparkSession], DataFrame | DataStreamWriter]
FILES = 4


@pytest.fixture(autouse=True)
def cheap_state(spark: SparkSession, one_session: None) -> Iterator[None]:
    del one_session
    with cells._settings(spark, CHEAP):
        yield


@dataclass(frozen=True)
class Job:
    """A plain job in a folder: no pipeline, no runner of ours."""

    spark: SparkSession
    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def read(self, spark: SparkSession) -> DataFrame:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return stream.json(str(self.folder / "in"))

    def run(self, build: Build, files: int = FILES) -> None:
        """Run it as its owner does, with the one line."""
        if not (self.folder / "in").exists():
            write_files(self.folder / "in", files)
        result = build(self.spark)
        assert isinstance(result, DataStreamWriter)
        attachment = ebbtide.attach(self.spark)
        writer = result.queryName("my job").option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        attachment.close()

    def replay(self, build: Build, **flags: Any) -> ReplayResult:
        settings = Settings(home=self.folder / "home")
        return ebbtide.replay(build, settings=settings, checkpoint=str(self.checkpoint), **flags)

    def rewind(self, batch: int, **flags: Any) -> None:
        plan = ebbtide.plan_rewind(self.checkpoint, to_batch=batch, assume_stopped=True, **flags)
        ebbtide.apply_rewind(plan, assume_stopped=True)


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def verdicts(result: ReplayResult) -> list[tuple[int, str]]:
    return [(verdict.batch, verdict.verdict) for verdict in result.verdicts]


def count(rows: DataFrame, weight: str = "1") -> DataFrame:
    windows = rows.withWatermark("at", "1 minute").groupBy("k", F.window("at", "10 minutes"))
    return windows.agg(F.sum(F.expr(weight)).alias("n"))


def _give(writer: DataStreamWriter, _spark: SparkSession) -> DataStreamWriter:
    return writer


def test_windows_in_files(job: Job) -> None:
    """No digest was recorded, so what the sink holds decides."""

    def old(spark: SparkSession) -> DataStreamWriter:
        writer = count(job.read(spark)).writeStream.outputMode("append").format("parquet")
        return writer.option("path", str(job.out)).partitionBy("k")

    def fixed(spark: SparkSession) -> DataFrame:
        return count(job.read(spark), "CASE WHEN k = 1 THEN 10 ELSE 1 END")

    job.run(old)
    truth = jsons(job.spark.read.parquet(str(job.out)))
    assert len(truth) == 3, "one window of three keys is closed"
    before = snapshot(job.folder)
    # the mode that attach noted is compared, too
    for mode, verdict in (("append", "same"), ("update", "breaks")):
        writer = old(job.spark).outputMode(mode).foreachBatch(lambda _rows, _batch: None)
        report = ebbtide.check(job.checkpoint, partial(_give, writer), spark=job.spark)
        assert [p.verdict for p in report.parts if p.part == "output mode"] == [verdict]

    same = job.replay(old, to_scratch=True, from_batch=0)
    assert {verdict for _, verdict in verdicts(same)} == {"identical"}
    assert sum(verdict.new_rows or 0 for verdict in same.verdicts) == len(truth)
    # a function that returns rows: append, as the first run noted
    other = job.replay(fixed, to_scratch=True, from_batch=0, rows=None)
    (differs,) = (one for one in other.verdicts if one.verdict == "differs")
    assert (differs.added, differs.removed) == (1, 1)
    old_row, new_row = (json.loads(*rows) for rows in (differs.old, differs.new))
    assert (old_row["k"], old_row["n"], new_row["n"]) == (1, 2, 20)
    after = snapshot(job.folder)
    assert {path: after[path] for path in before} == before, "to scratch, nothing is touched"

    def attached(spark: SparkSession) -> DataStreamWriter:
        ebbtide.attach(spark)
        return old(spark)

    job.rewind(1)
    in_place = job.replay(attached)
    assert {verdict for _, verdict in verdicts(in_place)} == {"identical"}
    runs = [(e.batch, e.timeline) for e in read_history(open_folder(str(job.checkpoint))).entries]
    assert len(runs) == len(set(runs)), "each run is recorded once"
    assert jsons(job.spark.read.parquet(str(job.out))) == truth


def test_a_delta_table(job: Job) -> None:
    def build(spark: SparkSession, factor: int = 1) -> DataStreamWriter:
        rows = job.read(spark).withColumn("v", F.col("v") * factor)
        # times to the microsecond: rows that differ in these differ
        rows = rows.withColumn("at", F.expr(f"at + make_dt_interval(0, 0, 0, {factor} * 0.000001)"))
        writer = rows.where("k < 2").writeStream.format("delta").partitionBy("k")
        return writer.option("path", str(job.out))

    job.run(build)
    assert verdicts(job.replay(build, to_scratch=True, from_batch=1)) == [
        (batch, "identical") for batch in range(1, FILES)
    ]
    result = job.replay(lambda spark: build(spark, 2), to_scratch=True, from_batch=2, to_batch=2)
    (verdict,) = result.verdicts
    assert (verdict.verdict, verdict.old_rows, verdict.added) == ("differs", 2, 2)
    job.rewind(2, sink="restore")
    for _ in range(2):  # the second time, all has run already
        result = job.replay(lambda spark: build(spark, 2))
        assert verdicts(result) == [(2, "differs"), (3, "differs")]
    written = {row.v for row in job.spark.read.format("delta").load(str(job.out)).collect()}
    assert written == {0, 1, 10, 11, 40, 42, 60, 62}


def test_after_a_rewind_to_nothing(job: Job) -> None:
    """--to-batch 0 --replan leaves no batch in the checkpoint; the removed ones run again."""

    def build(spark: SparkSession) -> DataStreamWriter:
        return job.read(spark).writeStream.format("parquet").option("path", str(job.out))

    job.run(build, files=2)
    truth = jsons(job.spark.read.parquet(str(job.out)))
    job.rewind(0, replan=True)
    assert not read_checkpoint(str(job.checkpoint)).logs.batches
    assert verdicts(job.replay(build)) == [(0, "identical"), (1, "identical")]
    assert jsons(job.spark.read.parquet(str(job.out))) == truth


def test_rows_that_read_the_same(job: Job) -> None:
    """As text or as JSON, rows may seem to be the same that are not."""
    first = "map('a', array(map(1, null, 2, 'x')), 'b', null)"
    last = "map('b', null, 'a', array(map(2, 'x', 1, null)))"

    def build(spark: SparkSession, v: str = "int(v)", entries: str = first) -> DataStreamWriter:
        rows = job.read(spark).selectExpr("k", f"{v} AS v", f"{entries} AS m")
        return rows.writeStream.format("parquet").option("path", str(job.out))

    job.run(build, files=2)
    one: dict[str, Any] = {"to_scratch": True, "from_batch": 1}
    assert verdicts(job.replay(partial(build, entries=last), **one)) == [(1, "identical")]
    (other,) = job.replay(partial(build, v="bigint(v)"), **one).verdicts
    assert other.verdict == "differs"
    assert other.reason.endswith("but their types differ: v int, now bigint")
    for file in job.out.glob("*.parquet"):
        file.write_bytes(b"damaged " * 99)
    (unread,) = job.replay(build, **one).verdicts
    assert (unread.verdict, unread.new_rows) == ("not compared", 3)


def test_json_files(job: Job) -> None:
    """Read with the columns of the new rows, they must not seem to have these."""

    def build(spark: SparkSession, *columns: str) -> DataStreamWriter:
        rows = job.read(spark).selectExpr(*(columns or ("k", "v")))
        return rows.writeStream.format("json").option("path", str(job.out))

    job.run(build, files=2)
    one: dict[str, Any] = {"to_scratch": True, "from_batch": 1}
    assert verdicts(job.replay(build, **one)) == [(1, "identical")]
    (fewer,) = job.replay(lambda spark: build(spark, "k"), **one).verdicts
    assert fewer.verdict == "not compared"
    assert "its JSON files have other columns or types" in fewer.reason


def test_a_table_that_changes_rows(job: Job) -> None:
    columns = "K BIGINT, v STRING, at TIMESTAMP, d DATE GENERATED ALWAYS AS (CAST(at AS DATE))"
    job.spark.sql(f"CREATE TABLE delta.`{job.out}` ({columns}) USING delta")

    def build(spark: SparkSession) -> DataStreamWriter:
        return job.read(spark).writeStream.format("delta").option("path", str(job.out))

    job.run(build, files=2)
    (verdict,) = job.replay(build, to_scratch=True, from_batch=1).verdicts
    assert verdict.verdict == "not compared"
    assert "its table may have computed or cast k, v, d itself" in verdict.reason


def test_a_table_that_a_function_writes(job: Job) -> None:
    """It may note the query's own id, as the sink would, with rows that it has changed."""

    def put(batch: DataFrame, number: int) -> None:
        id_ = json.loads((job.checkpoint / "metadata").read_text())["id"]
        rows = batch.withColumn("v", F.col("v") * 2).write.format("delta").mode("append")
        rows.option("txnAppId", id_).option("txnVersion", number).save(str(job.out))

    def build(spark: SparkSession) -> DataStreamWriter:
        return job.read(spark).writeStream.foreachBatch(put)

    job.run(build, files=1)
    sinks.name_sinks(read_checkpoint(str(job.checkpoint)), [str(job.out)], None)
    (verdict,) = job.replay(build, to_scratch=True, from_batch=0).verdicts
    assert verdict.verdict == "not compared"
    assert "a function of the job wrote the table" in verdict.reason


@pytest.mark.parametrize("observed", [False, True], ids=["not observed", "observed"])
def test_a_function_for_each_batch(job: Job, observed: bool) -> None:
    """Only a digest can tell, which the job itself has to ask for."""
    got: list[int] = []

    def build(spark: SparkSession, mode: str = "update") -> DataStreamWriter:
        rows = job.read(spark).groupBy("k").agg(F.sum("v").alias("v"))
        rows = ebbtide.observe(rows) if observed else rows
        writer = rows.writeStream.outputMode(mode)
        return writer.foreachBatch(lambda batch, _number: got.append(batch.count()))

    def rows_only(spark: SparkSession) -> DataFrame:
        return job.read(spark).groupBy("k").agg(F.sum("v").alias("v"))

    def changed(spark: SparkSession) -> DataFrame:
        return ebbtide.observe(rows_only(spark)).withColumn("v", F.col("v") + 1)

    job.run(build)
    entries = kept_entries(read_checkpoint(str(job.checkpoint))).values()
    assert {entry.output_mode for entry in entries} == {"update"}
    called = len(got)
    said: list[str] = []
    for code in (partial(build, mode="complete"), rows_only):  # each batch has all keys
        result = job.replay(code, to_scratch=True, from_batch=1, on_message=said.append)
        if observed:
            assert verdicts(result) == [(batch, "identical") for batch in range(1, FILES)]
        else:
            assert {verdict.verdict for verdict in result.verdicts} == {"not compared"}
            assert "put ebbtide.observe around what is written" in result.verdicts[0].reason
            assert result.verdicts[0].new_rows == 3
    assert len(got) == called, "to scratch, the function is not called"
    assert said == ["Output mode complete, as the function says; the first run had update."]
    with pytest.raises(UsageError, match="are changed after"):
        job.replay(changed, to_scratch=True, from_batch=1)
    job.rewind(1, sink="none")
    result = job.replay(build)
    assert len(got) == called + FILES - 1
    assert {verdict.verdict for verdict in result.verdicts} == {
        "identical" if observed else "not compared"
    }


def test_state_with_ids(job: Job) -> None:
    """The session gets the checkpoint's format of state, which Spark does not take from it."""
    version = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    rocks = {**cells.ROCKSDB, version: "2"}

    def build(spark: SparkSession) -> DataStreamWriter:
        writer = count(job.read(spark)).writeStream.format("parquet")
        return writer.option("path", str(job.out))

    with cells._settings(job.spark, rocks):
        job.run(build)
        result = job.replay(build, to_scratch=True, from_batch=2)
    assert {verdict for _, verdict in verdicts(result)} == {"identical"}


def test_what_is_refused(job: Job) -> None:
    def build(spark: SparkSession) -> DataStreamWriter:
        writer = count(job.read(spark)).writeStream.format("parquet")
        return writer.option("path", str(job.out))

    def other_key(spark: SparkSession) -> DataFrame:
        rows = job.read(spark).withColumn("k", F.col("k").cast("string"))
        return count(rows)

    def starts(spark: SparkSession) -> Any:
        return build(spark).start()

    job.run(build)
    before = snapshot(job.checkpoint)
    scratch: dict[str, Any] = {"to_scratch": True, "from_batch": 1}
    with pytest.raises(CheckpointError, match=r"cannot go on with batch 1 of .*: operator 0"):
        job.replay(other_key, **scratch)
    with pytest.raises(UsageError, match="starts the query itself"):
        job.replay(starts, **scratch)
    with pytest.raises(UsageError, match="cannot be called with the Spark session alone"):
        job.replay(lambda spark, _day: build(spark), **scratch)  # type: ignore[arg-type, misc]
    with pytest.raises(UsageError, match="has no checkpoint of its own"):
        ebbtide.replay(build, settings=Settings(home=job.folder / "home"), **scratch)
    job.rewind(1)
    rewound = snapshot(job.checkpoint)
    with pytest.raises(UsageError, match="returns rows, so where they go is not known"):
        job.replay(lambda spark: count(job.read(spark)))
    after = snapshot(job.checkpoint)
    kept = {path for path in rewound if ".ebbtide" not in path}
    assert {path: after[path] for path in kept} == {path: rewound[path] for path in kept}
    assert before != rewound
