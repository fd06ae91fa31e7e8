"""The process that reads state: warm while it is used, ended in time, begun again if it died."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.config import Settings
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.web.subprocesses import run_module
from ebbtide.web.worker import Worker
from tests.unit.web.conftest import wait_until

SCRIPT = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "die":
        os._exit(3)
    if asked["do"] == "sleep":
        time.sleep(60)
    if asked["do"] == "refuse":
        reply = {"kind": "CheckpointError", "problem": "It is gone.", "next_step": "Look."}
    elif asked["do"] == "bug":
        reply = {"bug": "Traceback"}
    else:
        reply = {"answer": {"pid": os.getpid(), "asked": asked}}
    print(json.dumps(reply), flush=True)
    if asked["do"] == "leave":
        break
"""
"""Speaks as the real one does, without Spark."""
COMMAND = (sys.executable, "-S", "-c", SCRIPT)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    found = Worker(Settings(home=tmp_path), COMMAND)
    yield found
    found.close()


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_process_answers_all(worker: Worker) -> None:
    assert worker.pid is None
    first = worker.ask({"do": "show", "key": "<script>"})
    assert first["asked"] == {"do": "show", "key": "<script>"}
    assert worker.warm
    assert worker.ask({"do": "show"})["pid"] == first["pid"] == worker.pid
    with pytest.raises(CheckpointError, match=r"It is gone\. Look"):
        worker.ask({"do": "refuse"})
    with pytest.raises(RuntimeError, match="a bug"):
        worker.ask({"do": "bug"})
    assert worker.pid == first["pid"]
    worker.close()
    assert not is_there(first["pid"])
    with pytest.raises(EbbtideError, match="shutting down"):
        worker.ask({"do": "show"})


def test_one_that_died_is_begun_again(worker: Worker) -> None:
    before = worker.ask({"do": "show"})["pid"]
    os.kill(before, 9)
    after = worker.ask({"do": "show"})["pid"]
    assert after != before
    with pytest.raises(EbbtideError, match="Spark ended while it read the state"):
        worker.ask({"do": "die"})
    assert worker.ask({"do": "show"})["pid"] != after


def test_it_does_not_outlive_its_use(tmp_path: Path) -> None:
    words = (*run_module("ebbtide.web.worker_process"), str(tmp_path), "UTC", "0.05")
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:  # its stdin stays open
        assert process.wait(30) == 0


def test_one_that_was_idle_is_begun_again(worker: Worker) -> None:
    pid = worker.ask({"do": "leave"})["pid"]
    wait_until(lambda: not worker.warm)
    assert not is_there(pid)
    assert worker.ask({"do": "show"})["pid"] != pid


def test_what_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.web.worker._END_SECONDS", 0.05)
    worker = Worker(Settings(home=tmp_path), COMMAND)
    pid = worker.ask({"do": "show"})["pid"]  # its start may take long
    monkeypatch.setattr("ebbtide.web.worker._LONGEST_SECONDS", 0.3)
    with pytest.raises(EbbtideError, match="took longer"):
        worker.ask({"do": "sleep"})
    assert not is_there(pid)
    worker.close()
