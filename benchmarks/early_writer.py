"""The early writer against the same semantics on Spark's own state APIs."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.state_apis import by_bucket, visit_by_visit
from ebbtide.config import Settings
from ebbtide.jobs.visits_early_writer import pipeline
from ebbtide.spark import build_session, close_session

PLAIN, OURS = "transformWithState, a key a visit", "Ebbtide's early writer"
CONTENDERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    OURS: pipeline.query,
    "transformWithStateInPandas, bytes": lambda events: by_bucket(_timed(events), "bytes"),
    "transformWithStateInPandas, arrays": lambda events: by_bucket(_timed(events), "arrays"),
    "transformWithStateInPandas, a list": lambda events: by_bucket(_timed(events), "list"),
    PLAIN: lambda events: visit_by_visit(_timed(events)),
}
_SCHEMA = "visit_id INT, event_time TIMESTAMP"
_HOURS, _VISIT_SECONDS, _DISORDER_SECONDS = 6, 480, 240


@dataclass(frozen=True)
class Ran:
    """What one contender did."""

    seconds: float
    output: Path
    last_rows: int
    """Rows of state after the last batch."""
    most_bytes: int
    """Of state, in the store's memory."""


def run(*, quick: bool) -> Iterator[str]:
    """sessions with early results, against the same on Spark's state APIs; one by one, each warm"""
    events, visits, batches = (20_000, 4_000, 4) if quick else (500_000, 100_000, 10)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    write_events(home / "events", events, visits, batches)
    write_events(home / "warm-up", 200, 40, 2)
    spark = build_session("bench", Settings(home=home), wanted=pipeline.conf)
    ran = {}
    for number, (name, query) in enumerate(CONTENDERS.items()):
        _run(spark, query, home / "warm-up", home / f"warm-{number}")
        ran[name] = _run(spark, query, home / "events", home / str(number))
        yield f"{name:<36} {events / ran[name].seconds:>9,.0f} events/s"
    truth = spark.read.parquet(str(ran[PLAIN].output)).persist()
    for name, result in ran.items():
        found = spark.read.parquet(str(result.output))
        differing = found.exceptAll(truth).count() + truth.exceptAll(found).count()
        assert differing == 0, f"{name}: {differing} reports differ"
        assert result.last_rows == 0, f"{name}: {result.last_rows} rows of state are left"
    ended = truth.where("is_finished").count()
    yield f"all wrote the same {truth.count():,} reports, batch by batch; {ended:,} visits ended"
    yield f"rows of state after all timers fired: 0; at most {ran[OURS].most_bytes:,} bytes"
    close_session(spark)
    shutil.rmtree(home, ignore_errors=True)
    ratio = ran[PLAIN].seconds / ran[OURS].seconds
    yield f"Ebbtide's early writer is {ratio:.2f} × as fast as transformWithState by rows"


def write_events(folder: Path, events: int, visits: int, batches: int) -> None:
    """A file a batch, its events nearly in order, and at last an event that ends every visit."""
    chance = np.random.default_rng(7)
    each = events // visits
    starts = np.sort(chance.integers(0, _HOURS * 3600, visits))
    ids = np.repeat(np.arange(visits), each)
    seconds = np.repeat(starts, each) + chance.integers(0, _VISIT_SECONDS, events)
    arrival = np.argsort(seconds + chance.integers(0, _DISORDER_SECONDS, events), kind="stable")
    parts = np.array_split(arrival, batches)
    folder.mkdir(parents=True)
    for number, part in enumerate(parts):
        _write_file(folder, number, ids[part], seconds[part])
    _write_file(folder, batches, np.array([visits]), np.array([10 * 86_400]))


def _write_file(folder: Path, number: int, ids: Any, seconds: Any) -> None:
    start = np.datetime64("2025-09-04T07:00:00", "us")
    times = pa.array(start + seconds.astype("timedelta64[s]"), pa.timestamp("us", "UTC"))
    table = pa.table({"visit_id": pa.array(ids, pa.int32()), "event_time": times})
    path = folder / f"{number:04}.parquet"
    pq.write_table(table, path)
    # Spark takes the oldest file first
    os.utime(path, (1_000 + number, 1_000 + number))


def _timed(events: DataFrame) -> DataFrame:
    watermarked = events.withWatermark("event_time", str(pipeline.watermark))
    return watermarked.withColumn("ms", F.unix_millis("event_time"))


def _run(
    spark: SparkSession, query: Callable[[DataFrame], DataFrame], events: Path, folder: Path
) -> Ran:
    output = folder / "output"
    source = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1)

    def write(reports: DataFrame, number: int) -> None:
        reports.withColumn("batch", F.lit(number)).write.mode("append").parquet(str(output))

    started = time.perf_counter()
    running = (
        query(source.parquet(str(events)))
        .writeStream.foreachBatch(write)
        .outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    seconds = time.perf_counter() - started
    state = [progress["stateOperators"][0] for progress in running.recentProgress]
    return Ran(
        seconds,
        output,
        last_rows=state[-1]["numRowsTotal"],
        most_bytes=max(each["memoryUsedBytes"] for each in state),
    )
