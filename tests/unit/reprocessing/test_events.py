"""Events survive a line of JSON, and the CLI and the web UI show the same ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from ebbtide.checks import REFUSE, Check, CheckKind
from ebbtide.errors import EbbtideError
from ebbtide.reprocessing import events, follow
from ebbtide.reprocessing.core import _interruptible
from ebbtide.reprocessing.journal import DONE, FAILED, ChunkReport, ReprocessSummary
from ebbtide.web.reprocess import update_task
from ebbtide.web.tasks import Task
from tests.conftest import Cli
from tests.unit.reprocessing.test_journal import ASKED, DIFF, RUN
from tests.unit.web.test_reprocess_page import PLAN

COMMAND = (
    *("reprocess", "visits-counter", "--event-time-start", "2025-09-04T07:00"),
    *("--event-time-end", "2025-09-04T07:10"),
)
REPORTS = {
    1: ChunkReport(1, DONE, 10, 1, 2, 2, DIFF),
    2: ChunkReport(2, FAILED, error="no space left"),
}
PLANNED = events.ReprocessPlanned(PLAN)
STARTED = [events.RangeRequested("visits-counter", ASKED, "UTC"), events.SparkStarting(), PLANNED]
RAN = [
    events.RunStarted(RUN),
    *(events.ChunkFinished(REPORTS[n].without_rows(), n, 2) for n in REPORTS),
    events.RunFinished(ReprocessSummary.of(RUN, REPORTS, ran=2), executed=True),
]
REFUSED = events.PlanRefused(Check(CheckKind.ARCHIVE, REFUSE, "it holds no record", "Wait for it."))
ALL = [
    *(*STARTED, REFUSED, *RAN),
    events.RunStarted(RUN, done=1, resumed=True),
    events.ErrorRaised("Interrupted.", "To continue: ebbtide retry r1"),
]


@pytest.mark.parametrize("event", ALL, ids=lambda event: type(event).__name__)
def test_an_event_is_read_as_it_was_written(event: events.ReprocessEvent) -> None:
    line = event.to_json()
    assert "\n" not in line
    assert events.read_event(line) == event
    assert json.loads(line)["event"] == type(event).__name__


def test_every_event_is_tested() -> None:
    assert {type(event) for event in ALL} == set(events.ReprocessEvent.__subclasses__())


def test_one_record_is_one() -> None:
    first, *_ = RAN[-1].lines()
    assert first == "1 broken record of the range was left out, as in the stream."


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", "1", '{"event": "Run"}', '{"event": "RunStarted"}']
)
def test_what_is_no_event(line: str) -> None:
    with pytest.raises(ValueError, match="Not an event"):
        events.read_event(line)


@pytest.mark.parametrize(
    ("happened", "ending"),
    [([*STARTED, REFUSED], "refused"), ([*STARTED, *RAN], "failed")],
    ids=["refused", "failed"],
)
def test_the_cli_and_the_web_ui_show_the_same_events(
    inside: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    happened: list[events.ReprocessEvent],
    ending: str,
) -> None:
    monkeypatch.setattr("ebbtide.reprocessing.reprocess", lambda *_: (event for event in happened))
    written = inside(*COMMAND, "--home", tmp_path, "--events")
    assert written.returncode == 1
    assert [events.read_event(line) for line in written.stdout.splitlines()] == happened

    shown = inside(*COMMAND, "--home", tmp_path)
    assert shown.returncode == 1
    task = Task("id", "reprocess", "Reprocess", "key", "/c", datetime.now(timezone.utc))
    for line in written.stdout.splitlines():
        task = update_task(task, line)
    said = [line.rstrip() for line in shown.stderr.splitlines()]
    assert [line.rstrip() for line in task.lines if line.rstrip() not in said] == []
    assert task.ending == ending
    assert task.result.plan == PLAN.to_dict()


def test_an_error_is_an_event_of_the_web_ui_and_a_line_of_the_cli(
    inside: Cli, tmp_path: Path
) -> None:
    plain = inside(*COMMAND, "--home", tmp_path)
    written = inside(*COMMAND, "--home", tmp_path, "--events")
    assert plain.returncode == written.returncode == 1
    *_, last = map(events.read_event, written.stdout.splitlines())
    assert isinstance(last, events.ErrorRaised)
    assert f"Error: {last.lines()[0]}" in plain.stderr
    assert "There is no archive" in last.problem
    assert last.next_step == "Type: ebbtide archive visits-counter"


def test_an_interrupt_while_an_event_is_shown_reaches_the_run() -> None:
    cleaned: list[str] = []

    def run() -> Iterator[events.ReprocessEvent]:
        with _interruptible(RUN):
            try:
                yield RAN[0]
            except BaseException as error:
                cleaned.append(type(error).__name__)
                raise

    def show(_event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(EbbtideError, match=f"Interrupted. To continue: ebbtide retry {RUN.id}"):
        follow(run(), show)  # type: ignore[arg-type]
    assert cleaned == ["KeyboardInterrupt"]


def test_what_is_not_wanted_is_not_run() -> None:
    """A reprocess whose caller says no after the plan is closed, not resumed."""
    resumed: list[str] = []

    def run() -> Iterator[events.ReprocessEvent]:
        try:
            yield PLANNED
            resumed.append("resumed")
        finally:
            resumed.append("closed")

    def refuse(_event: Any) -> None:
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        follow(run(), refuse)  # type: ignore[arg-type]
    assert resumed == ["closed"]
