"""Replays over a real topic: in place after a rewind, and of new code to scratch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from tests.conftest import Cli
from tests.trees import snapshot

RECORDS, A_BATCH = 18, 6
PIPELINE = """
from pyspark.sql import functions as F
from ebbtide import Kafka, Pipeline

def count(visits):
    return visits{fix}.groupBy(F.window("event_time", "10 minutes")).agg(
        F.count("*").alias("visits")
    )

pipeline = Pipeline(
    "visits-counted",
    source=Kafka("visits", schema="page STRING, event_time TIMESTAMP"),
    event_time="event_time",
    watermark="10 minutes",
    transform=count,
    sink=Kafka("counted", key="window.start"),
    output_mode="update",
)
"""


def send(connection: kafka.KafkaConnection) -> None:
    """One a minute, the fifth of each batch a robot's, and one that is broken."""
    kafka.create_missing_topics(connection, ["visits"], partitions=1)
    with kafka.Sender(connection, "visits") as sender:
        for n in range(RECORDS):
            event = {"page": _page(n), "event_time": f"2025-09-04T07:{n:02}:00"}
            sender.send(b"broken" if n == 7 else json.dumps(event).encode(), partition=0)


def _page(n: int) -> str:
    return "robots.txt" if n % A_BATCH == 4 else "home"


def rows_of_batch(batch: int, *, fixed: bool) -> set[tuple[str, int]]:
    """What a batch should write: for each window of its records, how many there are so far.

    What the first batch counted was in the state before the code was fixed.
    """
    counted = [
        _window(n)
        for n in range(A_BATCH * (batch + 1))
        if n != 7 and not (fixed and n >= A_BATCH and _page(n) == "robots.txt")
    ]
    before = rows_of_batch(batch - 1, fixed=fixed) if batch else set()
    return set(Counter(counted).items()) - before


def _window(n: int) -> str:
    return f"2025-09-04T07:{n // 10}0:00.000Z"


def parse(rows: list[str]) -> set[tuple[str, int]]:
    found = [json.loads(row) for row in rows]
    return {(row["window"]["start"], row["visits"]) for row in found}


def read_all(connection: kafka.KafkaConnection, topic: str) -> list[kafka.Record]:
    ends = {p: end for p, (_, end) in kafka.retained_offsets(connection, topic).items()}
    return list(kafka.consume_range(connection, topic, dict.fromkeys(ends, 0), ends))


@pytest.mark.usefixtures("one_jvm")
def test_in_place_and_to_scratch(inside: Cli, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(PIPELINE.format(fix=""))
    (tmp_path / "fixed.py").write_text(PIPELINE.format(fix=".where(\"page != 'robots.txt'\")"))
    first, fixed = (f"{tmp_path}/{name}.py:pipeline" for name in ("first", "fixed"))
    checkpoint = settings.checkpoint("visits-counted")
    where = ("--home", settings.home, "--bootstrap-servers", settings.kafka.address)
    send(settings.kafka)

    nothing = inside("replay", first, *where)
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "is not a checkpoint" in nothing.stderr
    limit = ("--available-now", "--max-offsets-per-trigger", str(A_BATCH))
    ran = inside("run", first, *where, *limit)
    assert ran.returncode == 0, ran.stderr
    nothing = inside("replay", first, *where)
    assert "it was not rewound. Rewind it first: ebbtide rewind" in nothing.stderr

    # new code to scratch: exactly what it changes, and nobody else sees it
    written, before = read_all(settings.kafka, "counted"), snapshot(checkpoint)
    letters = read_all(settings.kafka, "visits-counted.dead-letters")
    assert len(letters) == 1
    flags = ("--to-scratch", "--from-batch", "1", "--to-batch", "2", "-o", "json")
    told = inside("replay", fixed, *where, *flags)
    assert told.returncode == 1, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    assert [v["verdict"] for v in found["verdicts"]] == ["differs"] * 2
    for verdict in found["verdicts"]:
        old, new = (rows_of_batch(verdict["batch"], fixed=fix) for fix in (False, True))
        assert (parse(verdict["old"]), parse(verdict["new"])) == (old - new, new - old)
    assert snapshot(checkpoint) == before
    assert read_all(settings.kafka, "counted") == written

    # the same code in place, after a rewind: the same again, the dead letter not once more
    rewind = ("rewind", checkpoint, "--to-batch", "1", "--execute", "--yes")
    done = inside(*rewind, "--bootstrap-servers", settings.kafka.address)
    assert done.returncode == 0, done.stderr
    told = inside("replay", first, *where)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("identical") == 3
    assert "Batches 1 to 3: 3 identical." in told.stderr
    again = [record.value for record in read_all(settings.kafka, "counted")]
    values = [record.value for record in written]
    assert sorted(map(str, again)) == sorted(
        map(str, values + values[len(rows_of_batch(0, fixed=False)) :])
    )
    assert read_all(settings.kafka, "visits-counted.dead-letters") == letters

    # and the query goes on from there
    ran = inside("run", first, *where, "--available-now")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(inside("inspect", checkpoint, "-o", "json").stdout)["latest_batch"] == 3
