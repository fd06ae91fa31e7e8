"""The five systems on a cluster, with the outputs of their scenarios; servers die in between."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ebbtide.config import Settings
from ebbtide.storage import open_folder
from ebbtide.systems import DEMOS, harness, play_demo
from ebbtide.systems.console import parse_console
from tests.cluster.conftest import EVERYTHING, Ground
from tests.conftest import Cli

SYSTEMS = tuple(DEMOS) if EVERYTHING else ("stream-reprocessor",)
JOB, COUNTER = "visits-windows-counter", "visits-counter"


@pytest.fixture
def deaths(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A worker is killed before the third step and a broker before the fourth, while jobs run."""
    send, sent, killed = harness.DemoRun.send, list[str](), list[str]()

    def send_after_a_death(run: harness.DemoRun, step: harness.DemoStep[Any]) -> None:
        sent.append(step.title)
        if len(sent) == 3:
            killed.append(ground.spark.busy_worker())
            ground.spark.kill(killed[0])
        elif len(sent) == 4 and EVERYTHING:
            killed.append("broker")
            ground.kafka.kill(3)
        send(run, step)

    monkeypatch.setattr(harness.DemoRun, "send", send_after_a_death)
    yield killed
    for name in killed[:1]:
        ground.spark.add_worker(name)
        ground.spark.wait()
    if "broker" in killed:
        ground.kafka.start(3)
        ground.kafka.wait()


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system(
    system: str,
    home: Settings,
    ebbtide: Cli,
    deaths: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A demo compares every row with the scenario; its own rewind or reprocess is part of it."""
    found = play_demo(system, home, to_stderr=True)
    if system != "micro-batch":  # which feeds its jobs while none runs
        assert len(deaths) == (2 if EVERYTHING else 1)
    if system == "stream-reprocessor":
        go_back_and_forth(str(found["checkpoint"]), home, ebbtide)
    if system == "batch-reprocessor":
        retry_elsewhere(home, ebbtide, tmp_path_factory.mktemp("elsewhere"))


def go_back_and_forth(checkpoint: str, home: Settings, ebbtide: Cli) -> None:
    """Undo, fork and an exact replay, after the rewind and the second run of the demo."""
    assert checkpoint.startswith("s3a://")
    undone = ebbtide("undo", checkpoint, "--yes")
    assert undone.returncode == 0, undone.stderr
    verified = ebbtide("verify", checkpoint)
    assert verified.returncode == 0, verified.stderr
    if not EVERYTHING:
        return
    fork = home.location("checkpoints", "fork")
    forked = ebbtide("fork", checkpoint, fork, "--at-batch", "5")
    assert forked.returncode == 0, forked.stderr
    ran = ebbtide("run", JOB, "--checkpoint", fork, "--available-now")
    assert ran.returncode == 0, ran.stderr
    batches = parse_console(ran.stdout)
    assert [(batch.id, len(batch.rows)) for batch in batches] == [(5, 2), (6, 0)]

    rewound = ebbtide("rewind", checkpoint, "--to-batch", "3", "--execute", "--yes")
    assert rewound.returncode == 0, rewound.stderr
    replayed = ebbtide("replay", JOB, "--home", home.location())
    assert replayed.returncode == 0, replayed.stderr
    # on stderr: the console, which gets the rows, is stdout
    assert "Batches 3 to 6: 4 identical." in replayed.stderr


def retry_elsewhere(home: Settings, ebbtide: Cli, elsewhere: Path) -> None:
    """A driver is killed in the middle of a reprocess; one on another host runs the rest."""
    where, runs = ("--home", home.location()), open_folder(home.location("runs"))
    before = set(runs.names())
    span = ("--event-time-start", "2025-09-04T07:00", "--event-time-end", "2025-09-04T08:10")
    command = ("reprocess", COUNTER, *span, "--chunk", "PT10M", "--execute", "--yes", *where)
    with subprocess.Popen(harness._command(home, *command)) as driver:
        while not (new := set(runs.names()) - before) or "chunk-0002.json" not in runs.names(*new):
            assert driver.poll() is None, driver.returncode
            time.sleep(0.2)
        end(driver.pid)
    (run,) = new
    done = [name for name in runs.names(run) if name.startswith("chunk-")]
    deadline = time.monotonic() + 200
    while True:  # the lease of the killed driver must end first
        answer = ebbtide("retry", "last", *where, "-o", "json", cwd=elsewhere)
        if "Another process is working on" not in answer.stderr:
            break
        assert time.monotonic() < deadline
    assert answer.returncode == 0, answer.stderr
    summary = json.loads(answer.stdout)
    assert (summary["run"], summary["status"]) == (run, "success")
    assert summary["ran"] == 7 - len(done)
    assert summary["counts"] == {"unchanged": 2, "changed": 0, "new": 1, "gone": 0}


def end(pid: int) -> None:
    """End a driver abruptly, its JVM included."""
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.Error):
            process.kill()
