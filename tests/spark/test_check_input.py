"""`ebbtide check` with checkpoints and functions that users have, and that they get wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import ebbtide
from ebbtide.checks import BREAKS, COMPATIBLE, MISBINDS, SAME
from ebbtide.config import Settings
from ebbtide.errors import EbbtideError, UsageError
from tests import cells


def check(spark: SparkSession, checkpoint: Path, build: Any) -> Any:
    settings = Settings(home=checkpoint.parent / "home")
    return ebbtide.check(checkpoint, build, settings=settings, spark=spark)


def run(writer: Any, checkpoint: Path) -> Path:
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.foreachBatch(lambda rows, _batch: rows.write.format("noop").mode("append").save())
    writer.start().awaitTermination()
    return checkpoint


def read_files(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(cells.SCHEMA).json(str(folder))


def count(rows: DataFrame) -> DataFrame:
    marked = rows.withWatermark("at", "30 minutes")
    return marked.groupBy(F.window("at", "10 minutes"), "key").agg(F.count("*").alias("rows"))


@pytest.fixture(scope="module")
def counts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a query that counts the rows of each window, in files."""
    folder = tmp_path_factory.mktemp("counts")
    cells.write_input(folder / "in", range(1))
    with cells._settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        writer = count(read_files(spark, folder / "in")).writeStream.outputMode("update")
        return run(writer, folder / "checkpoint")


@pytest.mark.parametrize("name", ["with space", "Prüfung-日本", "100% #1?", "a[b]{c}", "q'uote"])
def test_any_path(spark: SparkSession, counts: Path, tmp_path: Path, name: str) -> None:
    checkpoint = Path(shutil.copytree(counts, tmp_path / name / "checkpoint"))
    report = check(spark, checkpoint, lambda spark: count(read_files(spark, counts.parent / "in")))
    assert report.can_go_on
    details = {part.part: part.detail for part in report.parts}
    assert details["source 0"].startswith("files ")
    # Spark's state reader takes no path with a space
    unread = any(each.startswith("the length of the windows of op") for each in report.not_checked)
    assert ("as are the " in details["operator 0 window"]) is not unread


