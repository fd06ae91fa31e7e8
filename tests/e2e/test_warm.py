"""`ebbtide reprocess --warm`: one JVM for many commands, and none where something went wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.systems.harness import read_topic
from ebbtide.warm_jvm import ask_keeper
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
    session = rows.sparkSession
    assert session.conf.get("spark.sql.ansi.enabled") == "true", "the last command's setting"
    assert not session.catalog.listTables(), "the last command's view"
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.ansi.enabled", "true")
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
SECRET = "spark.hadoop.fs.s3a.secret.key=a-secret-of-the-test"
GONE_SECONDS = 20.0


@dataclass
class Scene:
    """A folder with a pipeline, a home with its archive, and the commands that are typed there."""

    settings: Settings
    cli: Cli
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
        return self.cli(*self.flags(*words), *QUICK_START, "--yes", cwd=self.folder, timeout=300)

    def reprocess(self, *flags: str) -> subprocess.CompletedProcess[str]:
        answer = self.type("reprocess", "job.py:pipeline", *flags, "--execute")
        assert answer.returncode == 0, answer.stderr
        return answer

    def start(self) -> subprocess.Popen[str]:
        """A reprocess of two chunks."""
        words = self.flags("reprocess", "job.py:pipeline", *TWO, "--execute", "--conf", SECRET)
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
        wait_until(lambda: begun.poll() is not None or self.done(1) - before, seconds=300)
        assert begun.poll() is None, begun.communicate()
        (run,) = self.done(1) - before
        return begun, run

    def done(self, chunk: int) -> set[str]:
        """The runs in which a chunk is done."""
        runs = self.settings.home / "runs"
        return {file.parent.name for file in runs.glob(f"*/chunk-{chunk:04}.json")}

    def status(self) -> dict[str, Any]:
        return ask_keeper(self.settings, "status")

    def warm(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.cli("warm", *words, "--home", self.settings.home)

    def processes(self) -> list[list[str]]:
        """The commands of all processes that began with one of this scene, whoever is above."""
        return [words for process in psutil.process_iter() if (words := self._words(process))]

    def _words(self, process: psutil.Process) -> list[str]:
        try:
            ours = process.environ().get("TMPDIR") == str(self.temporary)
            return process.cmdline() if ours and process.status() != "zombie" else []
        except psutil.Error:
            return []

    def has(self, word: str) -> bool:
        return any(word in " ".join(words) for words in self.processes())

    def left(self) -> list[Any]:
        """Processes and files that a start has made."""
        kept = {file.name for file in (self.settings.home / "warm").glob("*")}
        # a context that is interrupted while it starts may leave a folder, which is empty
        walk = os.walk(self.temporary)  # other than rglob, it accepts that folders go meanwhile
        files = [f"{folder}/{name}" for folder, _, names in walk for name in names]
        return [*self.processes(), *files, *(kept - {"lock", "output.log"})]

    def counts(self) -> dict[str, int]:
        """The last count of each window on the topic."""
        rows = [json.loads(r.value or b"") for r in read_topic(self.settings, "visits_counter")]
        return {row["window"]["start"][11:16]: row["count"] for row in rows}


@pytest.fixture
def scene(
    settings: Settings, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={temporary}")
    scene = Scene(own, cli, tmp_path, temporary)
    scene.write_job(1)
    yield scene
    shutil.rmtree(own.home, ignore_errors=True)  # which ends a keeper that a failed test has left


MOMENTS: dict[str, Callable[[Scene], object]] = {
    "at the keeper's first": lambda scene: scene.has("keeper.py"),
    "when it listens": lambda scene: (scene.settings.home / "warm/socket").exists(),
    "in the launcher": lambda scene: scene.has("launcher.Main") or scene.has("SparkSubmit"),
    "in the JVM": lambda scene: scene.has("deploy.SparkSubmit"),
    "in the Spark context": lambda scene: list(scene.temporary.glob("blockmgr-*")),
}
"""When a start is interrupted."""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_start_leaves_nothing(
    scene: Scene, moment: str, how: signal.Signals
) -> None:
    begun = scene.start()
    wait_until(lambda: begun.poll() is not None or MOMENTS[moment](scene))
    assert begun.poll() is None, begun.communicate()
    begun.send_signal(how)
    begun.communicate(timeout=GONE_SECONDS)
    with suppress(AssertionError):
        wait_until(lambda: not scene.left(), seconds=GONE_SECONDS)
    assert scene.left() == []
    secret = SECRET.encode()
    for file in scene.settings.home.rglob("*"):
        assert not file.is_file() or secret.partition(b"=")[2] not in file.read_bytes()


def test_a_jvm_serves_many_commands_and_ends_with_a_bad_one(scene: Scene) -> None:
    first = scene.reprocess(*ONE, "--warm", "-o", "json")
    assert "Spark is kept for 10 minutes" in first.stderr
    assert scene.counts() == {"07:00": 2}
    jvm = scene.status()["pid"]

    # the next one uses it, and shows and writes the same as a cold one
    cold = scene.reprocess(*ONE, "-o", "json")
    assert scene.status()["commands"] == 1
    warm = scene.reprocess(*ONE, "--warm", "-o", "json")
    assert "is kept" not in warm.stderr
    assert _comparable(warm) == _comparable(cold)
    assert len(list(read_topic(scene.settings, "visits_counter"))) == 3

    # with the code as it is by now
    scene.write_job(2)
    scene.reprocess(*ONE, "--warm")
    assert scene.counts() == {"07:00": 4}
    status = scene.status()
    assert (status["pid"], status["commands"], status["busy"]) == (jvm, 3, False)
    assert json.loads(scene.warm("status", "-o", "json").stdout)["pid"] == jvm

    # one with other settings gets another
    begun, run = scene.begin()
    assert scene.status()["busy"] is True
    assert scene.status()["pid"] != jvm
    assert not psutil.pid_exists(jvm)

    # while a command uses it, another has its own
    stopped = scene.warm("stop")
    assert (stopped.returncode, stopped.stdout) == (1, "")
    assert "A reprocess uses it" in stopped.stderr
    assert "in use. This command starts its own" in scene.reprocess(*ONE, "--warm").stderr

    # a command that is killed takes its JVM with it, and a retry finishes its run
    begun.kill()
    begun.communicate()
    wait_until(lambda: not scene.left(), seconds=GONE_SECONDS)
    assert run not in scene.done(2)
    scene.hold(False)
    answer = scene.type("retry", run, "--warm", "-o", "json")
    assert answer.returncode == 0, answer.stderr
    assert scene.counts() == {"07:00": 4, "07:10": 2}

    # who stops it waits until it has ended
    assert scene.warm("stop").returncode == 0
    assert scene.left() == []
    assert scene.warm("status").returncode == 1


def _comparable(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a command printed, without the name of its run."""
    return {name: value for name, value in json.loads(answer.stdout).items() if name != "run"}
