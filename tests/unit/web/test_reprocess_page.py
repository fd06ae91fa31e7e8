"""A reprocess from the web UI: the events of the command line, what differs, what failed."""

from __future__ import annotations

import html
import json
import re
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.archive import Archive, ArchiveCost
from ebbtide.checks import OK, Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors.streams import OutputPosition
from ebbtide.reprocessing import ReprocessPlan, ReprocessRequest, events
from ebbtide.reprocessing.diff import ResultChange, ResultDiff
from ebbtide.reprocessing.journal import (
    DONE,
    FAILED,
    ChunkReport,
    ReprocessSummary,
    create_run,
    save_report,
)
from ebbtide.reprocessing.ranges import EventTimeRange, Shape, cut
from ebbtide.times import parse_time
from ebbtide.web.context import WebContext
from ebbtide.web.reprocess import ReprocessForm, update_task
from ebbtide.web.subprocesses import run_module
from ebbtide.web.tasks import REFUSED, Command, Task
from tests.unit.reprocessing.test_journal import DIFF, RUN
from tests.unit.web.conftest import Visitor, wait_until

NAME = "visits"
RANGE = {"start": "2025-09-04T07:00", "end": "2025-09-04T07:10"}
SCRIPT = "<script>alert(1)</script>"
AT = "2025-09-04T07:0{}:00.000Z"
ASKED = EventTimeRange(parse_time(AT.format(0)), parse_time(AT.format(9)))
PLAN = ReprocessPlan(
    pipeline="visits-counter",
    request=ReprocessRequest("visits-counter", ASKED),
    zone="UTC",
    shape=Shape("windowed", timedelta(minutes=10), timedelta(minutes=10)),
    owned=ASKED,
    reads=ASKED,
    archive=Archive(
        *(f"/{SCRIPT}", 3, "visits", "event_time", "UTC"),
        records=0,
        unreadable=0,
        files=4,
        bytes=2048,
        earliest=None,
        latest=ASKED.end,
        offsets={0: 7},
    ),
    cost=ArchiveCost(2, 1024, 1200),
    records=1200,
    output=f"topic {SCRIPT}",
    position=OutputPosition(offsets={0: 3}),
    chunks=tuple(cut(ASKED, Shape("stateless"))),
    checks=(Check(CheckKind.RANGE, OK, f"{SCRIPT} cuts none"),),
)
DIFFERS = ResultDiff(
    {"unchanged": 2, "changed": 1, "new": 1, "gone": 0},
    (
        ResultChange(
            *("changed", AT.format(1), {"page": SCRIPT, "count": 3}, {"page": SCRIPT, "count": 5})
        ),
        ResultChange("new", None, None, {"page": SCRIPT + "x" * 1_000_000}),
    ),
    (
        (AT.format(2), None, 5.0),
        (AT.format(1), 3.0, float("nan")),
        (AT.format(2), 1.0, 2.0),
    ),
)
REPORTS = {
    1: ChunkReport(1, DONE, records=5, written=4, diff=DIFFERS),
    2: ChunkReport(2, DONE, records=5),
    3: ChunkReport(3, FAILED, error=f"no {SCRIPT}"),
}
PLANNED = events.ReprocessPlanned(PLAN)
FINISHED = events.RunFinished(ReprocessSummary.of(RUN, REPORTS, ran=3), executed=True)


def owned(home: Path, pipeline: str = "visits-counter") -> None:
    note = home / "checkpoints" / NAME / ".ebbtide" / "pipeline.json"
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps({"pipeline": pipeline}))


def begun(visitor: Visitor, *happened: events.ReprocessEvent, code: int = 0) -> Task:
    """A task as if the command line had written these events."""
    file = visitor.context.settings.home / "events.jsonl"
    file.write_text("\n".join(event.to_json() for event in happened))
    script = f"import sys; print(open(sys.argv[1]).read()); sys.exit({code})"
    command = Command((sys.executable, "-S", "-c", script, str(file)), update_task)
    tasks, key = visitor.context.tasks, visitor.key()
    return tasks.wait(tasks.start("reprocess", "Reprocess", key, command, target=f"/{NAME}").id)