def test_a_folder_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes the paths of files with escapes."""
    folder = tmp_path / "Prüfung 100% #1"
    cells.write_input(folder, range(1))
    writer = count(read_files(spark, folder)).writeStream.outputMode("update")
    checkpoint = run(writer, tmp_path / "checkpoint")
    same = check(spark, checkpoint, lambda spark: count(read_files(spark, folder)))
    assert (same.parts[0].part, same.parts[0].verdict) == ("source 0", SAME)


def test_topics_and_files_in_one_query(spark: SparkSession, counts: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(counts, tmp_path / "checkpoint"))
    for path in (checkpoint / "offsets").glob("[0-9]*"):
        path.write_text(path.read_text() + '\n{"visits":{"0":5}}')

    def build(first: str) -> Callable[[SparkSession], DataFrame]:
        def union(spark: SparkSession) -> DataFrame:
            stream = spark.readStream.format("kafka").option("subscribe", "visits")
            topic = stream.option("kafka.bootstrap.servers", "127.0.0.1:9").load()
            columns = (F.col("key").cast("string"), F.col("timestamp").alias("at"))
            rows = topic.select(*columns)
            files = read_files(spark, counts.parent / "in").select("key", "at")
            return count(files.union(rows) if first == "files" else rows.union(files))

        return union

    same = check(spark, checkpoint, build("files"))
    assert [part.verdict for part in same.parts[:2]] == [SAME, SAME]
    swapped = check(spark, checkpoint, build("topic"))
    assert [part.verdict for part in swapped.parts[:2]] == [BREAKS, BREAKS]
    assert "files" in swapped.parts[0].detail
    assert "becomes topic visits" in swapped.parts[0].detail


def test_a_table(spark: SparkSession, tmp_path: Path) -> None:
    table, other = tmp_path / "table", tmp_path / "other"
    for place in (table, other):
        spark.range(3).write.format("delta").save(str(place))

    def read(place: Path) -> Callable[[SparkSession], DataFrame]:
        return lambda spark: spark.readStream.format("delta").load(str(place))

    checkpoint = run(read(table)(spark).writeStream, tmp_path / "checkpoint")
    assert check(spark, checkpoint, read(table)).parts[0].verdict == SAME
    report = check(spark, checkpoint, read(other))
    assert report.parts[0].verdict == BREAKS
    assert report.parts[0].detail.endswith("other is another table")
    shutil.rmtree(table)
    spark.range(3).write.format("delta").save(str(table))
    assert check(spark, checkpoint, read(table)).parts[0].verdict == BREAKS


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("state/0/_metadata/metadata", "v1\n[]"),
        ("state/0/_metadata/metadata", "v1\n{"),
        ("state/0/0/_metadata/schema", "\0\2v9"),
        ("offsets/0", "v1\n{"),
        ("commits/0", "v1\n[7"),
        ("metadata", "{}"),
    ],
)
def test_a_damaged_checkpoint(
    spark: SparkSession, counts: Path, tmp_path: Path, path: str, text: str
) -> None:
    checkpoint = Path(shutil.copytree(counts, tmp_path / "checkpoint"))
    for newer in checkpoint.glob(f"{path.split('/')[0]}/[1-9]*"):
        if newer.is_file():
            newer.unlink()
    (checkpoint / path).write_text(text)
    with pytest.raises(EbbtideError) as refused:
        check(spark, checkpoint, lambda spark: count(read_files(spark, counts.parent / "in")))
    assert "\n" not in str(refused.value)


def test_a_log_of_files_that_is_gone(spark: SparkSession, counts: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(counts, tmp_path / "checkpoint"))
    shutil.rmtree(checkpoint / "sources")
    report = check(spark, checkpoint, lambda spark: count(read_files(spark, counts.parent / "in")))
    assert report.parts[0].verdict == BREAKS
    assert "does not list all files" in report.parts[0].detail


def test_a_batch_that_was_planned_and_not_committed(
    spark: SparkSession, counts: Path, tmp_path: Path
) -> None:
    checkpoint = Path(shutil.copytree(counts, tmp_path / "checkpoint"))
    shutil.rmtree(checkpoint / "commits")
    report = check(spark, checkpoint, lambda spark: count(read_files(spark, counts.parent / "in")))
    assert report.can_go_on


class Job:
    """A class that users take for a function."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark


async def wait(spark: SparkSession) -> Any:
    return spark


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (Job, "Job"),
        (wait, "coroutine"),
        (lambda _spark: [], "list"),
        (lambda spark: spark, "Spark"),
    ],
    ids=["class", "coroutine", "list", "session"],
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_what_is_no_query(spark: SparkSession, counts: Path, build: Any, kind: str) -> None:
    with pytest.raises(UsageError, match=rf"returns {kind}.*, not a streaming DataFrame"):
        check(spark, counts, build)


def test_a_long_error_of_spark_is_one_line(spark: SparkSession, counts: Path) -> None:
    def build(spark: SparkSession) -> DataFrame:
        return read_files(spark, counts.parent / "in").select("no_such_column")

    with pytest.raises(UsageError, match="no_such_column") as refused:
        check(spark, counts, build)
    assert "\n" not in str(refused.value)


def test_files_that_are_read_from_above(spark: SparkSession, counts: Path) -> None:
    def build(deep: str) -> Callable[[SparkSession], DataFrame]:
        def read(spark: SparkSession) -> DataFrame:
            stream = spark.readStream.schema(cells.SCHEMA).option("recursiveFileLookup", deep)
            return count(stream.json(str(counts.parent)))

        return read

    report = check(spark, counts, build("false"))
    part = report.parts[0]
    # a batch without files came last, so Spark compares no folder
    assert (part.verdict, part.spark) == (BREAKS, MISBINDS)
    assert check(spark, counts, build("true")).parts[0].verdict == COMPATIBLE
