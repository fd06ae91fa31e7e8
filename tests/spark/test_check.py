"""`ebbtide check` against Spark itself: pairs of old and new jobs, and bad input.

`make deploys` plays all pairs of tests/deploy_jobs.py, on several versions of Spark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import ebbtide
from ebbtide import Console, Files, Pipeline
from ebbtide.checks import BREAKS, COMPATIBLE, SAME
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError, UsageError
from tests import cells
from tests.deploy_jobs import DEPLOYS
from tests.deploys import Stage
from tests.trees import Shape, make

SHORT = (
    "nothing changed",
    "key renamed",
    "key is another column",
    "key of another type",
    "aggregate added",
    "sum becomes count",
    "source added",
    "state removed",
    "partition count",
    "window length",
    "sink becomes memory",
)


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    cells.forget_state(spark)
    yield Stage(spark, tmp_path_factory.mktemp("deploys"))
    cells.forget_state(spark)


@pytest.mark.parametrize(
    "name", list(DEPLOYS) if os.environ.get("EBBTIDE_DEPLOYS") == "all" else SHORT
)
def test_the_verdict_is_what_spark_does(stage: Stage, name: str) -> None:
    played = stage.play(DEPLOYS[name])
    assert played.problem is None, played


@pytest.fixture(scope="module")
def checkpoint(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a query that counts the rows of each key, in files."""
    folder = tmp_path_factory.mktemp("counts")
    cells.write_input(folder / "in", range(1))
    with cells._settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        writer = count(spark, folder).writeStream.outputMode("update")
        # Spark wants the state of each batch committed, so the rows are written
        writer = writer.foreachBatch(
            lambda rows, _batch: rows.write.format("noop").mode("append").save()
        )
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    return folder / "checkpoint"


