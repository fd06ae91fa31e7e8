"""Signals let the running batch finish; a failing batch ends the job and runs again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.rewind.holders import read_lease
from ebbtide.storage import open_folder
from ebbtide.systems.harness import Job
from tests.e2e.conftest import run, wait_until

PIPELINES = """
import time
from ebbtide import Files, Kafka, Pipeline
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

@F.udf(IntegerType())
def slow(n: int) -> int:
    time.sleep(0.25)
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
    kafka.create_missing_topics(settings.kafka, ["clicks"])
    return f"{tmp_path}/pipelines.py:clicks"


def send(settings: Settings, *numbers: int) -> None:
    with kafka.Sender(settings.kafka, "clicks") as sender:
        for n in numbers:
            sender.send(b'{"n":%d,"at":"2025-09-04T07:00:00"}' % n, partition=0)


def written(tmp_path: Path) -> list[str]:
    return sorted(
        line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()
    )


def only_error(job: Job) -> str:
    """The one line that says why a job ended; nothing like a traceback beside it."""
    assert job.wait() == 1
    errors = [line for line in job.errors() if line.startswith("Error: ")]
    assert len(errors) == 1, job.errors()
    assert not [line for line in job.errors() if "Traceback" in line]
    return errors[0]


def numbers(log: Path) -> list[int]:
    return sorted(int(path.name) for path in log.glob("[0-9]*"))


def test_a_job_dies_fails_is_mended_and_stopped(
    settings: Settings, clicks: str, tmp_path: Path
) -> None:
    """**1** its JVM dies; **2** it starts again, and a batch fails; **3** mended, it runs that
    batch again, and SIGTERM lets the running one finish; **4** so does SIGINT.
    """
    checkpoint = settings.checkpoint("clicks")
    commits, offsets = checkpoint / "commits", checkpoint / "offsets"
    limit = ("--max-offsets-per-trigger", "8")
    # 1
    with run(settings, clicks) as job:
        wait_until(lambda: (commits / "0").exists(), job)
        (jvm,) = [p for p in psutil.Process(job.pid).children() if "java" in p.name()]
        jvm.kill()
        assert "Spark's JVM died" in only_error(job)
    # 2
    send(settings, 1, 2)
    with run(settings, clicks) as job:
        wait_until(lambda: (commits / "1").exists(), job)
        send(settings, 12, 13)
        error = only_error(job)
        assert "Batch 2 of clicks failed: RuntimeError: thirteen is not welcome." in error
        assert "The next start runs it again" in error
    # 3
    send(settings, 14)
    (tmp_path / "mended").touch()
    with run(settings, clicks, *limit) as job:
        wait_until(lambda: (commits / "3").exists(), job)
        assert len(written(tmp_path)) == 5
        send(settings, *range(100, 124))
        wait_until(lambda: (offsets / "4").exists(), job)
        # to the whole group, as a terminal and `timeout` do
        os.killpg(job.pid, signal.SIGTERM)
        assert job.wait() == 0, job.errors()
        assert any(line.startswith("batch 2 · 2 rows") for line in job.errors())
        assert any(line.startswith("batch 3 · 1 rows") for line in job.errors())
        assert job.errors()[-1] == "Stopped after batch 4: 11 rows, 0 broken."
    assert numbers(commits) == numbers(offsets) == [0, 1, 2, 3, 4]
    assert len(written(tmp_path)) == 13
    assert read_lease(open_folder(str(checkpoint))).released  # type: ignore[union-attr]
    # 4
    with run(settings, clicks, *limit) as job:
        wait_until(lambda: (offsets / "5").exists(), job)
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait() == 0, job.errors()
        assert job.errors()[-1] == "Stopped after batch 5: 8 rows, 0 broken."
    assert numbers(commits) == numbers(offsets) == [0, 1, 2, 3, 4, 5]
    assert len(written(tmp_path)) == 21
    assert read_lease(open_folder(str(checkpoint))).released  # type: ignore[union-attr]


START = """
import sys
from pathlib import Path
from ebbtide.config import Settings
from ebbtide.runtime.session import build_session

build_session("tests", Settings(home=Path(sys.argv[1])))
"""


def test_a_start_that_is_interrupted_leaves_no_jvm(tmp_path: Path) -> None:
    def jvms() -> list[psutil.Process]:
        found = psutil.process_iter(["cmdline"])
        return [
            p for p in found if f"-Debbtide.log={tmp_path}/" in " ".join(p.info["cmdline"] or [])
        ]

    with subprocess.Popen(
        [sys.executable, "-c", START, tmp_path], start_new_session=True, stderr=subprocess.PIPE
    ) as job:
        wait_until(jvms)
        # to the whole group, as a terminal does
        os.killpg(job.pid, signal.SIGINT)
        job.wait(60)
    wait_until(lambda: not jvms(), seconds=30)
