"""`ebbtide reprocess --warm`: one JVM for many commands, and none where something went wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.systems.harness import read_topic
from ebbtide.warm_jvm import STATUS, ask_worker
from tests.conftest import Cli
from tests.e2e.conftest import QUICK_START, wait_until
from tests.unit.archive import tables

VISITS = ("07:01", "07:02", "07:11")
ONE = ("--event-time-start", "2025-09-04T07:00", "--event-time-end", "2025-09-04T07:10")
TWO = (*ONE[:3], "2025-09-04T07:20", "--chunk", "PT10M")
JOB = """
import os, time
from pyspark.sql import functions as F
from pyspark.sql.types import LongType
from ebbtide import Delta, Kafka, Pipeline

@F.udf(LongType())
def weigh(visit_id):
    while visit_id == 2 and os.path.exists("hold"):
        time.sleep(0.05)
    return WEIGHT

def count(rows):
    window = F.window("event_time", "10 minutes").alias("window")
    return rows.groupBy(window).agg(F.sum(weigh("visit_id")).alias("count"))

pipeline = Pipeline(
    "visits-counter",
    source=Kafka("visits", schema="visit_id INT, event_time TIMESTAMP"),
    event_time="event_time",
    watermark="10 minutes",
    transform=count,
    sink=Kafka("visits_counter", key="window.start"),
    archive=Delta("visits"),
    output_mode="append",
)
"""


@dataclass
class Scene:
    """A folder with a pipeline, a home with its archive, and the commands that are typed there."""

    settings: Settings
    cli: Cli
    inside: Cli
    folder: Path
    temporary: Path
    """Where Python and Spark keep what must not stay."""

    def write_job(self, weight: int) -> None:
        """The pipeline, in which a visit counts so much; the last one waits for file `hold`."""
        (self.folder / "job.py").write_text(JOB.replace("WEIGHT", str(weight)))

    def hold(self, held: bool) -> None:
        """Let the second window wait, or go on."""
        (self.folder / "hold").touch() if held else (self.folder / "hold").unlink()

    def flags(self, *words: str) -> list[str]:
        where = ("--home", str(self.settings.home))
        return [*words, *where, "--bootstrap-servers", self.settings.kafka.address]

    def type(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command with Spark."""
        return self.cli(
            *self.flags(*words),
            *QUICK_START,
            *("--warm", "--yes"),
            cwd=self.folder,
        )

    def reprocess(self, *flags: str) -> subprocess.CompletedProcess[str]:
        answer = self.type("reprocess", "job.py:pipeline", *flags, "--execute")
        assert answer.returncode == 0, answer.stderr
        return answer

    def start(self) -> subprocess.Popen[str]:
        """A reprocess of two chunks."""
        words = self.flags("reprocess", "job.py:pipeline", *TWO, "--execute")
        return subprocess.Popen(
            [sys.executable, "-m", "ebbtide", *words, *QUICK_START, "--warm", "--yes"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )

    def begin(self) -> tuple[subprocess.Popen[str], str]:
        """A reprocess of two chunks, of which the first is done and the second waits; its run."""
        self.hold(True)
        before = self.done(1)
        begun = self.start()
        wait_until(lambda: begun.poll() is not None or self.done(1) - before)
        assert begun.poll() is None, begun.communicate()
        # its visit is with a Python worker of the JVM
        wait_until(lambda: any("pyspark.daemon" in words_of(p) for p in self.processes()))
        (run,) = self.done(1) - before
        return begun, run

    def retry(self, run: str) -> None:
        """Let a run be finished."""
        self.hold(False)
        answer = self.type("retry", run, "-o", "json")
        assert answer.returncode == 0, answer.stderr
        found = json.loads(answer.stdout)
        assert (found["status"], found["ran"]) == ("success", 1)

    def done(self, chunk: int) -> set[str]:
        """The runs in which a chunk is done."""
        runs = self.settings.home / "runs"
        return {file.parent.name for file in runs.glob(f"*/chunk-{chunk:04}.json")}

    def status(self) -> dict[str, Any]:
        answer = self.worker("status", "-o", "json")
        assert answer.returncode == (0 if '"running": true' in answer.stdout else 1)
        return dict(json.loads(answer.stdout))

    def worker(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.inside("worker", *words, "--home", self.settings.home)

    def processes(self) -> list[psutil.Process]:
        """The worker, its JVM, and what that has started."""
        worker = psutil.Process(ask_worker(self.settings, STATUS)["pid"])
        children = worker.children(recursive=True)
        assert any("pyspark-shell" in words_of(child) for child in children)
        return [worker, *children]

    def counts(self) -> dict[str, int]:
        """The last count of each window on the topic."""
        rows = [json.loads(r.value or b"") for r in read_topic(self.settings, "visits_counter")]
        return {row["window"]["start"][11:16]: row["count"] for row in rows}


@pytest.fixture
def scene(
    settings: Settings, cli: Cli, inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    own = replace(settings, home=tmp_path / "home")
    tables.create(own)
    tables.append(own, 0, *((0, n, clock) for n, clock in enumerate(VISITS)))
    tables.plan_batches(tables.checkpoint(own), [{0: len(VISITS)}], committed=1)
    kafka.create_missing_topics(own.kafka, ["visits", "visits_counter"])
    with kafka.Sender(own.kafka, "visits") as sender:
        for n, clock in enumerate(VISITS):
            sender.send(tables.visit(n, clock), partition=0)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(temporary))
    yield Scene(own, cli, inside, tmp_path, temporary)
    shutil.rmtree(own.home, ignore_errors=True)  # which ends a worker that a failed test has left


def words_of(process: psutil.Process) -> list[str]:
    """The command of a process; none if it has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def gone(processes: list[psutil.Process]) -> bool:
    return not any(words_of(process) for process in processes)


def test_a_jvm_serves_many_commands_and_ends_with_a_bad_one(scene: Scene) -> None:
    # one that is interrupted while Spark starts leaves neither a process nor its settings
    scene.write_job(1)
    begun = scene.start()
    wait_until(lambda: list(scene.temporary.glob("*.conf")))
    worker = psutil.Process(ask_worker(scene.settings, STATUS)["pid"])
    used = [worker, *worker.children(recursive=True)]
    begun.send_signal(signal.SIGINT)
    begun.communicate(timeout=60)
    wait_until(lambda: gone(used))
    assert list(scene.temporary.iterdir()) == []

    # the next one starts another
    assert scene.status()["running"] is False
    first = scene.reprocess(*ONE)
    assert "Spark is kept for 10 minutes" in first.stderr
    assert scene.counts() == {"07:00": 2}
    worker, jvm = scene.processes()[:2]
    log = scene.settings.logs / "visits-counter-reprocess.log"
    umask = os.umask(0o077)
    os.umask(umask)
    assert log.stat().st_mode & 0o777 == 0o666 & ~umask  # as a JVM of the command's own writes it

    # the next ones use it, with the code as it is by now
    scene.write_job(2)
    assert "is kept" not in scene.reprocess(*ONE).stderr
    assert scene.counts() == {"07:00": 4}
    warm = scene.reprocess(*ONE)
    status = scene.status()
    assert (status["pid"], status["commands"], status["busy"]) == (worker.pid, 3, False)
    assert jvm in scene.processes()

    # a second command does not wait for the first, and its JVM is its own: all else is the same
    begun, run = scene.begin()
    assert scene.status()["busy"] is True
    stopped = scene.worker("stop")
    assert (stopped.returncode, stopped.stdout) == (1, "")
    assert "A reprocess uses it" in stopped.stderr
    cold = scene.reprocess(*ONE)
    assert "in use. This command starts its own" in cold.stderr
    assert cold.stdout == warm.stdout

    # a command that is killed takes its JVM with it, and a retry finishes its run
    used = scene.processes()
    assert used[:2] == [worker, jvm]
    begun.kill()
    begun.communicate()
    wait_until(lambda: gone(used))
    assert scene.status()["running"] is False
    assert run not in scene.done(2)
    assert scene.counts() == {"07:00": 4}
    scene.retry(run)
    assert scene.counts() == {"07:00": 4, "07:10": 2}

    # who stops it waits until it has ended
    used = scene.processes()
    assert scene.worker("stop").returncode == 0
    assert gone(used)
    assert list(scene.temporary.iterdir()) == []

    # a worker that is killed takes its JVM with it, and the command says so
    scene.write_job(3)
    begun, run = scene.begin()
    used = scene.processes()
    used[0].kill()
    _, said = begun.communicate(timeout=120)
    assert begun.returncode == 1
    assert "Traceback" not in said
    # it died, or it was ending and said so
    assert "chunk 2 of 2 failed: " in said
    assert f"To run what is missing: ebbtide retry {run}" in said
    wait_until(lambda: gone(used))
    scene.retry(run)
    assert scene.counts() == {"07:00": 6, "07:10": 3}

    # without its home, it ends
    used = scene.processes()
    shutil.rmtree(scene.settings.home)
    wait_until(lambda: gone(used))
