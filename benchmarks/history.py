"""What a stream pays for its history: event times, the digest of its output, an entry a batch.

A stream runs for weeks: what counts is a usual batch of one that has been running. So a run's first
batches are left out, of the others the median counts, and the JVM's compiler, which works on a new
plan for a while and then no more, is counted apart. One JVM's ratio differs from another's by more
than history costs, so there are several starts. Reads Linux's clocks.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

from ebbtide import kafka, records, sinks
from ebbtide.config import Settings
from ebbtide.jobs.visits_windows_counter import pipeline as counter
from ebbtide.local.broker import temporary_broker
from ebbtide.local.visits import Visits
from ebbtide.pipeline import Kafka, Pipeline
from ebbtide.runners import stream
from ebbtide.runners.stream import BatchReport, StreamOptions, run_stream
from ebbtide.spark import build_session, close_session

_FIRST = 2
"""So many batches of each run are not counted: a query that starts makes its plans and caches."""
_STEADY = {"spark.driver.extraJavaOptions": "-XX:-UseDynamicNumberOfCompilerThreads"}
"""A compiler thread that ends would take its time along."""


class Spent(NamedTuple):
    """CPU seconds of Python and the JVM."""

    work: float
    compiler: float


Pair = tuple[Spent, Spent]
"""By the batch, with history and without."""


def run(*, quick: bool) -> Iterator[str]:
    """CPU of driver, executor and Python a batch, with and without history, by turns"""
    starts, warm, pairs = (1, 0, 1) if quick else (5, 4, 6)
    batches, size = (4, 500) if quick else (16, 100_000)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    counted = replace(counter, sink=Kafka("counted"))
    passed_on = replace(
        counter, name="visits-copy", transform=_same, sink=Kafka("copied"), output_mode="append"
    )
    with temporary_broker() as broker:
        settings = Settings(home=home, bootstrap_servers=broker.bootstrap_servers)
        kafka.create_missing_topics(broker.bootstrap_servers, ["visits"])
        with kafka.Sender(broker.bootstrap_servers, "visits") as sender:
            for chunk in Visits(count=batches * size).messages():
                sender.send_all(chunk)
        for start in range(1, starts + 1):
            spark = build_session("bench", settings, conf=_STEADY, wanted=counter.conf)
            for name, pipeline in (("a windowed count", counted), ("rows passed on", passed_on)):
                spent = [_pair(spark, pipeline, settings, size, n) for n in range(warm + pairs)]
                yield f"start {start}: {name}, {size:,} records a batch: {_compared(spent[warm:])}"
            close_session(spark)
    shutil.rmtree(home, ignore_errors=True)


def _same(rows: DataFrame) -> DataFrame:
    return rows


def _pair(
    spark: SparkSession, pipeline: Pipeline, settings: Settings, size: int, turn: int
) -> Pair:
    """What a batch took in a run with history and in one without; by turns each goes first."""
    ways: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "with": nullcontext,
        "without": _no_history,
    }
    took: dict[str, Spent] = {}
    for way in sorted(ways, reverse=turn % 2 == 0):
        checkpoint = settings.home / f"{pipeline.name}-{way}-{turn}"
        options = StreamOptions(str(checkpoint), available_now=True, max_offsets_per_trigger=size)
        with ways[way]():
            took[way] = _a_batch(spark, pipeline, settings, options)
        shutil.rmtree(checkpoint)
    return took["with"], took["without"]


def _a_batch(
    spark: SparkSession, pipeline: Pipeline, settings: Settings, options: StreamOptions
) -> Spent:
    """What the median batch of one run took, and the compiler in a mean one."""
    marks: list[Spent] = []
    clock = Clock(spark)

    def mark(report: BatchReport) -> None:
        if report.rows:  # the last one, which only moves the watermark, is no usual batch
            marks.append(clock.read())

    with (  # the runner makes and ends a session of its own; here it borrows ours
        patch("ebbtide.spark.build_session", lambda *_a, **_k: spark),
        patch("ebbtide.spark.close_session", lambda _spark: None),
    ):
        run_stream(pipeline, settings, options, on_batch=mark)
    each = [
        Spent(after.work - before.work, after.compiler - before.compiler)
        for before, after in pairwise(marks[_FIRST:])
    ]
    return Spent(
        statistics.median(spent.work for spent in each),
        statistics.mean(spent.compiler for spent in each),
    )


def _no_history() -> AbstractContextManager[object]:
    """The runner as it would be without one: broken records are counted, and that is all."""
    plain = ExitStack()
    plain.enter_context(patch.object(records, "_span", lambda _time: []))
    plain.enter_context(patch.object(sinks, "with_hash", lambda rows: rows))
    plain.enter_context(patch.object(stream._Run, "_record", lambda _run, _progress: None))
    return plain


class Clock:
    """Reads what this process and its JVM have spent so far."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        # how Linux names the clock of a process's CPU: its number, inverted, and what kind of clock
        self._processes = [~pid << 3 | 2 for pid in (os.getpid(), jvm)]
        self._compiler: list[Path] = []
        for thread in Path(f"/proc/{jvm}/task").iterdir():
            with suppress(FileNotFoundError):  # other threads come and go
                if (thread / "comm").read_text().startswith(("C1 Compiler", "C2 Compiler")):
                    self._compiler.append(thread / "schedstat")

    def read(self) -> Spent:
        """The first figure of a thread's `schedstat` is its CPU in nanoseconds."""
        compiler = sum(int(stat.read_text().split()[0]) for stat in self._compiler) / 1e9
        return Spent(sum(map(time.clock_gettime, self._processes)) - compiler, compiler)


def _compared(pairs: list[Pair]) -> str:
    """What history costs, by the median pair, and in all of them."""
    ratios = sorted(ours.work / plain.work for ours, plain in pairs)
    usual = [
        1e3 * statistics.median(spent[what] for spent in side)
        for what in range(len(Spent._fields))
        for side in zip(*pairs, strict=True)
    ]
    return (
        "{:.1f} CPU ms with history, {:.1f} without (the JVM's compiler besides: {:.1f} and "
        "{:.1f}), so ".format(*usual)
        + f"{statistics.median(ratios):.3f} × (pairs from {ratios[0]:.3f} to {ratios[-1]:.3f})"
    )
