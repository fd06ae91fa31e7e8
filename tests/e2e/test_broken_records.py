"""A thousand broken records of every shape among ten thousand good ones, with kills in between."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide import Delta, Kafka
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka.admin import list_topics
from ebbtide.local.visits import BROKEN_SHAPES
from tests.conftest import Cli
from tests.e2e.conftest import run, wait_until
from tests.e2e.test_crash import JOB, last_counts
from tests.trees import in_the_way_of
from tests.unit.test_pipeline import PIPELINE

GOOD, BROKEN, PARTITIONS = 10_000, 1_000, 2
SHAPES: dict[str, Callable[[int], bytes | None]] = {
    **BROKEN_SHAPES,
    "900 KB": lambda n: b"%d" % n + b"x" * 900_000,
}
REASONS = {
    "not JSON": "not a JSON object",
    "not an object": "not a JSON object",
    "wrong type": "field event_time does not convert to TIMESTAMP",
    "no event time": "no event time (field event_time)",
    "null": "null value",
    "empty": "empty value",
    "invalid UTF-8": "not valid UTF-8",
    "nested too deep": "not a JSON object",
    "900 KB": "not a JSON object",
}
DEAD = f"{JOB}.dead-letters"


def records() -> list[tuple[str, bytes | None]]:
    """Shape and value of each, well mixed; the good ones in two windows."""
    shapes = list(BROKEN_SHAPES)
    made: list[tuple[str, bytes | None]] = [
        ("good", json.dumps({"event_time": f"2025-09-04T07:{n * 20 // GOOD:02d}:00"}).encode())
        for n in range(GOOD)
    ]
    for n in range(BROKEN):
        shape = "900 KB" if n % 50 == 0 else shapes[n % len(shapes)]
        made.append((shape, SHAPES[shape](n)))
    random.Random(5).shuffle(made)
    return made


def send(
    connection: kafka.KafkaConnection, mixed: list[tuple[str, bytes | None]]
) -> dict[tuple[int, int], str]:
    """Send them in turn to the partitions; returns which shape lies at which place."""
    places, ends = {}, [0] * PARTITIONS
    with kafka.Sender(connection, "visits") as sender:
        for n, (shape, value) in enumerate(mixed):
            partition = n % PARTITIONS
            sender.send(value, partition=partition)
            places[partition, ends[partition]] = shape
            ends[partition] += 1
    return places


@pytest.mark.usefixtures("one_jvm")
def test_each_broken_record_is_a_dead_letter_once(inside: Cli, settings: Settings) -> None:
    connection = settings.kafka
    kafka.create_missing_topics(connection, ["visits"])
    places = send(connection, records())
    commits = settings.checkpoint(JOB) / "commits"
    printed, said = [], []
    flags = ("--max-offsets-per-trigger", "2000")
    # killed right after a commit, before its dead letters can be there; then in the middle of them
    for kill_at in (lambda: (commits / "0").exists(), lambda: dead_letters(connection) > 200):
        with run(settings, JOB, *flags) as job:
            wait_until(kill_at, job)
            job.kill()
            printed += job.batches()
            said += job.errors()
    assert dead_letters(connection) < BROKEN, "killed too late to prove anything"
    with run(settings, JOB, *flags, "--available-now") as job:
        assert job.wait() == 0, job.errors()
        printed += job.batches()
        said += job.errors()

    assert last_counts(printed) == {"07:00": GOOD // 2, "07:10": GOOD // 2}
    assert dead_letters(connection) == BROKEN
    found = list(kafka.consume(connection, DEAD, from_beginning=True, max_records=BROKEN))
    keys = Counter(record.key for record in found)
    assert len(keys) == BROKEN
    assert set(keys.values()) == {1}
    for record in found:
        place = json.loads(record.key or b"")
        shape = places[place["partition"], place["offset"]]
        headers = dict(record.headers)
        assert headers["ebbtide-reason"] == REASONS[shape].encode()
        assert headers["ebbtide-topic"] == b"visits"
        assert headers["ebbtide-pipeline"] == JOB.encode()
    values = Counter(record.value for record in found)
    assert values == Counter(value for shape, value in records() if shape != "good")
    # by the second run or, where that was killed at it, by the third
    assert any("broken records of an earlier run are now in the dead letters" in s for s in said)
    assert any(" broken · " in line for line in said)

    # a clean restart finds nothing to do
    run_inside(inside, settings, JOB)
    assert dead_letters(connection) == BROKEN


def run_inside(inside: Cli, settings: Settings, pipeline: str) -> list[str]:
    """`ebbtide run … --available-now` in this process; what it says."""
    flags = (
        "--home",
        settings.home,
        "--bootstrap-servers",
        settings.kafka.address,
        "--available-now",
    )
    answer = inside("run", pipeline, *flags)
    assert answer.returncode == 0, answer.stderr
    return answer.stderr.splitlines()


def dead_letters(connection: kafka.KafkaConnection) -> int:
    if DEAD not in list_topics(connection):
        return 0
    return sum(end - start for start, end in kafka.retained_offsets(connection, DEAD).values())


@pytest.mark.usefixtures("one_jvm")
def test_a_replayed_batch_does_not_double_its_dead_letters(inside: Cli, settings: Settings) -> None:
    connection, checkpoint = settings.kafka, settings.checkpoint(JOB)
    kafka.create_missing_topics(connection, ["visits"])
    with kafka.Sender(connection, "visits") as sender:
        sender.send(b'{"event_time":"2025-09-04T07:00:00"}', partition=0)
        sender.send(b"broken", partition=0)
    run_inside(inside, settings, JOB)
    assert dead_letters(connection) == 1
    # back to batch 0 by hand: planned, not committed
    for file in [*checkpoint.glob("commits/*"), *checkpoint.glob("commits/.*.crc")]:
        file.unlink(missing_ok=True)
    for file in [*checkpoint.glob("offsets/1*"), *checkpoint.glob("offsets/.1*.crc")]:
        file.unlink(missing_ok=True)
    said = run_inside(inside, settings, JOB)
    assert any(line.startswith("batch 0 · 2 rows · 1 broken") for line in said)
    assert dead_letters(connection) == 1


@pytest.mark.usefixtures("one_jvm")
def test_a_full_disk_neither_stops_the_stream_nor_loses_a_dead_letter(
    inside: Cli, settings: Settings
) -> None:
    connection, checkpoint = settings.kafka, settings.checkpoint(JOB)
    kafka.create_missing_topics(connection, ["visits"])
    with run(settings, JOB) as job:
        waiting = "Batch 0 is the last; waiting for records."
        wait_until(lambda: any(waiting in line for line in job.errors()), job)
        with in_the_way_of(checkpoint / ".ebbtide"):
            for sent in (1, 2):
                with kafka.Sender(connection, "visits") as sender:
                    sender.send(b"broken", partition=0)
                wait_until(lambda sent=sent: dead_letters(connection) == sent, job)  # type: ignore[misc]
            warned = "Warning: The cursor of the dead letters cannot be written"
            wait_until(lambda: any(line.startswith(warned) for line in job.errors()), job)
            job.kill()
            wait_until(lambda: not job.running)
    assert sum(line.startswith(warned) for line in job.errors()) == 1
    # the cursor is the one from before, and what was written since is found
    run_inside(inside, settings, JOB)
    assert dead_letters(connection) == 2


PIPELINES = """
from dataclasses import replace
from ebbtide import Delta
from ebbtide.systems.stream_reprocessor.pipeline import pipeline

