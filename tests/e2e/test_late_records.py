"""Records behind the watermark: all are counted, shown, and counted again from the archive."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from tests.conftest import Cli
from tests.e2e.test_broken_records import run_inside

LATE = 990
PIPELINES = """
from ebbtide import Delta, Files, Kafka, Pipeline
from pyspark.sql import functions as F

visits = Pipeline(
    "late-visits",
    source=Kafka("visits", schema="at TIMESTAMP"),
    event_time="at",
    watermark="10 minutes",
    transform=lambda rows: rows.groupBy(F.window("at", "10 minutes")).count(),
    sink=Files("{out}", "parquet"),
    archive=Delta("visits"),
)
"""


def send(settings: Settings, *clocks: str) -> None:
    with kafka.Sender(settings.kafka, "visits") as sender:
        for number, clock in enumerate(clocks):
            value = json.dumps({"at": f"2025-09-04T{clock}:00"}) if clock else "broken"
            sender.send(value.encode(), partition=number % 2)


@pytest.mark.usefixtures("one_jvm")
def test_late_records_are_counted_and_can_be_reprocessed(
    inside: Cli, settings: Settings, tmp_path: Path
) -> None:
    file, where = tmp_path / "pipelines.py", ("--home", settings.home)
    file.write_text(PIPELINES.replace("{out}", str(tmp_path / "out")))
    kafka.create_missing_topics(settings.kafka, ["visits"])
    send(settings, "07:30")
    run_inside(inside, settings, f"{file}:visits")
    # of two windows that have ended, one that has not, and broken
    late = [f"07:{5 + number % 15:02}" for number in range(LATE)]
    send(settings, *late, *["07:20", "07:31"] * 5, *[""] * 3)
    said = run_inside(inside, settings, f"{file}:visits")
    (line,) = [line for line in said if "late ·" in line]
    assert line.startswith(f"batch 2 · {LATE + 13:,} rows · 3 broken · {LATE} late · watermark")
    (advice,) = [line for line in said if "late records" in line]
    command = advice.partition(", this counts them: ")[2]
    assert "--event-time-start=2025-09-04T07:00:00" in command
    assert "--event-time-end=2025-09-04T07:20:00" in command

    checkpoint = settings.checkpoint("late-visits")
    history = inside("history", checkpoint, *where)
    assert " late " in history.stdout
    assert f"{LATE} late records" in history.stderr
    batches = json.loads(inside("history", checkpoint, *where, "-o", "json").stdout)["batches"]
    times = ["2025-09-04T07:00:00.000Z", "2025-09-04T07:20:00.000Z"]
    assert batches[2]["late"] == {"records": LATE, "exact": True, "times": times}
    assert batches[0]["late"] == {"records": 0, "exact": True, "times": None}
    dropped = batches[2]["state"][0]["dropped"]
    assert 0 < dropped < LATE, "Spark counts groups"

    # the command can be copied once there is an archive
    servers = ("--bootstrap-servers", settings.kafka.address)
    archived = inside("archive", f"{file}:visits", *where, *servers, "--available-now")
    assert archived.returncode == 0, archived.stderr
    assert "late" not in archived.stderr
    plan = inside(*shlex.split(command)[1:])
    assert plan.returncode == 0, plan.stderr
    assert f"{LATE:,} records" in plan.stdout