def test_the_form_knows_the_job_and_the_range(visitor: Visitor, home: Path) -> None:
    page = visitor.get(visitor.place("/reprocess")).text
    assert 'name="pipeline" required value=""' in page
    owned(home)
    at = "?start=1756969200000&end=2025-09-04T07:10"
    page = visitor.get(visitor.place(f"/reprocess{at}")).text
    assert 'name="pipeline" required value="visits-counter"' in page
    assert 'value="2025-09-04T07:00:00.000Z"' in page
    assert "ebbtide reprocess --event-time-start=2025-09-04T07:00:00.000Z" in page
    owned(home, "mine")
    assert 'name="pipeline" required value=""' in visitor.get(visitor.place("/reprocess")).text


def test_the_command_is_the_command_lines(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, bootstrap_servers="kafka:9092", timezone="Europe/Warsaw")
    form = ReprocessForm("--help", **RANGE, only_changed="on", chunk="PT1H", what="execute")
    request = form.request(settings)
    assert request.words(settings) == (
        *("reprocess", "--event-time-start=2025-09-04T05:00:00.000Z"),
        *("--event-time-end=2025-09-04T05:10:00.000Z", "--only-changed"),
        *("--chunk=PT1H", "--execute", f"--home={tmp_path}"),
        *("--bootstrap-servers=kafka:9092", "--timezone=Europe/Warsaw", "--", "--help"),
    )
    assert request.command_line(settings).startswith("ebbtide reprocess --event-time-start=2025")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"what": "plan"}, "The pipeline is missing."),
        ({"what": "plan", "pipeline": "visits-counter", "end": ""}, "The end is missing."),
        ({"what": "plan", "pipeline": "visits-counter", "start": SCRIPT}, "is not a time."),
        ({"what": "plan", "pipeline": "visits-counter", "chunk": "PT0S"}, "is no length."),
        ({"what": SCRIPT, "pipeline": "visits-counter"}, "is unknown."),
        ({"what": "execute", "pipeline": "visits-counter"}, "is not the checkpoint"),
        (
            {"what": "execute", "pipeline": "visits-counter", "confirm": "visit"},
            "is not the checkpoint",
        ),
        ({"what": "plan", "pipeline": "x" * 501}, "This is not a valid pipeline."),
    ],
)
def test_what_cannot_be_asked_for(visitor: Visitor, sent: dict[str, str], said: str) -> None:
    answer = visitor.post(visitor.place("/reprocess"), **{**RANGE, **sent})
    assert answer.status_code == 422
    assert said in answer.text
    assert SCRIPT not in answer.text
    assert visitor.context.tasks.of(visitor.key()) == []
    assert visitor.context.audit.read()[0]["action"] == "reprocess"


def test_the_command_line_refuses_in_its_own_words(visitor: Visitor) -> None:
    """A real child: there is no archive, so it ends before it would start Spark."""
    sent = {"pipeline": "visits-counter", **RANGE, "what": "execute", "confirm": NAME}
    answer = visitor.post(visitor.place("/reprocess"), **sent)
    assert answer.status_code == 303
    task = visitor.context.tasks.wait(answer.headers["location"].rpartition("/")[2])
    assert task.state == REFUSED
    assert "There is no archive" in task.problem
    assert "visits-counter: event time from 2025-09-04T07:00:00.000Z" in task.lines[0]
    assert task.problem in html.unescape(visitor.get(f"/tasks/{task.id}").text)
    assert f"/tasks/{task.id}" in visitor.get(visitor.place("/reprocess")).text
    assert 'value="2025-09-04T07:10"' in visitor.get(task.again).text  # nothing is typed twice


