"""Signals let the running batch finish; a failing batch ends the job and runs again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from ebbtide import kafka
from ebbtide.config import Settings
from tests.e2e.conftest import run, wait_until

PIPELINES = """
import time
from ebbtide import Files, Kafka, Pipeline
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

@F.udf(IntegerType())
def slow(n: int) -> int:
    time.sleep(0.5)
    if n == 13 and not __import__("os").path.exists("{mended}"):
        raise RuntimeError("thirteen is not welcome")
    return n

clicks = Pipeline(
    "clicks",
    source=Kafka("clicks", schema="n INT, at TIMESTAMP"),
    event_time="at",
    transform=lambda rows: rows.select(slow("n").alias("n"), "at"),
    sink=Files("{out}", "json"),
)
"""


@pytest.fixture
def clicks(settings: Settings, tmp_path: Path) -> str:
    text = PIPELINES.replace("{mended}", str(tmp_path / "mended"))
    (tmp_path / "pipelines.py").write_text(text.replace("{out}", str(tmp_path / "out")))
    kafka.create_missing_topics(settings.servers, ["clicks"])
    return f"{tmp_path}/pipelines.py:clicks"


def send(settings: Settings, *numbers: int) -> None:
    with kafka.Sender(settings.servers, "clicks") as sender:
        for n in numbers:
            sender.send(b'{"n":%d,"at":"2025-09-04T07:00:00"}' % n, partition=0)


def written(tmp_path: Path) -> list[str]:
    return sorted(
        line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_batch_finish(
    settings: Settings, clicks: str, tmp_path: Path, number: signal.Signals
) -> None:
    checkpoint = settings.checkpoint("clicks")
    with run(settings, clicks, "--max-offsets-per-trigger", "8") as job:
        wait_until(lambda: (checkpoint / "commits" / "0").exists(), job)
        send(settings, *range(100, 124))
        wait_until(lambda: (checkpoint / "offsets" / "1").exists(), job)
        # to the whole group, as a terminal and `timeout` do
        os.killpg(job.pid, number)
        assert job.wait() == 0, job.errors()
        assert job.errors()[-1] == "Stopped after batch 1: 8 rows, 0 broken."
    assert sorted(p.name for p in (checkpoint / "commits").glob("[0-9]*")) == ["0", "1"]
    assert sorted(p.name for p in (checkpoint / "offsets").glob("[0-9]*")) == ["0", "1"]
    assert len(written(tmp_path)) == 8
    assert json.loads((checkpoint / ".ebbtide" / "lease.json").read_text())["released"]


def test_a_jvm_that_dies_is_one_line(settings: Settings, clicks: str) -> None:
    commits = settings.checkpoint("clicks") / "commits"
    with run(settings, clicks) as job:
        wait_until(lambda: (commits / "0").exists(), job)
        (jvm,) = [p for p in psutil.Process(job.pid).children() if "java" in p.name()]
        jvm.kill()
        assert job.wait() == 1
        errors = [line for line in job.errors() if line.startswith("Error: ")]
        assert len(errors) == 1, job.errors()
        assert "Spark's JVM ended" in errors[0]
        assert not [line for line in job.errors() if "Traceback" in line]
    with run(settings, clicks, "--available-now") as job:
        assert job.wait() == 0, job.errors()


def test_a_failing_batch_runs_again(settings: Settings, clicks: str, tmp_path: Path) -> None:
    send(settings, 1, 2)
    with run(settings, clicks, "--available-now") as job:
        assert job.wait() == 0, job.errors()
    send(settings, 12, 13)
    with run(settings, clicks) as job:
        assert job.wait() == 1
        errors = [line for line in job.errors() if line.startswith("Error: ")]
        assert len(errors) == 1
        assert "Batch 1 of clicks failed: RuntimeError: thirteen is not welcome." in errors[0]
        assert "The next start runs it again" in errors[0]
        assert not [line for line in job.errors() if "Traceback" in line]
    send(settings, 14)
    (tmp_path / "mended").touch()
    with run(settings, clicks, "--available-now") as job:
        assert job.wait() == 0, job.errors()
        assert any(line.startswith("batch 1 · 2 rows") for line in job.errors())
        assert any(line.startswith("batch 2 · 1 rows") for line in job.errors())
    assert len(written(tmp_path)) == 5
