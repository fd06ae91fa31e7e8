"""What one hour of a large archive takes to read, and what other layouts would take."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.archive.facts import read_archive
from ebbtide.archive.layout import COLUMNS, DAY, HOUR, PARTITION_COLUMNS, WRITE_CONF, properties
from ebbtide.archive.read import open_table, select_range
from ebbtide.archive.write import create_table, to_rows
from ebbtide.config import Settings
from ebbtide.pipeline import Kafka
from ebbtide.runtime.session import build_session, close_session
from ebbtide.systems.batch_reprocessor.pipeline import pipeline

_FIRST = datetime(2025, 9, 1, tzinfo=timezone.utc)
_START = _FIRST + timedelta(days=3, hours=7)
_END = _START + timedelta(hours=1)
_LAYOUTS = {
    "by day and hour (ours)": (f"PARTITIONED BY ({DAY}, {HOUR})", True),
    "by day": (f"PARTITIONED BY ({DAY})", True),
    "clustered, then OPTIMIZE": ("CLUSTER BY (event_time)", False),
}


@dataclass(frozen=True)
class Size:
    """How much is archived, in how many batches."""

    days: int
    records: int
    batches: int


@dataclass(frozen=True)
class Read:
    """What a query over the table took, as Spark counted it."""

    seconds: float
    rows: int
    files: int
    bytes: int


def run(*, quick: bool) -> Iterator[str]:
    """one hour of 30 days: under 1 % of files and bytes, 20 times as fast as filtering the JSON"""
    size = Size(6, 60_000, 1) if quick else Size(30, 10_000_000, 20)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    settings = Settings(home=home)
    # less compiling, which only a long run repays
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"} if quick else {}
    spark = build_session("bench", settings, conf=conf, wanted=WRITE_CONF)
    try:
        yield from _one_hour(spark, settings, size)
        yield from _layouts(spark, home, replace(size, records=size.records // 5))
    finally:
        close_session(spark)
        shutil.rmtree(home, ignore_errors=True)


def _one_hour(spark: SparkSession, settings: Settings, size: Size) -> Iterator[str]:
    path = settings.table("visits")
    create_table(spark, path, properties(pipeline, settings, f"{path}-checkpoint"))
    _fill(spark, path, size)
    archive = read_archive(pipeline, settings)
    yield (
        f"{archive.records:,} records of {size.days} days, {archive.files:,} files, "
        f"{archive.bytes / 1e6:,.0f} MB"
    )
    ours = _read(select_range(open_table(spark, archive), _START, _END))
    parsed = _read(_by_parsing(spark, path))
    assert ours.rows == parsed.rows > 0
    yield (
        f"one hour: {ours.rows:,} records, {ours.files / archive.files:.2%} of the files, "
        f"{ours.bytes / archive.bytes:.2%} of the bytes (1 % allowed), {ours.seconds:.2f} s"
    )
    yield (
        f"the same hour by a filter on the JSON: {parsed.files / archive.files:.0%} of the files, "
        f"{parsed.seconds:.2f} s"
    )
    yield f"{parsed.seconds / ours.seconds:.2f} × faster (20 × required of the long run)"
    assert max(ours.files / archive.files, ours.bytes / archive.bytes) < 0.01


def _layouts(spark: SparkSession, home: Path, size: Size) -> Iterator[str]:
    first = 0.0
    for turn, (name, (clause, compacted)) in enumerate(_LAYOUTS.items()):
        path = str(home / f"layout-{turn}")
        columns = ", ".join(
            f"{name} {kind}" for name, kind in (COLUMNS | PARTITION_COLUMNS).items()
        )
        marks = properties(pipeline, Settings(home=home), "")
        if not compacted:  # merging by size alone would undo it
            marks |= {"delta.autoOptimize.autoCompact": "false"}
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in marks.items())
        spark.sql(
            f"CREATE TABLE delta.`{path}` ({columns}) USING delta {clause} TBLPROPERTIES ({listed})"
        )
        before = _cpu_seconds(spark)
        _fill(spark, path, size)
        if not compacted:
            # 1 GiB by default: all of it in one file
            spark.conf.set("spark.databricks.delta.optimize.maxFileSize", 16 << 20)
            spark.sql(f"OPTIMIZE delta.`{path}`")
        spent = _cpu_seconds(spark) - before
        first = first or spent
        files = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0]
        found = _read(_in_layout(spark, path, clause))
        yield (
            f"{name:<24} {size.records:,} records: written in {spent / first:.2f} × the CPU time; "
            f"{files.numFiles:,} files; one hour: {found.files} files, "
            f"{found.bytes / files.sizeInBytes:.2%} of the bytes, {found.seconds:.2f} s"
        )


def _fill(spark: SparkSession, path: str, size: Size) -> None:
    """As the archive's stream would, batch by batch."""
    each = size.records // size.batches
    for batch in range(size.batches):
        raw = _raw(spark, batch * each, (batch + 1) * each, size)
        to_rows(raw, pipeline).write.format("delta").mode("append").save(path)