visits = replace(pipeline.source, options={"startingOffsets": "earliest"})
to_table = replace(pipeline, name="to-table", source=visits, dead_letters=Delta("dead"))
"""


@pytest.mark.usefixtures("one_jvm")
def test_dead_letters_can_be_a_table(inside: Cli, settings: Settings, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    connection = settings.kafka
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    kafka.create_missing_topics(connection, ["visits"])
    with kafka.Sender(connection, "visits") as sender:
        sender.send(b'{"event_time":"2025-09-04T07:00:00"}', partition=0)
        sender.send(b"broken", partition=0)
        sender.send(b"\xff\xfe", partition=1)
    for _ in range(2):
        run_inside(inside, settings, f"{tmp_path}/pipelines.py:to_table")
    with kafka.Sender(connection, "visits") as sender:
        sender.send(b"broken again", partition=0)
    run_inside(inside, settings, f"{tmp_path}/pipelines.py:to_table")
    rows = DeltaTable(settings.table("dead")).to_pyarrow_table().to_pylist()
    assert sorted((r["partition"], r["offset"], r["value"], r["reason"]) for r in rows) == [
        (0, 1, b"broken", "not a JSON object"),
        (0, 2, b"broken again", "not a JSON object"),
        (1, 0, b"\xff\xfe", "not valid UTF-8"),
    ]


@pytest.mark.parametrize("sink", [Kafka("dead"), Delta("dead")])
@pytest.mark.usefixtures("one_jvm")
def test_pipelines_that_share_a_sink_each_have_their_dead_letters(
    settings: Settings, sink: Kafka | Delta
) -> None:
    from pyspark.sql import SparkSession

    from ebbtide.connectors.spark import open_dead_letter_sink

    spark = SparkSession.builder.getOrCreate()
    kafka.create_missing_topics(settings.kafka, ["dead"])
    letters = spark.createDataFrame(
        [("visits", 0, 7, bytearray(b"broken"), "not a JSON object")],
        "topic STRING, partition INT, offset LONG, value BINARY, reason STRING",
    ).selectExpr("*", "now() AS timestamp", "0 AS timestampType", "CAST(NULL AS BINARY) AS key")
    one, other = (
        open_dead_letter_sink(spark, replace(PIPELINE, name=name, dead_letters=sink), settings)
        for name in ("one", "other")
    )
    one.append(letters)
    assert one.without_written(letters, {}).count() == 0
    assert other.without_written(letters, {}).count() == 1
    other.append(other.without_written(letters, {}))
    assert other.without_written(letters, {}).count() == 0
