"""Broken records with a function of the user's as the sink: set aside whatever it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from tests.conftest import Cli
from tests.e2e.test_broken_records import run_inside

PIPELINES = """
from ebbtide import ForeachBatch, Kafka, Pipeline

def read(rows):
    return [len(list(rows))]

def once(batch, number):
    # in the workers, which cannot import this file
    batch.rdd.mapPartitions(read).collect()

def never(batch, number):
    pass

def twice(batch, number):
    batch.count()
    batch.collect()

def in_two_parts(batch, number):
    batch.isEmpty()
    batch.take(1)

def pipeline(write):
    return Pipeline(
        write.__name__.replace("_", "-"),
        source=Kafka("visits", schema="visit_id INT, event_time TIMESTAMP"),
        event_time="event_time",
        transform=lambda visits: visits,
        sink=ForeachBatch(write),
    )

read_once, read_never, read_twice = pipeline(once), pipeline(never), pipeline(twice)
def first_twice(batch, number):
    batch.take(1)
    batch.first()

def first(batch, number):
    batch.take(1)

read_in_two_parts, read_first_twice = pipeline(in_two_parts), pipeline(first_twice)
read_first = pipeline(first)
"""
GOOD = b'{"visit_id": 1, "event_time": "2025-09-04T07:00:00"}'


def send(connection: kafka.KafkaConnection, *values: bytes) -> None:
    """Each to the next partition: so the broken one is in the second."""
    with kafka.Sender(connection, "visits") as sender:
        for partition, value in enumerate(values):
            sender.send(value, partition=partition)


def dead(connection: kafka.KafkaConnection, topic: str) -> list[tuple[int, bytes | None]]:
    retained = kafka.retained_offsets(connection, topic)
    ends = {partition: last for partition, (_, last) in retained.items()}
    found = kafka.consume_range(connection, topic, dict.fromkeys(ends, 0), ends)
    return sorted((json.loads(record.key or b"")["offset"], record.value) for record in found)


@pytest.mark.usefixtures("one_jvm")
def test_broken_records_are_set_aside(inside: Cli, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    connection = settings.kafka
    kafka.create_missing_topics(connection, ["visits"])
    names = ("once", "never", "twice", "in_two_parts", "first_twice")
    for values in ([GOOD, b"broken 0"], [GOOD, b"broken 1"]):
        send(connection, *values)
        for name in names:
            run_inside(inside, settings, f"{tmp_path}/pipelines.py:read_{name}")
    for name in names:
        letters = dead(connection, f"{name.replace('_', '-')}.dead-letters")
        assert letters == [(0, b"broken 0"), (1, b"broken 1")], name


@pytest.mark.usefixtures("one_jvm")
def test_what_is_read_ahead_counts_as_unread(
    inside: Cli, settings: Settings, tmp_path: Path
) -> None:
    """A function takes the first record; Spark has read the broken one behind it for Python."""
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    kafka.create_missing_topics(settings.kafka, ["visits"])
    for value in (b"broken 0", b"broken 1"):
        with kafka.Sender(settings.kafka, "visits") as sender:
            for each in (GOOD, value):
                sender.send(each, partition=0)
        run_inside(inside, settings, f"{tmp_path}/pipelines.py:read_first")
    assert dead(settings.kafka, "first.dead-letters") == [(1, b"broken 0"), (3, b"broken 1")]
