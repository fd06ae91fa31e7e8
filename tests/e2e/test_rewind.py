"""Rewinds that ask a real broker, and one of a job that is really running."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka.admin import list_topics
from tests.conftest import Cli
from tests.e2e.conftest import QUICK_START, run, wait_until
from tests.trees import Shape, make, snapshot


@pytest.fixture
def checkpoint(settings: Settings, tmp_path: Path) -> Path:
    """Seven batches; batch n read one record of partition 0 and two of partition 1, minute n."""
    kafka.create_missing_topics(settings.kafka, ["visits"])
    with kafka.Sender(settings.kafka, "visits") as sender:
        for n in range(1, 7):
            for partition in (0, 1, 1):
                event = {"page": "home", "event_time": f"2025-09-04 07:0{n}:00"}
                sender.send(json.dumps(event).encode(), partition=partition)
    folder = make(tmp_path / "c", Shape("hdfs"))
    for path in folder.rglob("*"):
        os.utime(path, (1_000, 1_000))
    return folder


def test_kafka_is_asked_what_it_still_holds(
    inside: Cli, settings: Settings, checkpoint: Path
) -> None:
    before = snapshot(checkpoint)
    servers = ("--bootstrap-servers", settings.kafka.address)
    flags = ("--to-batch", "4", *servers, "--sink", "none", "-o", "json")
    plan = json.loads(inside("rewind", checkpoint, *flags).stdout)
    parts = plan["sources"][0]["partitions"]
    assert [(p["current"], p["new"], p["records"]) for p in parts] == [(6, 3, 3), (12, 6, 6)]
    assert [(p["earliest"], p["latest"], p["status"]) for p in parts] == [
        (0, 6, "ok"),
        (0, 12, "ok"),
    ]
    # retention takes the first eight records of partition 1
    admin = AdminClient(settings.kafka.client_settings())
    for future in admin.delete_records([TopicPartition("visits", 1, 8)]).values():
        future.result(60)
    gone = inside("rewind", checkpoint, *flags, "--execute", "--yes")
    assert gone.returncode == 1
    assert "visits partition 1: 2 records have aged out of Kafka" in gone.stderr
    dry = json.loads(inside("rewind", checkpoint, *flags).stdout)
    assert [p["status"] for p in dry["sources"][0]["partitions"]] == [
        "ok",
        "2 records have aged out of Kafka",
    ]
    assert inside("rewind", checkpoint, "--to-batch", "5", *flags[2:]).returncode == 0
    # recreated: it ends before what was read
    admin.delete_topics(["visits"])["visits"].result(60)
    wait_until(lambda: "visits" not in list_topics(settings.kafka))
    assert "the topic is gone" in inside("rewind", checkpoint, *flags).stderr
    kafka.create_missing_topics(settings.kafka, ["visits"])
    assert "it was recreated" in inside("rewind", checkpoint, *flags).stderr
    assert snapshot(checkpoint) == before


def test_to_an_event_time(inside: Cli, settings: Settings, checkpoint: Path) -> None:
    servers = ("--bootstrap-servers", settings.kafka.address)
    field = ("--event-time-field", "event_time")

    def first_batch(*flags: str) -> object:
        answer = inside("rewind", checkpoint, *flags, *servers, "--sink", "none", "-o", "json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)["first_batch"]

    assert first_batch("--to-event-time", "2025-09-04T07:04:00", *field) == 4
    assert first_batch("--to-event-time", "2025-09-04T07:03:30Z", *field) == 4
    # nine o'clock in Warsaw, two hours ahead, where the records' times are read as well
    zone = ("--timezone", "Europe/Warsaw")
    assert first_batch("--to-event-time", "2025-09-04 07:05", *field, *zone) == 5
    assert first_batch("--to-event-time", "2025-09-04T03:05Z", *field, *zone) == 1
    for flags, says in (
        (("--to-event-time", "2025-09-04T07:04"), "Add --event-time-field NAME"),
        (
            ("--to-event-time", "2025-09-04T07:04", "--event-time-field", "at"),
            "None of the 18 records that were read has an event time in 'at'",
        ),
        (("--to-event-time", "2025-09-05", *field), "None of the 18 records since batch 0 has"),
    ):
        answer = inside("rewind", checkpoint, *flags, *servers)
        assert answer.returncode in (1, 2)
        assert says in answer.stderr
        assert "Traceback" not in answer.stderr


def test_a_running_job_is_not_rewound(inside: Cli, settings: Settings, tmp_path: Path) -> None:
    """Nor one whose process was killed a moment ago, until its JVM is gone as well."""
    folder = settings.checkpoint("visits-windows-counter")
    flags = ("--to-batch", "0", "--execute", "--yes", "--bootstrap-servers", settings.kafka.address)
    with run(settings, "visits-windows-counter") as job:
        wait_until(lambda: (folder / "commits" / "0").exists(), job)
        refused = inside("rewind", folder, *flags, "--assume-stopped")
        assert refused.returncode == 1
        assert f"the query is running (process {job.pid})" in refused.stderr
        assert (folder / "commits" / "0").exists()
        job.kill()
    deadline = time.monotonic() + 60
    while (done := inside("rewind", folder, *flags)).returncode:
        assert "running" in done.stderr
        assert time.monotonic() < deadline
    assert not (folder / "commits" / "0").exists()
    # an interrupted rewind stops the job before it starts Spark
    note = {"backup": "b", "restores": None, "first_batch": 0, "mode": "exact", "target": ""}
    note |= {"action": "rewind", "barrier": 9, "phase": "6 state away"}
    (folder / ".ebbtide" / "change.json").write_text(json.dumps(note))
    with run(settings, "visits-windows-counter") as job:
        assert job.wait() == 1
        assert "was interrupted. Finish it: ebbtide rewind" in job.errors()[-1]
    del tmp_path


@pytest.mark.usefixtures("one_jvm")
def test_a_topic_gets_again_what_the_plan_foretold(
    inside: Cli, settings: Settings, tmp_path: Path
) -> None:
    """From which record on, and each with a header that tells it from the first."""
    pipeline = tmp_path / "copy_visits.py"
    pipeline.write_text(
        "from ebbtide import Kafka, Pipeline\n"
        "copy = Pipeline('copy', source=Kafka('visits', schema='n INT, at TIMESTAMP'),\n"
        "    event_time='at', transform=lambda rows: rows, sink=Kafka('copied', key='n'))\n"
    )
    kafka.create_missing_topics(settings.kafka, ["visits", "copied"])
    with kafka.Sender(settings.kafka, "visits") as sender:
        for n in range(6):
            sender.send(json.dumps({"n": n, "at": "2025-09-04T07:00:00"}).encode(), partition=0)
    servers = ("--bootstrap-servers", settings.kafka.address, "--home", settings.home)
    flags = ("--available-now", "--max-offsets-per-trigger", "2", *servers, *QUICK_START)
    assert inside("run", f"{pipeline}:copy", *flags).returncode == 0
    first = list(copied(settings))
    folder = settings.checkpoint("copy")
    target = ("--to-batch", "1", "--assume-stopped", *servers)
    plan = json.loads(inside("rewind", folder, *target, "-o", "json").stdout)
    repeats = {int(p): first for p, (first, _) in plan["sink"]["repeats"].items()}
    (said,) = (check["detail"] for check in plan["checks"] if check["name"] == "sink")
    assert "topic copied gets the output of batches 1 to 2 again: what repeats begins at" in said
    assert "up to 4 records" in said
    assert inside("rewind", folder, *target, "--execute", "--yes").returncode == 0
    assert inside("run", f"{pipeline}:copy", *flags).returncode == 0
    later = [record for record in copied(settings) if record not in first]
    foretold = [record for record in first if record.offset >= repeats[record.partition]]
    assert sorted(r.value for r in later if r.value) == sorted(r.value for r in foretold if r.value)
    assert len(foretold) == 4
    timelines = [dict(record.headers)["ebbtide-timeline"] for record in (*first, *later)]
    assert timelines[:6] == [b"origin"] * 6
    (again,) = set(timelines[6:])
    assert again is not None
    assert again.endswith(b"rewind-to-1")


def copied(settings: Settings) -> Iterator[kafka.Record]:
    spans = kafka.retained_offsets(settings.kafka, "copied")
    starts = {p: first for p, (first, _) in spans.items()}
    ends = {p: end for p, (_, end) in spans.items()}
    return kafka.consume_range(settings.kafka, "copied", starts, ends)
