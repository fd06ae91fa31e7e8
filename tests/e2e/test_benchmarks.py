"""The benchmarks run and print ratios; how large those are is for a person to judge."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import latency, small_jobs
from benchmarks.contenders import in_python, ours
from benchmarks.contest import Contender, open_stage
from benchmarks.events import Visits
from benchmarks.measure import FIRST_OUTPUT, ContenderError, measure, running
from benchmarks.windowed_count import COLD, contest_of
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.local.broker import temporary_broker
from tests.e2e.conftest import QUICK_JAVA, together

BURN = "import time\nwhile time.process_time() < 0.5: pass"
LEAVES_AN_ORPHAN = f"""
import os, subprocess, sys, time
start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
subprocess.run([sys.executable, "-c", start, {BURN!r}])
held = b"x" * 60_000_000
open(os.environ["{FIRST_OUTPUT}"], "w").close()
time.sleep(0.6)
"""
REFUSES_TO_WAIT = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system then forgets the child's time
subprocess.Popen([sys.executable, "-c", {BURN!r} + chr(10) + "time.sleep(1)"])
time.sleep(4)
"""


def short_run(name: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--quick"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **QUICK_JAVA},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"\d\.\d+ × ", answer.stdout)


def test_a_short_run_of_each() -> None:
    together(
        lambda: short_run("checkpoint"),
        lambda: short_run("generator"),
        lambda: short_run("clean-stream"),
        lambda: short_run("history"),
        lambda: short_run("attach"),
        lambda: short_run("page"),
    )


def test_every_process_of_a_tree_counts(tmp_path: Path) -> None:
    """Also one whose parent ended before it, and one that no parent waits for."""
    log = tmp_path / "log"
    run = measure([sys.executable, "-c", LEAVES_AN_ORPHAN], log=log)
    assert run.cpu_seconds > 0.5
    assert run.peak_bytes > 60_000_000
    assert run.first_output_seconds is not None
    assert run.first_output_seconds < run.seconds
    # sampled, so a little may be missing
    assert measure([sys.executable, "-c", REFUSES_TO_WAIT], log=log).cpu_seconds > 0.4


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ContenderError, match="exit code 1: no such thing"):
        measure([sys.executable, "-c", "import sys; sys.exit('no such thing')"], log=tmp_path / "a")
    with pytest.raises(ContenderError, match="No such file"):
        measure([tmp_path / "nothing"], log=tmp_path / "b")
    with pytest.raises(ContenderError, match="did not end within 1 s"):
        measure(["sleep", "60"], log=tmp_path / "c", timeout_seconds=1)


def test_a_block_that_fails_at_once_ends_the_command(tmp_path: Path) -> None:
    """Before the command's own process is there."""
    with pytest.raises(ZeroDivisionError), running(["sleep", "300"], log=tmp_path / "log") as it:
        _ = 1 / 0
    assert not it.tree.runs


def test_a_tiny_contest() -> None:
    """The right totals count; a wrong one and a failure are said, and stop nobody else."""
    chosen = [
        Contender("idle", lambda _turn: [sys.executable, "-c", "pass"]),
        Contender("absent", lambda turn: [turn.folder / "nothing"]),
        in_python("loop", "loop.py", "windows", name="hand loop"),
        ours("run", "windows", 10_000),
    ]
    with open_stage() as stage:
        lines = list(stage.fill("visits-tiny", Visits(12_000)))
        # both partitions advance alike, or some events are late for a watermark
        offsets = kafka.retained_offsets(stage.broker.connection, "visits-tiny")
        assert offsets == {0: (0, 6_000), 1: (0, 6_000)}
        contest = contest_of(stage, "visits-tiny", chosen)
        lines += contest.go(1)
    idle, absent, *right = [contest.result(COLD, "event", 12_000, each) for each in chosen]
    assert idle.problem.startswith("disqualified: 2 of 2 totals are wrong, such as None instead")
    assert "No such file" in absent.problem
    for result in right:
        assert result.counts, result.problem
        assert result.cpu_us > 0
        assert result.first_output_seconds is not None
    assert any(line.startswith("Ebbtide, visits-tiny, run 1 of 1: ") for line in lines)


def test_flink_answers_each_event() -> None:
    """With the right count of the window, and the event itself; a wrong answer would raise."""
    few = latency.Span(most=3, fewest=3, seconds=0)
    with temporary_broker() as broker:
        settings = Settings(bootstrap_servers=broker.bootstrap_servers)
        for work in small_jobs.TRANSFORMS:
            times = latency.time_events(latency.FLINK, work, settings, f"{work}-flink", few, few)
            assert len(times) == 3
