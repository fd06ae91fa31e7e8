"""The publish of a reprocess into a Delta table: whoever writes meanwhile, no row is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timezone
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from ebbtide.connectors.delta import spark as delta_spark
from ebbtide.connectors.delta.log import DeltaCommit
from ebbtide.errors import EbbtideError
from ebbtide.pipeline import Delta
from ebbtide.reprocessing import plan as planning
from ebbtide.reprocessing.journal import ReprocessRun, create_run, load_run
from ebbtide.reprocessing.logic import Logic
from tests.archives import fill_archive
from tests.spark.test_reprocess import at, events, execute, plan, prepare, run, to_table


def as_they_are(visits: DataFrame) -> DataFrame:
    return visits.select("visit_id", "event_time")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def logic(spark: SparkSession, tmp_path: Path, out: Path) -> Logic:
    """Three visits in the table, and a fourth that only the archive has."""
    pipeline = to_table(out, transform=as_they_are, watermark=None)
    logic = prepare(spark, tmp_path, pipeline, events("07:00", "07:00", "07:01"))
    run(logic, "07:00", "07:10")
    archive = fill_archive(spark, pipeline, logic.settings, [events("07:00")])
    return replace(logic, archive=archive)


def begin(logic: Logic) -> ReprocessRun:
    began = plan(logic, "07:00", "07:10").begin()
    create_run(logic.settings, began)
    return began


def append(out: str, visit: int) -> None:
    """As the live stream does: one more visit of the range."""
    columns = {
        "visit_id": pa.array([visit], pa.int64()),
        "event_time": pa.array([at("07:05").astimezone(timezone.utc)], pa.timestamp("us", "UTC")),
    }
    write_deltalake(out, pa.table(columns), mode="append")


def visits(spark: SparkSession, out: Path) -> dict[int, int]:
    rows = spark.read.format("delta").load(str(out)).groupBy("visit_id").count().collect()
    return {row["visit_id"]: row["count"] for row in rows}


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    real = getattr(owner, name)

    def fail(*_arguments: object) -> None:
        monkeypatch.setattr(owner, name, real)
        raise OSError(f"killed at {name}")

    monkeypatch.setattr(owner, name, fail)


def test_a_retry_at_any_step_keeps_what_the_stream_wrote(
    logic: Logic, out: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, real = begin(logic), delta_spark._replacement

    def replacement(*arguments: object) -> tuple[DataFrame, str]:
        found: tuple[DataFrame, str] = real(*arguments)  # type: ignore[arg-type]
        append(str(out), 7)  # after the table was read, before the commit
        return found

    monkeypatch.setattr(delta_spark, "_replacement", replacement)
    fail_once(monkeypatch, delta_spark, "put_back")
    with pytest.raises(EbbtideError, match=f"killed at put_back.*ebbtide retry {began.id}"):
        execute(logic, began)
    monkeypatch.setattr(delta_spark, "_replacement", real)
    append(str(out), 8)  # until the retry
    assert visits(spark, out) == {1: 4, 8: 1}
    frozen = load_run(logic.settings, began.id)
    assert frozen == began
    fail_once(monkeypatch, delta_spark.DeltaOutput, "discard")
    with pytest.raises(EbbtideError, match="killed at discard"):
        execute(logic, frozen)
    execute(logic, frozen)
    assert visits(spark, out) == {1: 4, 7: 1, 8: 1}
    assert not (out / "_ebbtide").exists()


def test_an_append_during_the_commit_is_no_failure(
    logic: Logic, out: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta's isolation is serializable: its commit fails, and all is read again."""
    (flag := out.parent / "once").touch()
    real, table = delta_spark._replacement, str(out)

    def late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if flag.exists():
                flag.unlink()
                append(table, 7)
            yield batch

    def replacement(*arguments: object) -> tuple[DataFrame, str]:
        rows, predicate = real(*arguments)  # type: ignore[arg-type]
        return rows.coalesce(1).mapInArrow(late, rows.schema), predicate

    monkeypatch.setattr(delta_spark, "_replacement", replacement)
    execute(logic, begin(logic))
    assert not flag.exists()
    assert visits(spark, out) == {1: 4, 7: 1}


def test_what_came_after_the_transaction_had_begun_is_not_put_back_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Where the isolation of a table lets it pass: it is still there."""
    out = str(tmp_path / "out")
    mark = {"ebbtide-run-id": "r", "ebbtide-read-version": 0, "ebbtide-replaced": "id >= 0"}
    spark.range(3).write.format("delta").save(out)
    spark.range(7, 8).write.format("delta").mode("append").save(out)  # after it was read
    writer = spark.range(3).write.format("delta").mode("overwrite")
    writer.option("replaceWhere", "id >= 0").save(out)
    spark.range(8, 9).write.format("delta").mode("append").save(out)  # as if before the commit
    ours = DeltaCommit(3, ({"commitInfo": {"readVersion": 1, "userMetadata": json.dumps(mark)}},))
    for _ in range(2):
        delta_spark.put_back(spark, out, ours)
        held = spark.read.format("delta").load(out).collect()
        assert sorted(row[0] for row in held) == [0, 1, 2, 7, 8]


Change = Callable[[Path], object]


def replaced(out: Path) -> None:
    shutil.rmtree(out)
    append(str(out), 9)
    append(str(out), 9)


def vacuumed(out: Path) -> None:
    append(str(out), 9)
    DeltaTable(str(out)).optimize.compact()
    table = DeltaTable(str(out))
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


@pytest.mark.parametrize(
    ("change", "why"),
    [(replaced, "is not the one that was there"), (vacuumed, "Version 0 of the table .* is gone")],
)
def test_a_retry_says_that_a_new_run_is_needed(
    change: Change, why: str, logic: Logic, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunks are done, and the table is not what it was when the run began."""
    began = begin(logic)
    fail_once(monkeypatch, delta_spark, "_replacement")
    with pytest.raises(EbbtideError, match="killed at _replacement"):
        execute(logic, began)
    shutil.copytree(out / "_ebbtide", stage := out.parent / "stage")
    change(out)
    shutil.copytree(stage, out / "_ebbtide", dirs_exist_ok=True)
    before = DeltaTable(str(out)).version()
    with pytest.raises(EbbtideError, match=f"{why}.*Start a new reprocess"):
        execute(logic, began)
    assert DeltaTable(str(out)).version() == before


def test_two_drivers_do_not_write_one_table_in_s3(logic: Logic) -> None:
    began, s3 = begin(logic), replace(logic.pipeline, sink=Delta("s3a://lake/visits"))
    there = replace(logic, pipeline=s3)
    found = planning._check_output(there)
    assert (found.verdict, found.name) == ("refuse", "output")
    assert "spark.delta.logStore.s3a.impl to io.delta.storage.S3DynamoDBLogStore" in found.next
    # a retry has no plan
    with pytest.raises(EbbtideError, match=r"Nothing is written: .*spark\.delta\.logStore\.s3a"):
        execute(there, began)
    for name in ("spark.delta.logStore.s3a.impl", "spark.delta.logStore.class"):
        conf = {name: "io.delta.storage.S3DynamoDBLogStore"}
        assert delta_spark.check_log_store("s3a://lake/visits", conf.get) is None
