"""What a stream pays for its history: event times, the digest of its output, an entry a batch.

A stream runs for weeks: what counts is a usual batch of one that has been running. So a run's first
batches are left out, and the JVM's compiler, which works on a new plan for a while and then no
more, is counted apart. Runs are long, as the runner sees a batch's end up to a tenth of a second
late, when the next one is at work; and there are several JVMs, as one's ratio is not another's.
Reads Linux's clocks.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

from benchmarks.measure import Progress, Ratio
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka import spark as sinks
from ebbtide.connectors.spark import records
from ebbtide.local.broker import temporary_broker
from ebbtide.local.visits import VisitGenerator
from ebbtide.pipeline import Kafka, Pipeline
from ebbtide.runtime import stream
from ebbtide.runtime.session import build_session, close_session
from ebbtide.runtime.stream import BatchReport, StreamOptions, run_stream
from ebbtide.systems.stream_reprocessor.pipeline import pipeline as counter

_FIRST = 2
"""So many batches of each run are not counted: a query that starts makes its plans and caches."""
_STEADY = {"spark.driver.extraJavaOptions": "-XX:-UseDynamicNumberOfCompilerThreads"}
"""A compiler thread that ends would take its time along."""
_COMPILER = ("C1 Compiler", "C2 Compiler", "Sweeper thread")
"""How its threads are named; the last clears away what is compiled no more."""
_STEADY_SENDER = {"kafka.linger.ms": "20", "kafka.batch.size": "500000"}
"""As for any sink with many records. By default a request leaves with what has come together by
chance, from a few records on: then the sender's CPU is twice as much in one run as in another."""
_SHORT = {"segment.bytes": "50000000", "retention.bytes": "100000000"}
"""Nobody reads what is passed on."""


class Spent(NamedTuple):
    """CPU seconds of Python and the JVM."""

    work: float
    compiler: float


Pair = tuple[Spent, Spent]
"""By the batch, with history and without."""


def run(*, quick: bool) -> Iterator[str | Ratio]:
    """CPU of driver, executor and Python a batch, with and without history, by turns"""
    starts, pairs = (1, 1) if quick else (3, 3)
    records, size = (2_500, 500) if quick else (1_200_000, 100_000)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    streams = {
        "a windowed count": replace(counter, sink=Kafka("counted")),
        "rows passed on": replace(
            counter,
            name="visits-copy",
            transform=_same,
            sink=Kafka("copied", options=_STEADY_SENDER),
            output_mode="append",
        ),
    }
    found: dict[str, list[float]] = defaultdict(list)
    with temporary_broker() as broker:
        settings = Settings(home=home, bootstrap_servers=broker.bootstrap_servers)
        kafka.create_missing_topics(broker.connection, ["visits"])
        kafka.create_missing_topics(broker.connection, ["copied"], config=_SHORT)
        with kafka.Sender(broker.connection, "visits") as sender:
            for chunk in VisitGenerator(count=records).messages():
                sender.send_all(chunk)
        for start in range(1, starts + 1):
            spark = build_session("bench", settings, conf=_STEADY, wanted=counter.conf)
            for name, pipeline in streams.items():
                what = f"{name}, {size:,} records a batch"
                if not quick:
                    yield Progress(f"start {start}: {what}: {2 * pairs + 1} runs …")
                    _a_batch(spark, pipeline, settings, home / "warm-up", size)
                    shutil.rmtree(home / "warm-up")
                spent = [_pair(spark, pipeline, settings, size, turn) for turn in range(pairs)]
                ratio, said = _compared(spent)
                found[what].append(ratio)
                yield f"start {start}: {what}: {said}"
            close_session(spark)
    shutil.rmtree(home, ignore_errors=True)
    for what, ratios in found.items():
        if starts > 1:
            error = statistics.stdev(ratios) / starts**0.5
            yield f"{what}: {statistics.mean(ratios):.3f} × (standard error {error:.3f})"
    mean = statistics.mean(ratio for ratios in found.values() for ratio in ratios)
    yield Ratio("history", "CPU of a batch with history, to one without", 1.03, mean)


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
        with ways[way]():
            took[way] = _a_batch(spark, pipeline, settings, checkpoint, size)
        shutil.rmtree(checkpoint)
    return took["with"], took["without"]


def _a_batch(
    spark: SparkSession, pipeline: Pipeline, settings: Settings, checkpoint: Path, size: int
) -> Spent:
    """What a batch of one run took, in the mean."""
    options = StreamOptions(str(checkpoint), available_now=True, max_offsets_per_trigger=size)
    marks: list[Spent] = []
    clock = Clock(spark)

    def mark(report: BatchReport) -> None:
        # the last ones, which have what is left or only move the watermark, are no usual batches
        if report.rows > size // 2:
            marks.append(clock.read())

    with (  # the runner makes and ends a session of its own; here it borrows ours
        patch("ebbtide.runtime.session.build_session", lambda *_a, **_k: spark),
        patch("ebbtide.runtime.session.close_session", lambda _spark: None),
    ):
        run_stream(pipeline, settings, options, on_batch=mark)
    first, *_, last = marks[_FIRST:]
    counted = len(marks) - _FIRST - 1
    return Spent(*((after - before) / counted for before, after in zip(first, last, strict=True)))


def _no_history() -> AbstractContextManager[object]:
    """The runner as it would be without one: broken records are counted, and that is all."""
    plain = ExitStack()
    plain.enter_context(patch.object(records, "event_time_span", lambda _time: []))
    plain.enter_context(patch.object(sinks, "with_hash", lambda rows: rows))
    plain.enter_context(patch.object(stream._Run, "_record", lambda *_: None))
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
                if (thread / "comm").read_text().startswith(_COMPILER):
                    self._compiler.append(thread / "schedstat")

    def read(self) -> Spent:
        """The first figure of a thread's `schedstat` is its CPU in nanoseconds."""
        compiler = sum(int(stat.read_text().split()[0]) for stat in self._compiler) / 1e9
        return Spent(sum(map(time.clock_gettime, self._processes)) - compiler, compiler)


def _compared(pairs: list[Pair]) -> tuple[float, str]:
    """What history costs, all pairs together, and each of them."""
    ours, plain = zip(*pairs, strict=True)
    usual = [
        1e3 * statistics.mean(spent[what] for spent in side)
        for what in range(len(Spent._fields))
        for side in (ours, plain)
    ]
    each = ", ".join(f"{ours.work / plain.work:.3f}" for ours, plain in pairs)
    ratio = usual[0] / usual[1]
    return ratio, (
        "{:.1f} CPU ms with history, {:.1f} without (the JVM's compiler besides: {:.1f} and "
        "{:.1f}), so ".format(*usual)
        + f"{ratio:.3f} × (by pair: {each})"
    )
