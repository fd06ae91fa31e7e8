"""Long work: a thread or a child, how far it is, how it ends, and that nothing is left of it."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ebbtide.checks import REFUSE, Check, CheckKind
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.reprocessing import events
from ebbtide.reprocessing.journal import ChunkReport, ReprocessSummary
from ebbtide.web import subprocesses as children
from ebbtide.web import tasks
from ebbtide.web.audit import AuditLog
from ebbtide.web.reprocess import update_task
from ebbtide.web.tasks import CANCELLED, DONE, FAILED, REFUSED, Advance, Command, Task, Tasks
from tests.unit.reprocessing.test_journal import RUN
from tests.unit.web.conftest import wait_until

PYTHON = (sys.executable, "-S", "-c")
INTERRUPTED = events.ErrorRaised("Interrupted.", "To continue: ebbtide retry r1")
PATIENT = f"""
import signal, sys, time
def stop(*_):
    print({INTERRUPTED.to_json()!r})
    sys.exit(1)
signal.signal(signal.SIGINT, stop)
print({events.RunStarted(RUN).to_json()!r}, flush=True)
time.sleep(60)
"""
STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
if (other := os.fork()) == 0:
    os.setsid()  # as the JVM does
    time.sleep(60)
print(other, flush=True)
time.sleep(60)
"""


@pytest.fixture
def audit(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "audit.jsonl")


@pytest.fixture
def all_tasks(audit: AuditLog) -> Iterator[Tasks]:
    found = Tasks(audit)
    yield found
    found.close()


def run(all_tasks: Tasks, work: Callable[[Advance], Any] | Command) -> Task:
    return all_tasks.wait(all_tasks.start("kind", "Do it", "key", work, target="/c").id)


def child(*happened: events.ReprocessEvent | str, code: int = 0) -> Command:
    """A child process that writes these events, or lines as they are."""
    lines = [each if isinstance(each, str) else each.to_json() for each in happened]
    script = f"import sys\nfor line in {lines!r}: print(line)\nsys.exit({code})"
    return Command((*PYTHON, script), update_task)


def finished(*reports: ChunkReport) -> events.RunFinished:
    by_number = {report.number: report for report in reports}
    return events.RunFinished(ReprocessSummary.of(RUN, by_number, len(reports)), executed=True)


def until(all_tasks: Tasks, task: Task, what: Callable[[Task], bool]) -> Task:
    """The task as soon as something is true of it."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        found = all_tasks.find(task.id)
        assert found is not None
        if what(found):
            return found
        time.sleep(0.002)
    raise AssertionError(all_tasks.find(task.id))


def is_there(pid: int) -> bool:
    """Whether a process is still there; one that was killed takes a moment to go."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.002)
    return True


def outcomes(audit: AuditLog) -> list[str]:
    return [str(line["outcome"]) for line in reversed(audit.read())]


def test_a_thread_says_how_far_it_is(all_tasks: Tasks, audit: AuditLog) -> None:
    def work(advance: Advance) -> str:
        advance(1, 3)
        advance(3, 3)
        return "result"

    task = run(all_tasks, work)
    assert (task.state, task.result, task.done, task.total) == (DONE, "result", 3, 3)
    assert task.ended is not None
    assert task.steps == 3
    assert outcomes(audit) == ["started", "done"]
    assert audit.read()[0]["target"] == "/c"


def test_a_refusal_keeps_its_words(all_tasks: Tasks, audit: AuditLog) -> None:
    def work(_advance: Advance) -> None:
        raise CheckpointError("It is in use.", "Stop it first.")

    task = run(all_tasks, work)
    assert (task.state, task.problem, task.next_step) == (
        *(REFUSED, "It is in use.", "Stop it first."),
    )
    assert outcomes(audit) == ["started", "refused: It is in use."]


def test_a_bug_is_logged_and_said_in_a_line(
    all_tasks: Tasks, audit: AuditLog, caplog: pytest.LogCaptureFixture
) -> None:
    def work(_advance: Advance) -> None:
        raise KeyError("secret detail")

    with caplog.at_level(logging.ERROR):
        task = run(all_tasks, work)
    assert task.state == FAILED
    assert "this is a bug" in task.problem
    assert "secret detail" not in task.problem + task.next_step
    assert "secret detail" in caplog.text
    assert "Traceback" in caplog.text
    assert outcomes(audit)[-1].startswith("failed: ")


@pytest.mark.parametrize(
    ("work", "state", "problem", "next_step"),
    [
        (child(finished(ChunkReport(1, "done"))), DONE, "", ""),
        (child(events.ErrorRaised("No.", "Do this."), code=2), REFUSED, "No.", "Do this."),
        (
            child(
                events.PlanRefused(Check(CheckKind.ARCHIVE, REFUSE, "no archive", "Wait.")), code=1
            ),
            *(REFUSED, "This would be refused: no archive.", "Wait."),
        ),
        (
            child(finished(ChunkReport(1, "done"), ChunkReport(2, "failed", error="x")), code=1),
            *(FAILED, "1 of 2 chunks failed; chunk 2: x"),
            f"To run what is missing: ebbtide retry {RUN.id}",
        ),
        (child("{}", "[1]", '{"event": "Unknown"}', '{"event": "RunStarted"}'), DONE, "", ""),
        (child("not json"), DONE, "", ""),
        (child(code=1), FAILED, tasks._BUG, "The terminal of `ebbtide ui` shows where."),
    ],
)
def test_a_child_ends(
    all_tasks: Tasks, work: Command, state: str, problem: str, next_step: str
) -> None:
    task = run(all_tasks, work)
    assert (task.state, task.problem, task.next_step) == (state, problem, next_step)
    assert task.can_cancel


