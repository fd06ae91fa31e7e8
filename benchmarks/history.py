"""What a stream pays for its history: event times, the digest of its output, an entry a batch."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide import kafka
from ebbtide.config import Settings
from ebbtide.jobs.visits_windows_counter import pipeline as counter
from ebbtide.local.broker import temporary_broker
from ebbtide.local.visits import Visits
from ebbtide.pipeline import Kafka, Pipeline
from ebbtide.records import METRICS, Decoder
from ebbtide.runners import stream
from ebbtide.runners.stream import StreamOptions, run_stream
from ebbtide.spark import build_session, close_session

_BATCHES = 20
_WARM = 5
"""So many batches of each run are not counted: a stream that starts compiles and fills caches."""
_WAYS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "without": lambda: _no_history(),
    "with": nullcontext,
}


def run(*, quick: bool) -> Iterator[str]:
    """CPU of driver, executor and Python a batch, with and without history, by turns"""
    # a stream runs for weeks: what counts is a batch of one that has been running
    count, rounds = (5_000, 2) if quick else (2_000_000, 8)
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
            spent = _spent(spark, pipeline, settings, count, rounds)
            for way, seconds in spent.items():
                each = statistics.median(seconds)
                micros = each / (count / _BATCHES) * 1e6
                yield f"{name:<17} {way:<8} {each:>7.3f} CPU s a batch, {micros:.2f} µs a row"
            pairs = zip(spent["with"], spent["without"], strict=True)
            ratios = sorted(ours / plain for ours, plain in pairs)
            yield (
                f"{name:<17} with history it takes {statistics.median(ratios):.3f} × the CPU "
                f"(pairs from {ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
        close_session(spark)
    shutil.rmtree(home, ignore_errors=True)


def _same(rows: DataFrame) -> DataFrame:
    return rows


def _spent(
    spark: SparkSession, pipeline: Pipeline, settings: Settings, count: int, rounds: int
) -> dict[str, list[float]]:
    """By way, what a batch took in each round; the first round warms up."""
    spent: dict[str, list[float]] = {way: [] for way in _WAYS}
    for turn in range(rounds + 1):
        # by turns the one and the other goes first
        for way in sorted(_WAYS, reverse=turn % 2 == 0):
            checkpoint = settings.home / f"{pipeline.name}-{way}-{turn}"
            options = StreamOptions(
                str(checkpoint), available_now=True, max_offsets_per_trigger=count // _BATCHES
            )
            with _WAYS[way](), _borrowed(spark):
                marks = _marks(spark, pipeline, settings, options, count)
            shutil.rmtree(checkpoint)
            if turn > 0:
                spent[way].append(_usual(marks[_WARM:]))
    return spent


def _marks(
    spark: SparkSession, pipeline: Pipeline, settings: Settings, options: StreamOptions, count: int
) -> list[float]:
    """The CPU that was spent when each batch had ended."""
    marks: list[float] = []
    result = run_stream(
        pipeline, settings, options, on_batch=lambda _report: marks.append(_cpu(spark))
    )
    assert result.rows == count, result
    return marks


def _usual(marks: list[float]) -> float:
    """What a batch took, the extreme fifths left out: the collector's turn, the compiler's."""
    each = sorted(after - before for before, after in pairwise(marks))
    aside = len(each) // 5
    return statistics.mean(each[aside : len(each) - aside])


def _borrowed(spark: SparkSession) -> AbstractContextManager[object]:
    """The runner makes and ends a session of its own; here it borrows ours."""
    borrowed = ExitStack()
    borrowed.enter_context(patch.object(stream, "build_session", lambda *_a, **_k: spark))
    borrowed.enter_context(patch.object(stream, "close_session", lambda _spark: None))
    return borrowed


def _no_history() -> AbstractContextManager[object]:
    """The runner as it would be without one."""
    plain = ExitStack()
    plain.enter_context(patch.object(stream, "observed", lambda rows, _pipeline: rows))
    plain.enter_context(patch.object(stream._Run, "_record", lambda _run, _progress: None))
    plain.enter_context(patch.object(Decoder, "decode", _decode))
    return plain


def _decode(decoder: Decoder, raw: DataFrame) -> DataFrame:
    """The good records, the broken ones counted, without a look at event times."""
    judged = decoder.judge(raw)
    record, broken = judged.columns
    counts = (F.count(F.lit(1)).alias("records"), F.count_if(broken).alias("broken"))
    columns = [
        F.col(record)[f.name].alias(f.name)
        if f.name in (*decoder.used, decoder.event_time)
        else F.lit(None).cast(f.dataType).alias(f.name)
        for f in decoder.schema
    ]
    return judged.observe(METRICS, *counts).where(~F.col(broken)).select(*columns)


def _cpu(spark: SparkSession) -> float:
    """Of this process and of its JVM, so far."""
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    return sum(sum(process.cpu_times()[:2]) for process in (psutil.Process(), jvm))
