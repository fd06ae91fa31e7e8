"""What a stream pays for its history: event times, the digest of its output, an entry a batch.

A batch's CPU differs from run to run by more than its history costs. So history does its work ten
times more, and what that takes is divided by ten.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from pyspark.sql import Column, DataFrame, SparkSession

from ebbtide import kafka, records
from ebbtide.config import Settings
from ebbtide.jobs.visits_windows_counter import pipeline as counter
from ebbtide.local.broker import temporary_broker
from ebbtide.local.visits import Visits
from ebbtide.pipeline import Kafka, Pipeline
from ebbtide.runners import stream
from ebbtide.runners.stream import StreamOptions, run_stream
from ebbtide.sinks import digests
from ebbtide.spark import build_session, close_session

_BATCHES = 10
_FIRST = 2
"""So many batches of each run are not counted: a query that starts makes its plans and caches."""
_WARM = 3
"""So many pairs of runs come first and are not counted: the JVM compiles most in them."""
_MORE = 10
"""So many times more."""
_DRAWS = 4_000

Pair = tuple[float, float]
"""CPU seconds a batch, with history once and eleven times over."""


def run(*, quick: bool) -> Iterator[str]:
    """CPU of driver, executor and Python a batch, with history once and eleven times, by turns"""
    # a stream runs for weeks: what counts is a batch of one that has been running
    count, pairs = (5_000, 2) if quick else (1_000_000, 14)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    counted = replace(counter, sink=Kafka("counted"))
    passed_on = replace(
        counter, name="visits-copy", transform=_same, sink=Kafka("copied"), output_mode="append"
    )
    with temporary_broker() as broker:
        settings = Settings(home=home, bootstrap_servers=broker.bootstrap_servers)
        kafka.create_missing_topics(broker.bootstrap_servers, ["visits"])
        with kafka.Sender(broker.bootstrap_servers, "visits") as sender:
            for chunk in Visits(count=count).messages():
                sender.send_all(chunk)
        spark = build_session("bench", settings, wanted=counter.conf)
        for name, pipeline in (("a windowed count", counted), ("rows passed on", passed_on)):
            spent = _spent(spark, pipeline, settings, count, pairs, warm=1 if quick else _WARM)
            yield f"{name}, {count // _BATCHES:,} records a batch: {_compared(spent)}"
        close_session(spark)
    shutil.rmtree(home, ignore_errors=True)


def _same(rows: DataFrame) -> DataFrame:
    return rows


def _spent(
    spark: SparkSession, pipeline: Pipeline, settings: Settings, count: int, pairs: int, warm: int
) -> list[Pair]:
    """What a batch took in each pair of runs."""
    ways: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "once": nullcontext,
        "more": _many_times,
    }
    spent: list[Pair] = []
    for turn in range(warm + pairs):
        took: dict[str, float] = {}
        # by turns the one and the other goes first
        for way in sorted(ways, reverse=turn % 2 == 0):
            checkpoint = settings.home / f"{pipeline.name}-{way}-{turn}"
            options = StreamOptions(
                str(checkpoint), available_now=True, max_offsets_per_trigger=count // _BATCHES
            )
            with ways[way]():
                took[way] = _a_batch(spark, pipeline, settings, options, count)
            shutil.rmtree(checkpoint)
        spent.append((took["once"], took["more"]))
    return spent[warm:]


def _a_batch(
    spark: SparkSession, pipeline: Pipeline, settings: Settings, options: StreamOptions, count: int
) -> float:
    """What a batch of one run took, its first ones left out."""
    marks: list[float] = []
    with (  # the runner makes and ends a session of its own; here it borrows ours
        patch("ebbtide.spark.build_session", lambda *_a, **_k: spark),
        patch("ebbtide.spark.close_session", lambda _spark: None),
    ):
        result = run_stream(
            pipeline, settings, options, on_batch=lambda _report: marks.append(_cpu(spark))
        )
    assert result.rows == count, result
    counted = marks[_FIRST:]
    return (counted[-1] - counted[0]) / (len(counted) - 1)


def _many_times() -> AbstractContextManager[object]:
    """Ten more looks at the event times, ten more digests of the output, ten more entries."""
    span, observe, record = records._span, digests.observe_output, stream._Run._record

    def look_more(time: Column) -> list[Column]:
        more = [
            column.alias(f"{name}-{n}")
            for n in range(_MORE)
            for column, name in zip(span(time), ("earliest", "latest"), strict=True)
        ]
        return span(time) + more

    def hash_more(rows: DataFrame) -> DataFrame:
        for n in range(_MORE):
            rows = observe(rows, f"{digests.DIGEST}-{n}")
        return observe(rows)

    def record_more(run: Any, progress: dict[str, Any]) -> None:
        for _ in range(1 + _MORE):
            record(run, progress)

    more = ExitStack()
    more.enter_context(patch.object(records, "_span", look_more))
    more.enter_context(patch.object(stream, "observe_output", hash_more))
    more.enter_context(patch.object(stream._Run, "_record", record_more))
    return more


def _cpu(spark: SparkSession) -> float:
    """Of this process and of its JVM, so far."""
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    return sum(sum(process.cpu_times()[:2]) for process in (psutil.Process(), jvm))


def _compared(pairs: list[Pair]) -> str:
    """What history costs; how far chance goes, by drawing pairs anew."""
    drawn = random.Random(0)
    ratios = sorted(_ratio(drawn.choices(pairs, k=len(pairs))) for _ in range(_DRAWS))
    low, high = ratios[_DRAWS // 40], ratios[-_DRAWS // 40]
    once, more = (statistics.mean(side) for side in zip(*pairs, strict=True))
    return (
        f"{once:.3f} CPU s a batch, {more:.3f} with history eleven times; so with it a batch takes "
        f"{_ratio(pairs):.3f} × ({low:.3f} to {high:.3f} in 19 of 20 draws of {len(pairs)} pairs)"
    )


def _ratio(pairs: list[Pair]) -> float:
    """With history to without."""
    once, more = sum(once for once, _ in pairs), sum(more for _, more in pairs)
    return once / (once - (more - once) / _MORE)