def test_a_bug_of_a_child_is_logged(all_tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        task = run(all_tasks, Command((*PYTHON, "raise SystemError('secret')")))
    assert (task.state, task.problem) == (FAILED, tasks._BUG)
    assert "SystemError: secret" in caplog.text


def test_the_events_of_a_child_are_its_progress(all_tasks: Tasks) -> None:
    """The very lines that the command line writes, and what else the pipeline's code prints."""
    reports = [ChunkReport(2, "done", 10, results=3), ChunkReport(1, "failed", error="no disk")]
    chunks = [events.ChunkFinished(report, n, 2) for n, report in enumerate(reports, 1)]
    happened = [events.RunStarted(RUN), *chunks]
    task = run(all_tasks, child(*happened, "x" * 10_000))
    assert (task.done, task.total) == (2, 2)
    assert task.result.run == RUN.id
    assert task.lines[:3] == tuple(line for event in happened for line in event.lines())
    assert max(map(len, task.lines)) == 2_000


def test_a_line_that_is_too_long(all_tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "LARGEST", 1_000)
    task = run(all_tasks, Command((*PYTHON, "print('1' * 2047); print('next')")))
    assert (task.state, task.result) == (DONE, None)
    assert task.lines == ("A line of 2.0 KiB is too long for the web UI: not shown.", "next")


def test_a_child_is_interrupted_in_order(all_tasks: Tasks, audit: AuditLog) -> None:
    task = all_tasks.start("kind", "Do it", "key", Command((*PYTHON, PATIENT), update_task))
    until(all_tasks, task, lambda found: bool(found.lines))
    for _ in range(2):  # twice is once
        assert all_tasks.cancel(task.id)
    found = until(all_tasks, task, lambda found: not found.running)
    assert found.state == CANCELLED
    assert (found.problem, found.next_step) == ("Interrupted.", "To continue: ebbtide retry r1")
    assert outcomes(audit) == ["started", "cancel asked for", f"cancelled: {found.problem}"]
    assert all_tasks.cancel(task.id) == found
    assert all_tasks.cancel("unknown") is None


def test_a_child_that_does_not_heed_ends_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "_LAST_SECONDS", 0.1)
    process = children.Child((*PYTHON, STUBBORN))
    lines: list[str] = []
    thread = threading.Thread(target=process.follow, args=(lines.append,))
    thread.start()
    wait_until(lambda: lines)
    process.interrupt(patience_seconds=0.1)
    thread.join(30)
    assert not thread.is_alive()
    assert not is_there(process.pid)
    assert not is_there(int(lines[0]))


def test_nothing_outlives_a_child(all_tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it started holds its stdout open, and does not end by itself."""
    monkeypatch.setattr(children, "_LAST_SECONDS", 0.05)
    script = """
import subprocess, sys
other = subprocess.Popen(
    [sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True
)
print(other.pid, flush=True)
"""
    task = run(all_tasks, Command((*PYTHON, script)))
    assert task.state == DONE
    assert not is_there(int(task.lines[0]))


def test_the_end_of_the_server_ends_children_and_waits_for_threads(audit: AuditLog) -> None:
    all_tasks = Tasks(audit)
    gone: list[str] = []
    closed = threading.Event()

    def end() -> None:
        gone.append("closed")
        closed.set()

    all_tasks.at_close(end)
    patient = all_tasks.start("kind", "Child", "key", Command((*PYTHON, PATIENT)))
    until(all_tasks, patient, lambda found: bool(found.lines))

    def work(_advance: Advance) -> None:
        assert closed.wait(20)
        gone.append("thread")

    all_tasks.start("kind", "Thread", "key", work)
    all_tasks.close()
    assert gone == ["closed", "thread"]
    assert [task.state for task in all_tasks.of("key")] == [DONE, CANCELLED]
    with pytest.raises(EbbtideError, match="being closed"):
        all_tasks.start("kind", "Too late", "key", work)


def test_only_the_last_are_remembered(all_tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "KEPT", 3)
    numbers = iter(range(5))
    found = [run(all_tasks, lambda _advance: next(numbers)) for _ in range(5)]
    assert [task.result for task in all_tasks.of("key")] == [4, 3, 2]
    assert all_tasks.find(found[0].id) is None


def test_lines_are_bounded(all_tasks: Tasks) -> None:
    task = run(all_tasks, Command((*PYTHON, "for number in range(300): print(number)")))
    assert task.lines == tuple(map(str, range(100, 300)))


def test_the_audit_log_is_json(all_tasks: Tasks, audit: AuditLog) -> None:
    run(all_tasks, lambda _advance: None)
    lines = [json.loads(line) for line in audit.file.read_text().splitlines()]
    assert [sorted(line) for line in lines] == [["action", "at", "by", "outcome", "target"]] * 2


def test_a_log_that_cannot_be_written_keeps_nothing_from_ending(
    all_tasks: Tasks, audit: AuditLog
) -> None:
    begun = threading.Event()
    thread = all_tasks.start("other", "Do it", "key", lambda _advance: begun.wait(20))
    patient = all_tasks.start("kind", "Do it", "key", Command((*PYTHON, PATIENT)))
    until(all_tasks, patient, lambda found: bool(found.lines))
    audit.file.unlink()
    audit.file.mkdir()
    begun.set()
    assert all_tasks.wait(thread.id).state == DONE
    all_tasks.cancel(patient.id)
    assert all_tasks.wait(patient.id).state == CANCELLED
    with pytest.raises(EbbtideError, match="cannot be written"):
        run(all_tasks, lambda _advance: None)


def test_a_child_does_not_run_what_lies_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    process = children.Child((*children.run_module("ebbtide"), "--version"))
    assert process.follow(lambda _line: None)[0] == 0
