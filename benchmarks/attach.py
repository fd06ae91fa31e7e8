"""What it costs to follow a query with `ebbtide.attach`."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import ebbtide
from ebbtide.config import Settings
from ebbtide.runtime.session import build_session, close_session

WARM_UP = 2
"""How many turns are not counted: Java compiles what it runs."""


_BUSY = re.compile(r"spark-listener-group-streams|Thread-\d+")
"""The threads of the JVM that call a listener, and that answer Python."""


@dataclass(frozen=True)
class Spent:
    """CPU time in seconds: of the program that attaches, and of Spark's JVM."""

    python: float
    jvm: float
    busy: float
    """Of the JVM's threads that have to do with a listener."""

    def since(self, before: Spent) -> Spent:
        """The time between two moments."""
        return Spent(self.python - before.python, self.jvm - before.jvm, self.busy - before.busy)

    @property
    def total(self) -> float:
        """Of both processes."""
        return self.python + self.jvm

    @property
    def own(self) -> float:
        """Where attach does its work: little noise, as nothing else is done there."""
        return self.python + self.busy


def run(*, quick: bool) -> Iterator[str]:
    """CPU of a plain windowed count, alone and with attach, of Python and the JVM, by turns"""
    batches, warm, counted = (3, 0, 1) if quick else (100, WARM_UP, 4)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    spark = build_session("bench", Settings(home=home))
    for rows in (100,) if quick else (100, 100_000):
        source = _write_input(spark, home, rows, batches)
        spent: dict[bool, list[Spent]] = {False: [], True: []}
        for turn in range(warm + counted):
            for attached in (False, True) if turn % 2 else (True, False):
                folder = home / f"{rows}-{turn}-{attached}"
                spent[attached].append(_spend(spark, source, folder, attached=attached))
        yield _report(rows, batches, spent[False][warm:], spent[True][warm:])
    close_session(spark)
    shutil.rmtree(home, ignore_errors=True)


def _write_input(spark: SparkSession, home: Path, rows: int, batches: int) -> Path:
    """A file for each batch."""
    (source := home / f"in-{rows}").mkdir()
    one = spark.range(rows).withColumn("at", F.timestamp_seconds(F.col("id") + 1_756_969_200))
    one.coalesce(1).write.parquet(str(home / f"one-{rows}"))
    (file,) = (home / f"one-{rows}").glob("*.parquet")
    for number in range(batches):
        shutil.copy(file, source / f"{number}.parquet")
    return source


def _report(rows: int, batches: int, alone: list[Spent], attached: list[Spent]) -> str:
    ratios = [one.total / other.total for one, other in zip(attached, alone, strict=True)]
    middle = f"{statistics.median(ratios):.3f}"
    if len(ratios) > 1:
        low, _, high = statistics.quantiles(ratios, n=4)
        middle += f" (quartiles {low:.3f} to {high:.3f})"
    whole = statistics.median(one.total for one in alone)
    with_, without = (statistics.median(one.own for one in each) for each in (attached, alone))
    more = with_ - without
    return (
        f"{rows:>7,} rows a batch: {1000 * whole / batches:.0f} ms of CPU a batch. In its own "
        f"threads attach takes {1000 * more / batches:.1f} ms of it, {100 * more / whole:.1f} %; "
        f"of all, {middle} × the query alone"
    )


def _spend(spark: SparkSession, source: Path, folder: Path, *, attached: bool) -> Spent:
    """The CPU time of one run."""
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
    return _cpu_seconds(spark).since(before)


def _cpu_seconds(spark: SparkSession) -> Spent:
    jvm: Any = spark._jvm
    pids = (os.getpid(), jvm.java.lang.ProcessHandle.current().pid())
    threads = jvm.java.lang.management.ManagementFactory.getThreadMXBean()
    names = {id_: threads.getThreadInfo(id_) for id_ in threads.getAllThreadIds()}
    busy = [id_ for id_, info in names.items() if info and _BUSY.match(info.getThreadName())]
    python, java = (sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
    return Spent(python, java, sum(threads.getThreadCpuTime(id_) for id_ in busy) / 1e9)