def _raw(spark: SparkSession, first: int, end: int, size: Size) -> DataFrame:
    """Visits as Kafka hands them over, from two partitions; one in a hundred up to 2 h late."""
    assert isinstance(pipeline.source, Kafka)
    half = (end - first) // 2
    n = F.lit(first) + 2 * (F.col("id") % half) + F.floor(F.col("id") / half)
    late = F.when(F.col("n") % 100 == 0, F.pmod(F.xxhash64("n"), F.lit(7200))).otherwise(0)
    at = F.timestamp_seconds(
        F.lit(_FIRST.timestamp()) + F.col("n") * (size.days * 86_400 / size.records) - late
    )
    visit = F.struct(
        F.concat(F.lit("click-"), "n").alias("event_id"),
        (F.col("n") % 100_000).alias("visit_id"),
        F.date_format(at, "yyyy-MM-dd'T'HH:mm:ss.SSS").alias("event_time"),
        F.concat(F.lit("page_"), F.pmod(F.xxhash64("n"), F.lit(50))).alias("page"),
    )
    columns = {
        "key": F.lit(None),
        "value": F.to_json(visit),
        "topic": F.lit(pipeline.source.topic),
        "partition": F.col("n") % 2,
        "offset": F.floor(F.col("n") / 2),
        "timestamp": at,
        "headers": F.lit(None),
    }
    return (
        spark.range(0, 2 * half, 1, 2)
        .select(n.alias("n"))
        .select(*(value.cast(COLUMNS[name]).alias(name) for name, value in columns.items()))
    )


def _by_parsing(spark: SparkSession, path: str) -> DataFrame:
    """As a filter on the field inside the raw value: nothing can be left out."""
    assert isinstance(pipeline.source, Kafka)
    table = spark.read.format("delta").load(path)
    time = F.from_json(F.col("value").cast("string"), pipeline.source.schema)["event_time"]
    return table.where((time >= F.lit(_START)) & (time < F.lit(_END)))


def _in_layout(spark: SparkSession, path: str, clause: str) -> DataFrame:
    """The hour by whatever columns the layout can skip files with."""
    table = spark.read.format("delta").load(path)
    table = table.where((table.event_time >= F.lit(_START)) & (table.event_time < F.lit(_END)))
    if DAY in clause:
        table = table.where(F.col(DAY) == F.lit(_START.date()))
    return table.where(F.col(HOUR) == _START.hour) if HOUR in clause else table


def _read(rows: DataFrame) -> Read:
    """The best of three readings of every value."""
    best, count = float("inf"), 0
    for _ in range(3):
        began = time.perf_counter()
        count = rows.agg(F.count("value"), F.sum(F.length("value"))).collect()[0][0]
        best = min(best, time.perf_counter() - began)
    wanted = rows.select("value")
    files, size = _scanned(wanted)
    return Read(best, count, files, size)


def _scanned(rows: DataFrame) -> tuple[int, int]:
    """Files and bytes of the scan, from Spark's metrics of the very plan that ran."""
    plan = rows._jdf.queryExecution().executedPlan()
    rows._jdf.queryExecution().toRdd().count()
    leaves = plan.collectLeaves()
    scans = [leaves.apply(i).metrics() for i in range(leaves.size())]
    return tuple(
        sum(scan.apply(name).value() for scan in scans) for name in ("numFiles", "filesSize")
    )


def _cpu_seconds(spark: SparkSession) -> float:
    """Of the JVM: what else the machine does hardly matters to it."""
    gateway: Any = spark.sparkContext._gateway
    times = psutil.Process(gateway.proc.pid).cpu_times()
    return times.user + times.system
