"""The latency profile: which mode a query gets, and that nothing is lost or doubled by a change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.checks import CheckKind
from ebbtide.config import Settings, SparkFlags
from ebbtide.connectors import connector_of, kafka
from ebbtide.connectors.kafka import consume_range, retained_offsets
from ebbtide.history import read_history
from ebbtide.notes import LastMode, RunMode
from ebbtide.pipeline import Console, Kafka, Pipeline
from ebbtide.rewind import RewindRequest, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_folder
from ebbtide.systems.harness import Job
from tests.e2e.conftest import run, wait_until

PIPELINES = """
from ebbtide import Kafka, Pipeline

clicks = Pipeline(
    "clicks",
    source=Kafka("clicks", schema="n INT, at TIMESTAMP"),
    event_time="at",
    transform=lambda rows: rows.select("n"),
    sink=Kafka("out"),
    profile="latency",
)
"""
BROKEN = b"not JSON"


def send(settings: Settings, *values: int | bytes) -> None:
    with kafka.Sender(settings.kafka, "clicks") as sender:
        for value in values:
            text = value if isinstance(value, bytes) else b'{"n":%d,"at":"2025-09-04"}' % value
            sender.send(text, partition=0)


def read(settings: Settings, topic: str) -> list[bytes]:
    ranges = retained_offsets(settings.kafka, topic)
    start, end = ({p: both[at] for p, both in ranges.items()} for at in (0, 1))
    return [record.value or b"" for record in consume_range(settings.kafka, topic, start, end)]


def numbers(settings: Settings) -> list[int]:
    return sorted(json.loads(value)["n"] for value in read(settings, "out"))


def ids(log: Path) -> list[int]:
    return sorted(int(path.name) for path in log.glob("[0-9]*"))


def line(job: Job) -> str:
    """What the job said of its profile."""
    return next(line for line in job.errors() if line.startswith("Profile latency"))


def test_a_query_changes_its_mode_and_each_record_comes_out_once(
    settings: Settings, tmp_path: Path
) -> None:
    """**1** in real-time mode; **2** in batches; **3** asynchronous progress; **4** in batches.

    Each run is stopped, or stops, and the next goes on where it ended.
    """
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    pipeline, checkpoint = f"{tmp_path}/pipelines.py:clicks", tmp_path / "checkpoints" / "clicks"
    folder = open_folder(str(checkpoint))
    kafka.create_missing_topics(settings.kafka, ["clicks", "out"])
    at_once = ("--profile", "throughput", "--available-now")

    # 1: records come out while the batch runs, and the stop waits for its end
    with run(settings, pipeline, "--trigger", "5 seconds") as job:
        wait_until(lambda: (checkpoint / ".ebbtide" / "mode.json").exists(), job)
        assert "real-time mode" in line(job)
        send(settings, 1, BROKEN, 2)
        wait_until(lambda: numbers(settings) == [1, 2], job)
        assert job.stop() == 0, job.errors()
    assert ids(checkpoint / "commits") == ids(checkpoint / "offsets")
    assert LastMode.read(folder) == (RunMode.REAL_TIME, 0)
    entries = [entry for entry in read_history(folder).entries if entry.rows]
    assert [(entry.rows, entry.broken) for entry in entries] == [(3, 1)]
    assert entries[0].output is not None
    assert entries[0].output.rows == 2
    assert read(settings, "clicks.dead-letters") == [BROKEN]
    last = ids(checkpoint / "commits")[-1]
    if last > 0:
        request = RewindRequest(str(checkpoint), ToBatch(last), remedy="none")
        kinds = [check.kind for check in plan_rewind(request).checks]
        assert CheckKind.TRIGGER in kinds

    # 2
    send(settings, 3)
    with run(settings, pipeline, *at_once) as job:
        assert job.wait() == 0, job.errors()
    assert numbers(settings) == [1, 2, 3]

    # 3: a limit is nothing for real-time mode
    with run(settings, pipeline, "--max-offsets-per-trigger", "10") as job:
        for n in (4, 5, 6):
            send(settings, n)
            wait_until(lambda n=n: n in numbers(settings), job)  # type: ignore[misc]
        assert "asynchronous progress (real-time mode has no limit of records per batch)" in line(
            job
        )
        assert job.stop() == 0, job.errors()
    offsets = ids(checkpoint / "offsets")
    assert offsets == list(range(offsets[0], offsets[-1] + 1))
    assert ids(checkpoint / "commits")[-1] == offsets[-1]

    # 4
    send(settings, 7)
    with run(settings, pipeline, *at_once) as job:
        assert job.wait() == 0, job.errors()
    assert numbers(settings) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.usefixtures("one_jvm")
def test_the_mode_is_the_fastest_that_the_query_allows(settings: Settings) -> None:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    from ebbtide.runtime import profiles

    spark = SparkSession.active()
    kafka.create_missing_topics(settings.kafka, ["clicks"], partitions=1)
    kafka.create_missing_topics(settings.kafka, ["wide"], partitions=50)

    def count(rows: DataFrame) -> DataFrame:
        return rows.groupBy("n").count()

    def call_python(rows: DataFrame) -> DataFrame:
        return rows.select(F.udf(lambda n: n + 1, "int")("n").alias("n"))

    def choose(pipeline: Pipeline, **flags: Any) -> profiles.Chosen:
        source = connector_of(pipeline.source).open_source(pipeline, settings)
        rows = pipeline.query(source.open_stream(spark, pipeline.query).rows)
        return profiles.choose_mode(pipeline, settings, rows, **flags)

    clicks = Pipeline(
        "clicks",
        source=Kafka("clicks", schema="n INT, at TIMESTAMP"),
        event_time="at",
        transform=lambda rows: rows.where("n > 0"),
        sink=Kafka("out"),
        profile="latency",
    )
    wide = Kafka("wide", schema="n INT, at TIMESTAMP")
    assert choose(clicks).mode == RunMode.REAL_TIME
    assert choose(replace(clicks, profile=None)) == profiles.Chosen(RunMode.BATCHES)
    cases = {
        "its transform has Aggregate": replace(clicks, transform=count, output_mode="update"),
        "a query that writes to console": replace(clicks, sink=Console()),
        "real-time mode has no functions in Python": replace(clicks, transform=call_python),
        "real-time mode needs 51 cores": replace(clicks, source=wide),
        "real-time mode has no limit": replace(
            clicks, source=replace(wide, topic="clicks", options={"maxOffsetsPerTrigger": "5"})
        ),
    }
    for why, pipeline in cases.items():
        chosen = choose(pipeline)
        assert chosen.line is not None
        assert why in chosen.line
        stateless = why.startswith("real-time mode")
        assert chosen.mode == (RunMode.ASYNC if stateless else RunMode.BATCHES)
    assert choose(clicks, available_now=True).mode == RunMode.BATCHES
    # Spark would refuse to start
    assert choose(clicks, trigger="1 second").mode == RunMode.ASYNC
    assert choose(clicks, trigger="5 seconds").mode == RunMode.REAL_TIME
    flags = profiles.with_slots(cases["real-time mode needs 51 cores"], settings, SparkFlags())
    assert flags.master == "local[51]"


def test_a_killed_run_loses_nothing(settings: Settings, tmp_path: Path) -> None:
    """Killed with asynchronous progress, then in real-time mode; then all that is left, at once."""
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    pipeline, sent = f"{tmp_path}/pipelines.py:clicks", range(40)
    kafka.create_missing_topics(settings.kafka, ["clicks", "out"])
    modes = {("--max-offsets-per-trigger", "10"): sent[:20], ("--trigger", "5 seconds"): sent[20:]}
    for flags, part in modes.items():
        with run(settings, pipeline, *flags) as job:
            for n in part:
                send(settings, n, b"broken %d" % n)
            wait_until(lambda part=part: part[-1] in numbers(settings), job)  # type: ignore[misc]
            job.kill()
    with run(settings, pipeline, "--profile", "throughput", "--available-now") as job:
        assert job.wait() == 0, job.errors()
    assert set(numbers(settings)) == set(sent)
    letters = sorted(read(settings, "clicks.dead-letters"))
    assert letters == sorted(b"broken %d" % n for n in sent)
