"""What a stream pays for its history: event times, the digest of its output, an entry a batch."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
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

_BATCHES = 10
_WAYS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "without": lambda: _no_history(),
    "with": nullcontext,
}


def run(*, quick: bool) -> Iterator[str]:
    """CPU seconds of driver, executor and Python with and without history, warm, by turns"""
    count, rounds = (5_000, 2) if quick else (1_000_000, 12)
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
                yield f"{name:<17} {way:<8} {each:>7.2f} CPU s, {each / count * 1e6:.2f} µs a row"
            pairs = zip(spent["with"], spent["without"], strict=True)
            ratios = sorted(ours / plain for ours, plain in pairs)
            least = min(spent["with"]) / min(spent["without"])
            yield (
                f"{name:<17} with history it takes {statistics.median(ratios):.2f} × the CPU "
                f"(pairs from {ratios[0]:.2f} to {ratios[-1]:.2f}; least by least {least:.2f})"
            )
        close_session(spark)
    shutil.rmtree(home, ignore_errors=True)


def _same(rows: DataFrame) -> DataFrame:
    return rows


def _spent(
    spark: SparkSession, pipeline: Pipeline, settings: Settings, count: int, rounds: int
) -> dict[str, list[float]]:
    spent: dict[str, list[float]] = {way: [] for way in _WAYS}
    for turn in range(rounds):
        # by turns the one and the other goes first
        for way in sorted(_WAYS, reverse=turn % 2 == 0):
            options = StreamOptions(
                str(settings.home / f"{pipeline.name}-{way}-{turn}"),
                available_now=True,
                max_offsets_per_trigger=count // _BATCHES,
            )
            with _WAYS[way](), _borrowed(spark):
                before = _cpu(spark)
                result = run_stream(pipeline, settings, options)
                seconds = _cpu(spark) - before
            assert result.rows == count, result
            if turn > rounds // 4:  # the first turns warm up
                spent[way].append(seconds)
    return spent


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
