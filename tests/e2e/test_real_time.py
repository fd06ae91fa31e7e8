"""Real-time mode on real Spark: a rewind warns, and another trigger repeats the batch exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from ebbtide.checks import CheckKind
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from tests.e2e.conftest import wait_until

REAL_TIME = {"realTime": "5 seconds"}


def start(settings: Settings, checkpoint: Path, **trigger: object) -> Callable[[], None]:
    """Copy the topic `in` to `out`; returns the function that stops the query."""
    from pyspark.sql import SparkSession

    spark = SparkSession.active()
    cluster = {"kafka.bootstrap.servers": settings.kafka.address}
    source = spark.readStream.format("kafka").options(**cluster).option("subscribe", "in")
    rows = source.option("startingOffsets", "earliest").load().select("key", "value")
    writer = rows.writeStream.format("kafka").options(**cluster).option("topic", "out")
    writer = writer.outputMode("update").option("checkpointLocation", str(checkpoint))
    query = cast(Any, writer).trigger(**trigger).start()
    if "availableNow" in trigger:
        query.awaitTermination()
    return cast("Callable[[], None]", query.stop)


@pytest.mark.usefixtures("one_jvm")
def test_another_trigger_repeats_the_batch_that_real_time_mode_would_plan_again(
    settings: Settings, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    kafka.create_missing_topics(settings.kafka, ["in", "out"])
    producer = Producer(settings.kafka.client_settings())
    producer.produce("in", b"1")
    producer.flush()
    stop = start(settings, checkpoint, **REAL_TIME)
    wait_until(lambda: (checkpoint / "commits" / "1").exists())
    stop()
    planned = (checkpoint / "offsets" / "1").read_bytes()

    # 1: the plan says so
    request = RewindRequest(str(checkpoint), ToBatch(1), assume_stopped=True, remedy="none")
    plan = plan_rewind(request)
    (check,) = [check for check in plan.checks if check.kind == CheckKind.TRIGGER]
    assert "real-time mode, which deletes offsets/1" in check.detail

    # 2: with another trigger, the batch is repeated as it was planned
    apply_rewind(plan, assume_stopped=True)
    start(settings, checkpoint, availableNow=True)
    assert (checkpoint / "commits" / "1").exists()
    assert (checkpoint / "offsets" / "1").read_bytes() == planned

    # 3: without, it is planned again
    undo_rewind(str(checkpoint), assume_stopped=True)
    apply_rewind(plan_rewind(request), assume_stopped=True)
    stop = start(settings, checkpoint, **REAL_TIME)
    wait_until(lambda: (checkpoint / "commits" / "1").exists())
    stop()
    assert (checkpoint / "offsets" / "1").read_bytes() != planned