def count(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.readStream.schema(cells.SCHEMA).json(str(folder / "in"))
    return rows.groupBy("key").agg(F.count("*").alias("rows"))


def check(spark: SparkSession, checkpoint: Path, build: Any) -> Any:
    settings = Settings(home=checkpoint.parent / "home")
    return ebbtide.check(checkpoint, build, settings=settings, spark=spark)


def test_rows_and_a_writer_are_both_taken(spark: SparkSession, checkpoint: Path) -> None:
    rows = check(spark, checkpoint, lambda spark: count(spark, checkpoint.parent))
    assert rows.verdict == COMPATIBLE
    assert "output mode and sink: the function returns rows, not a writer" in rows.not_checked

    def write(spark: SparkSession) -> Any:
        return count(spark, checkpoint.parent).writeStream.outputMode("update").format("console")

    writer = check(spark, checkpoint, write)
    assert writer.can_go_on
    assert "output mode" in {part.part for part in writer.parts}
    assert writer.to_dict()["checkpoint"] == str(checkpoint)


def test_a_pipeline_is_taken(spark: SparkSession, checkpoint: Path) -> None:
    def make(schema: str) -> Pipeline:
        return Pipeline(
            "counts",
            source=Files(str(checkpoint.parent / "in"), schema=schema),
            event_time="at",
            transform=lambda rows: rows.groupBy("key").agg(F.count("*").alias("rows")),
            output_mode="update",
            sink=Console(),
        )

    assert check(spark, checkpoint, make(cells.SCHEMA)).can_go_on
    report = check(spark, checkpoint, make(cells.SCHEMA.replace("key STRING", "key INT")))
    assert [part.part for part in report.breaking] == ["operator 0 key"]
    assert report.ways_out[0].startswith(f"ebbtide fork {checkpoint} NEW --at-batch 1 --offsets")


def test_a_computed_key_is_another_column(spark: SparkSession, checkpoint: Path) -> None:
    """The column of the old key is still there, and the new one is not made of it."""

    def judge(column: str) -> str:
        def build(spark: SparkSession) -> DataFrame:
            rows = spark.readStream.schema(cells.SCHEMA).json(str(checkpoint.parent / "in"))
            rows = rows.select("key", F.upper(F.col(column)).alias("who"))
            return rows.groupBy("who").agg(F.count("*").alias("rows"))

        parts = {part.part: part for part in check(spark, checkpoint, build).parts}
        return str(parts["operator 0 key"].verdict)

    assert judge("id") == BREAKS
    assert judge("key") == COMPATIBLE


def test_another_query_breaks_at_its_first_source(spark: SparkSession, checkpoint: Path) -> None:
    report = check(spark, checkpoint, lambda spark: spark.readStream.format("rate").load())
    assert report.parts[0].part == "source 0"
    assert report.parts[0].verdict == BREAKS
    assert report.ways_out[0].startswith(f"ebbtide offsets {checkpoint}")


def test_topics_are_compared_without_a_broker(spark: SparkSession, tmp_path: Path) -> None:
    """The checkpoint is that of a query without state, which reads the topic visits."""
    visits = make(tmp_path / "checkpoint", Shape())

    def read(**options: str) -> Any:
        stream = spark.readStream.format("kafka").options(**options)
        stream = stream.option("kafka.bootstrap.servers", "127.0.0.1:9")
        return check(spark, visits, lambda _spark: stream.load()).parts[0]

    assert read(subscribe="visits").verdict == SAME
    assert read(subscribe="clicks,visits").detail.startswith("clicks is new")
    assert read(subscribePattern="v.*").verdict == SAME
    assert read(subscribe="clicks").verdict == BREAKS
    assert read(assign='{"visits": [0, 1]}').verdict == SAME


def start(spark: SparkSession) -> Any:
    return spark.readStream.format("rate").load().writeStream.format("console").start()


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda _spark: None, "<lambda>(spark) returns None, not a streaming DataFrame."),
        (lambda spark: spark.range(3), "<lambda>(spark) returns a DataFrame that does not stream."),
        (lambda _spark: 3, "<lambda>(spark) returns int, not a streaming DataFrame."),
        (lambda _spark, _b: None, "<lambda>(_spark, _b) cannot be called with the Spark session"),
        (lambda: None, "<lambda>() cannot be called with the Spark session alone."),
        (start, "start starts the query itself."),
        (lambda _spark: 1 / 0, "<lambda>(spark) fails: ZeroDivisionError: division by zero."),
        (
            lambda spark: spark.readStream.table("no_such"),
            "fails: [TABLE_OR_VIEW_NOT_FOUND]",
        ),
        ("nothing.py:build", "There is no file nothing.py."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_functions(spark: SparkSession, checkpoint: Path, build: Any, problem: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(spark, checkpoint, build)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not spark.streams.active


def test_there_is_no_checkpoint_yet(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no checkpoint at"):
        check(spark, tmp_path, lambda spark: spark.readStream.format("rate").load())


def test_the_first_start_is_planned_where_there_is_no_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path / "home")

    def check_first(mode: str) -> Any:
        def build(spark: SparkSession) -> Any:
            rows = spark.readStream.format("rate").load().groupBy("value").count()
            return rows.writeStream.outputMode(mode).format("console")

        new = tmp_path / "new"
        return ebbtide.check(new, build, settings=settings, spark=spark, allow_missing=True)

    report = check_first("update")
    assert report.can_go_on
    assert report.parts[0].detail.endswith("yet: the query starts with batch 0")
    refused = check_first("append")
    assert [part.part for part in refused.breaking] == ["output mode"]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "import no_such_module as build",
            "cannot be imported: ModuleNotFoundError: No module named",
        ),
        ("other = 3", "has no function and no Pipeline named 'build'. It has neither."),
        ("def job(spark): ...", "has no function and no Pipeline named 'build'. It has: job."),
        ("build = 3", "has no function and no Pipeline named 'build'."),
    ],
)
def test_bad_files(
    spark: SparkSession, checkpoint: Path, tmp_path: Path, text: str, problem: str
) -> None:
    job = tmp_path / "bad_job.py"
    job.write_text(text, "utf-8")
    with pytest.raises(UsageError) as refused:
        check(spark, checkpoint, f"{job}:build")
    assert problem in str(refused.value)


def test_a_report_is_json(spark: SparkSession, checkpoint: Path) -> None:
    report = check(spark, checkpoint, lambda spark: count(spark, checkpoint.parent))
    assert json.loads(json.dumps(report.to_dict()))["can_go_on"] is True