def test_what_differs_is_shown_and_is_text(visitor: Visitor) -> None:
    task = begun(visitor, PLANNED, FINISHED, code=1)
    assert task.state == "failed"
    page = visitor.get(f"/tasks/{task.id}").text
    assert SCRIPT not in page
    assert len(page) < 60_000
    assert "count 3 → 5" in page
    assert f'data-label="Result">page {html.escape(SCRIPT)}</td>' in page  # which one it is
    assert '<td data-label="Starts"><time' in page
    assert f"1 of {len(RUN.chunks)} chunks failed; chunk 3: no {SCRIPT}" in html.unescape(page)
    assert f"To run what is missing: ebbtide retry {RUN.id}" in page
    assert page.index("Retry what is missing") < page.index("What differs")
    assert "(cut: 2,000 of 1,000,030 characters)" in page
    assert f'data-url="/tasks/{task.id}.json"' in page
    rows = re.findall(r'<tr class="diff-(\w+)">', page)
    assert rows == ["changed", "new"]
    assert len(re.findall('<tr><td class="num">[123]</td><td><span', page)) == 3
    assert html.escape(f"no {SCRIPT}") in page
    assert 'name="run" value="' + RUN.id in page  # what failed can run again
    points = visitor.get(f"/tasks/{task.id}.json").json()["points"]
    first, second = 1_756_969_260_000, 1_756_969_320_000
    assert points == {"at": [first, second], "old": [3.0, 1.0], "new": [None, 7.0]}


def test_a_comparison_says_first_how_much_differs(visitor: Visitor) -> None:
    done = {1: ChunkReport(1, DONE, diff=DIFFERS)}
    compared = events.RunFinished(ReprocessSummary.of(RUN, done, ran=1), executed=False)
    page = visitor.get(f"/tasks/{begun(visitor, PLANNED, compared).id}").text
    assert "<h2>2 of 4 results differ</h2>" in page
    assert page.index("Write the results …") < page.index('id="result"')
    same = ResultDiff({"unchanged": 2, "changed": 0, "new": 0, "gone": 0})
    done = {1: ChunkReport(1, DONE, diff=same)}
    compared = events.RunFinished(ReprocessSummary.of(RUN, done, ran=1), executed=False)
    page = visitor.get(f"/tasks/{begun(visitor, PLANNED, compared).id}").text
    assert "<h2>No result differs</h2>" in page


def test_a_plan_is_shown(visitor: Visitor) -> None:
    page = visitor.get(f"/tasks/{begun(visitor, PLANNED).id}").text
    assert SCRIPT not in page
    assert "1,200 records in 2 files, 1.0 KiB" in page
    assert "cuts none" in page
    assert "diff-plot" not in page
    assert "reprocess/retry" not in page


