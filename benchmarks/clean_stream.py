"""What a clean stream pays for the promise that no broken record is lost."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.config import Settings
from ebbtide.connectors import connector_of, kafka
from ebbtide.connectors.kafka.spark import read_stream
from ebbtide.local.broker import temporary_broker
from ebbtide.local.visits import VisitGenerator
from ebbtide.pipeline import Kafka
from ebbtide.runtime.session import build_session, close_session
from ebbtide.systems.stream_reprocessor.pipeline import count_by_window, pipeline

Query = Callable[[DataFrame], DataFrame]


def run(*, quick: bool) -> Iterator[str]:
    """the windowed count over clean visits, a plain Spark job against ours, warm, by turns"""
    count, rounds = (20_000, 2) if quick else (3_000_000, 5)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    with temporary_broker() as broker:
        settings = Settings(home=home, bootstrap_servers=broker.bootstrap_servers)
        kafka.create_missing_topics(broker.connection, ["visits"])
        with kafka.Sender(broker.connection, "visits") as sender:
            for chunk in VisitGenerator(count=count).messages():
                sender.send_all(chunk)
        spark = build_session("bench", settings, wanted=pipeline.conf)
        times: dict[str, list[float]] = {"plain Spark": [], "Ebbtide": []}
        for turn in range(rounds):
            for name, rows in (("plain Spark", _plain), ("Ebbtide", _ours)):
                seconds = _time(spark, rows(spark, settings), home / f"{name}-{turn}")
                if turn:  # the first turn warms up
                    times[name].append(seconds)
        close_session(spark)
    shutil.rmtree(home, ignore_errors=True)
    for name, seconds_ in times.items():
        yield f"{name:<12} {count / statistics.median(seconds_):>9,.0f} events/s"
    ratio = statistics.median(times["Ebbtide"]) / statistics.median(times["plain Spark"])
    yield f"Ebbtide takes {ratio:.2f} × the time of plain Spark"


def _query(rows: DataFrame) -> DataFrame:
    return count_by_window(rows.withWatermark("event_time", "20 minutes"))


def _plain(spark: SparkSession, settings: Settings) -> DataFrame:
    """As the examples write it: parse, take the fields, count."""
    assert isinstance(pipeline.source, Kafka)
    raw = read_stream(spark, pipeline.source, settings, None)
    visit = F.from_json(F.col("value").cast("string"), pipeline.source.schema)
    return _query(raw.select(visit.alias("visit")).select("visit.*"))


def _ours(spark: SparkSession, settings: Settings) -> DataFrame:
    source = connector_of(pipeline.source).open_source(pipeline, settings)
    return _query(source.open_stream(spark, _query).rows)


def _time(spark: SparkSession, result: DataFrame, checkpoint: Path) -> float:
    started = time.perf_counter()
    query = (
        result.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = [json.loads(p.json()) for p in query._jsq.recentProgress()]
    assert sum(p["numInputRows"] for p in progress) > 0, spark
    return time.perf_counter() - started
