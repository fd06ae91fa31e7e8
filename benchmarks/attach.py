"""What it costs to follow a query with `ebbtide.attach`."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import ebbtide
from ebbtide.config import Settings
from ebbtide.runtime.session import build_session, close_session


def run(*, quick: bool) -> Iterator[str]:
    """CPU of a plain windowed count, alone and with attach, of Python and the JVM, by turns"""
    batches, rounds = (5, 2) if quick else (60, 7)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    spark = build_session("bench", Settings(home=home))
    for rows in (100, 1_000) if quick else (100, 100_000):
        (source := home / f"in-{rows}").mkdir()
        one = spark.range(rows).withColumn("at", F.timestamp_seconds(F.col("id") + 1_756_969_200))
        one.coalesce(1).write.parquet(str(home / f"one-{rows}"))
        (file,) = (home / f"one-{rows}").glob("*.parquet")
        for number in range(batches):
            shutil.copy(file, source / f"{number}.parquet")
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(rounds):
            for attached in (False, True) if turn % 2 else (True, False):
                spent = _spend(spark, source, home / f"{rows}-{turn}-{attached}", attached=attached)
                if turn:  # the first turn warms up
                    seconds[attached].append(spent)
        alone = statistics.median(seconds[False])
        pairs = zip(seconds[True], seconds[False], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        yield (
            f"{rows:>7,} rows a batch: attach takes {ratio:.3f} × the CPU of the query alone "
            f"({1000 * alone / batches:.0f} ms a batch)"
        )
    close_session(spark)
    shutil.rmtree(home, ignore_errors=True)


def _spend(spark: SparkSession, source: Path, folder: Path, *, attached: bool) -> float:
    """The CPU time of one run, in seconds."""
    rows = spark.readStream.schema("id BIGINT, at TIMESTAMP").option("maxFilesPerTrigger", 1)
    counts = (
        rows.parquet(str(source)).withWatermark("at", "1 hour").groupBy(F.window("at", "1 hour"))
    )
    writer = counts.count().writeStream.format("noop").outputMode("update")
    writer = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True)
    follows = ebbtide.attach(spark) if attached else None
    before = _cpu_seconds(spark)
    writer.start().awaitTermination()
    if follows is not None:
        follows.close()
    return _cpu_seconds(spark) - before


def _cpu_seconds(spark: SparkSession) -> float:
    jvm = spark._jvm
    assert jvm is not None
    pids = (os.getpid(), jvm.java.lang.ProcessHandle.current().pid())
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)