def test_earlier_runs(visitor: Visitor, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned(home)
    settings = visitor.context.settings
    others = [replace(RUN, id=f"2025090{n}T000000-visits-counter-1a2b") for n in (5, 6)]
    foreign = replace(RUN, id="20250907T000000-visits-counter-2-1a2b", pipeline="visits-counter-2")
    for run in (RUN, *others, foreign):
        create_run(settings, run)
    (settings.home / "runs" / others[0].id / "run.json").write_text('{"half')
    for chunk in RUN.chunks:
        save_report(settings, RUN, ChunkReport(chunk.number, DONE, diff=DIFF))
    save_report(settings, others[1], ChunkReport(1, FAILED, error="no disk"))
    page = visitor.get(visitor.place("/reprocess")).text
    shown = re.findall(r"<td><code>([^<]*)</code>", page)
    assert shown == [others[1].id, RUN.id]
    assert f"0 of {len(RUN.chunks)} chunks done, 1 failed" in page
    assert "complete" in page
    assert re.findall(r'name="run" value="([^"]*)"', page) == [others[1].id]
    commands: list[Any] = []
    start = visitor.context.tasks.start

    def note(*given: Any, **more: Any) -> Task:
        commands.append(given[3].words)
        done = Command((sys.executable, "-S", "-c", ""))
        kind, title, key = given[:3]
        return start(kind, title, key, done, **more)

    monkeypatch.setattr(visitor.context.tasks, "start", note)
    assert visitor.post(visitor.place("/reprocess/retry"), run=RUN.id).status_code == 303
    given = ("retry", "--events", "--yes", f"--home={home}", "--", RUN.id)
    assert commands[0] == (*run_module("ebbtide"), *given)
    for name in ("none", "../x", "--help", ""):
        answer = visitor.post(visitor.place("/reprocess/retry"), run=name)
        assert answer.status_code == 422
        assert "There is no run" in answer.text


def test_a_running_one_can_be_cancelled(visitor: Visitor) -> None:
    happened = (events.RunStarted(RUN), events.ChunkFinished(REPORTS[2], 1, 4))
    lines = "\n".join(event.to_json() for event in happened)
    script = f"import time; print({lines!r}, flush=True); time.sleep(600)"
    command = Command((sys.executable, "-S", "-c", script), update_task)
    tasks, key = visitor.context.tasks, visitor.key()
    task = tasks.start("reprocess", "Reprocess", key, command, target=f"/{NAME}")
    wait_until(lambda: (found := tasks.find(task.id)) and found.total == 4)
    second = visitor.post(
        visitor.place("/reprocess"), pipeline="visits-counter", start="2026-01-05", end="2026-01-06"
    )
    assert second.status_code == 409
    assert "under way already" in second.text
    page = visitor.get(f"/tasks/{task.id}").text
    assert 'max="4" value="1"' in page
    assert 'hx-trigger="every 500ms"' in page
    answer = visitor.post(f"/tasks/{task.id}/cancel", {"HX-Request": "true"})
    assert "It is being stopped" in answer.text or "It was stopped" in answer.text
    answer = visitor.post(f"/tasks/{task.id}/cancel")
    assert answer.status_code == 303
    assert tasks.wait(task.id).state == "cancelled"
    page = visitor.get(f"/tasks/{task.id}").text
    assert "Retry what is missing" in page
    assert "every 500ms" not in page


def test_nothing_is_begun_when_reading_only(home: Path) -> None:
    reader = Visitor(WebContext(Settings(home=home), read_only=True)).enter()
    task = begun(reader, PLANNED, FINISHED, code=1)
    page = reader.get(f"/tasks/{task.id}").text
    assert "<form" not in page


def test_results_are_written_only_after_a_plan(visitor: Visitor) -> None:
    """The red button comes with the plan of just this range, and sends what was planned."""
    asked = "/reprocess?pipeline=visits-counter&start=2025-09-04T07:00&end=2025-09-04T07:10"
    before = visitor.get(visitor.place(asked)).text
    assert "danger" not in before
    assert "plan or compare the range first" in before
    assert re.search(r'<div class="pair">\s*<p[^>]*><label for="start">From<.*\n.*>To ', before)
    file = visitor.context.settings.home / "events.jsonl"
    file.write_text(PLANNED.to_json())
    words = (sys.executable, "-S", "-c", "import sys; print(open(sys.argv[1]).read())", str(file))
    query = asked.partition("?")[2] + "&what=plan"
    tasks, key = visitor.context.tasks, visitor.key()
    again = visitor.place(f"/reprocess?{query}")
    task = tasks.start("reprocess", "Plan", key, Command(words, update_task), again=again)
    assert tasks.wait(task.id).state == "done"
    assert "Write the results …" in visitor.get(f"/tasks/{task.id}").text
    page = visitor.get(visitor.place(asked)).text
    form = page[page.index('<form id="write"') :]
    assert 'name="start" value="2025-09-04T07:00"' in form
    assert 'value="execute" class="danger"' in form
    for other in (asked.replace("07:10", "07:20"), f"{asked}&only_changed=on", "/reprocess"):
        assert "danger" not in visitor.get(visitor.place(other)).text, other
