"""The early writer against the same semantics on Spark's own state APIs."""

from __future__ import annotations

import json
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
from ebbtide.local.visits import VisitGenerator
from ebbtide.runtime.session import build_session, close_session
from ebbtide.systems.early_writer.pipeline import pipeline

PLAIN, OURS = "transformWithState, a key a visit", "Ebbtide's early writer"
# the slowest first: it takes minutes and warms the JVM for itself and for the others
CONTENDERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    PLAIN: lambda events: visit_by_visit(_timed(events)),
    "transformWithStateInPandas, bytes": lambda events: by_bucket(_timed(events), "bytes"),
    "transformWithStateInPandas, arrays": lambda events: by_bucket(_timed(events), "arrays"),
    "transformWithStateInPandas, a list": lambda events: by_bucket(_timed(events), "list"),
    OURS: pipeline.query,
}
_SCHEMA = "visit_id INT, event_time TIMESTAMP"


@dataclass(frozen=True)
class Ran:
    """What one contender did."""

    seconds: float
    reports: dict[int, tuple[int, int]]
    """Of each batch that had any: how many, and the sum of their hashes, whatever their order."""
    last_rows: int
    """Rows of state after the last batch."""
    most_bytes: int
    """Of state, in the store's memory."""


def run(*, quick: bool) -> Iterator[str]:
    """sessions with early results, against the same on Spark's state APIs, one after another"""
    events, visits, batches = (10_000, 2_000, 2) if quick else (500_000, 100_000, 10)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    write_events(home / "events", events, visits, batches)
    write_events(home / "warm-up", 200, 40, 2)
    spark = build_session("bench", Settings(home=home), wanted=pipeline.conf)
    ran = {}
    for number, (name, query) in enumerate(CONTENDERS.items()):
        _run(spark, query, home / "warm-up", home / f"warm-{number}")
        ran[name] = _run(spark, query, home / "events", home / str(number))
        yield f"{name:<36} {events / ran[name].seconds:>9,.0f} events/s"
    close_session(spark)
    shutil.rmtree(home, ignore_errors=True)
    for name, result in ran.items():
        assert result.reports == ran[PLAIN].reports, f"{name} reports something else"
        assert result.last_rows == 0, f"{name}: {result.last_rows} rows of state are left"
    reports = sum(count for count, _ in ran[PLAIN].reports.values())
    yield f"all wrote the same {reports:,} reports, batch by batch"
    yield f"rows of state after all timers fired: 0; at most {ran[OURS].most_bytes:,} bytes"
    ratio = ran[PLAIN].seconds / ran[OURS].seconds
    yield f"Ebbtide's early writer is {ratio:.2f} × as fast as transformWithState by rows"


def write_events(folder: Path, events: int, visits: int, batches: int) -> None:
    """The generator's visits, a file a batch, and at last an event that ends every visit."""
    made = VisitGenerator(count=events, users=visits).messages()
    rows = [json.loads(message["value"]) for chunk in made for message in chunk]
    ids = np.array([row["visit_id"] for row in rows], np.int32)
    times = np.array([row["event_time"][:-1] for row in rows], "datetime64[us]")
    folder.mkdir(parents=True)
    for number, part in enumerate(np.array_split(np.arange(events), batches)):
        _write_file(folder, number, ids[part], times[part])
    _write_file(folder, batches, ids[:1], times[-1:] + np.timedelta64(10, "D"))


def _write_file(folder: Path, number: int, ids: Any, times: Any) -> None:
    columns = {"visit_id": pa.array(ids), "event_time": pa.array(times, pa.timestamp("us", "UTC"))}
    path = folder / f"{number:04}.parquet"
    pq.write_table(pa.table(columns), path)
    # Spark takes the oldest file first
    os.utime(path, (1_000 + number, 1_000 + number))


def _timed(events: DataFrame) -> DataFrame:
    watermarked = events.withWatermark("event_time", str(pipeline.watermark))
    return watermarked.withColumn("ms", F.unix_millis("event_time"))


def _run(
    spark: SparkSession, query: Callable[[DataFrame], DataFrame], events: Path, folder: Path
) -> Ran:
    source = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1)
    hashes = F.sum(F.xxhash64("visit_id", "visited_pages", "is_finished").cast("decimal(20)"))
    started = time.perf_counter()
    running = (
        query(source.parquet(str(events)))
        .observe("reports", F.count(F.lit(1)).alias("count"), hashes.alias("hashes"))
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    seconds = time.perf_counter() - started
    progress = [json.loads(each.json()) for each in running._jsq.recentProgress()]
    state = [each["stateOperators"][0] for each in progress]
    said = {each["batchId"]: each["observedMetrics"]["reports"] for each in progress}
    return Ran(
        seconds,
        {number: (each["count"], each["hashes"]) for number, each in said.items() if each["count"]},
        last_rows=state[-1]["numRowsTotal"],
        most_bytes=max(each["memoryUsedBytes"] for each in state),
    )
