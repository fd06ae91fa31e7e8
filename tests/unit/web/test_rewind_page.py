"""A rewind from the page: the core's plan, applied as it was shown, undone, finished, refused."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config import Settings
from ebbtide.report.messages import format_amount, format_target, group_sizes, list_partitions
from ebbtide.rewind import RewindRequest, plan_rewind, steps
from ebbtide.rewind.target import ToBatch
from ebbtide.web.context import WebContext
from ebbtide.web.tasks import DONE, REFUSED, Task
from tests.outputs import rows_of, write_batches, written
from tests.trees import Shape, make, snapshot
from tests.unit.web.conftest import Visitor, wait_until

NAME = "visits"
WAIVED = "/rewind?to_batch=4&sink=none"
"""Nobody runs the query with Ebbtide, so its sink is not known."""
HOSTILE = '"><img src=x onerror=alert(1)>'


@pytest.fixture
def folder(home: Path) -> Path:
    """A checkpoint with state whose query stopped long ago."""
    place = home / "checkpoints" / NAME
    shutil.rmtree(place)
    return old(make(place, Shape("changelog")))


def old(place: Path) -> Path:
    """Nothing was written to it for long."""
    for path in place.rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))
    return place


def fields(text: str, form: str = "apply") -> dict[str, str]:
    """What a form of the page would send."""
    found = re.search(rf'<form id="{form}".*?</form>', text, re.DOTALL)
    assert found, "there is no such form"
    pairs = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', found[0])
    return {name: html.unescape(value) for name, value in pairs}


def look(visitor: Visitor, path: str = WAIVED, name: str = NAME) -> Any:
    answer = visitor.get(visitor.place(path, name))
    assert "Traceback" not in answer.text
    return answer


def send(visitor: Visitor, path: str, *, name: str = NAME, **sent: str) -> Any:
    return visitor.post(visitor.place(path, name), **sent)


def ended(visitor: Visitor, answer: Any) -> Task:
    """The task that a form has begun, once it has ended."""
    assert answer.status_code == 303, answer.text
    task = visitor.context.tasks.wait(answer.headers["location"].rpartition("/")[2])
    page = visitor.get(answer.headers["location"])
    assert page.status_code == 200
    assert f'data-state="{task.state}"' in page.text
    assert "hx-trigger" not in page.text
    return task


def rewind(visitor: Visitor, path: str = WAIVED) -> Task:
    sent = fields(look(visitor, path).text)
    return ended(visitor, send(visitor, "/rewind", confirm=NAME, **sent))


def undo(visitor: Visitor) -> Task:
    sent = fields(look(visitor, "/undo").text)
    return ended(visitor, send(visitor, "/undo", confirm=NAME, **sent))


def audit(visitor: Visitor) -> list[str]:
    """What the page's log says, oldest first."""
    lines = visitor.context.audit.read()
    return [f"{line['action']}: {line['outcome']}" for line in reversed(lines)]


@pytest.mark.parametrize("replan", [False, True])
def test_what_is_shown_is_the_cores_plan(visitor: Visitor, folder: Path, replan: bool) -> None:
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(4), replan=replan, remedy="none"))
    page = html.unescape(look(visitor, f"{WAIVED}{'&replan=on' if replan else ''}").text)
    for words in (format_target(plan), format_amount(plan), plan.fingerprint):
        assert words in page
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", page, re.DOTALL)
    for row in (*list_partitions(plan), *group_sizes(plan.bytes)):
        first = [n for n in range(len(cells)) if cells[n : n + len(row)] == list(map(str, row))]
        assert first, row
    for check in plan.checks:
        assert check.name in page
        assert check.detail in page
        assert check.next in page
    flags = f"{' --replan' if replan else ''} --sink none --execute"
    command = f"ebbtide rewind {folder} --to-batch 4{flags}"
    assert f"<code>{command}</code>" in page


def test_a_rewind_and_its_undo(visitor: Visitor, folder: Path) -> None:
    before = snapshot(folder)
    task = rewind(visitor)
    assert task.state == DONE, task.problem
    assert task.done == task.total
    assert snapshot(folder) != before
    assert not (folder / "commits" / "4").exists()
    page = visitor.get(f"/tasks/{task.id}").text
    assert f"{folder} starts again with batch 4" in page
    assert visitor.place("/undo") in page
    assert undo(visitor).state == DONE
    assert snapshot(folder) == before
    again = undo(visitor)  # an undo can be undone
    assert again.state == DONE
    assert not (folder / "commits" / "4").exists()
    assert audit(visitor) == [
        *("Rewind to batch 4: started", "Rewind to batch 4: done"),
        *("Undo: started", "Undo: done", "Undo: started", "Undo: done"),
    ]


def test_from_the_very_first_batch(visitor: Visitor, folder: Path) -> None:
    assert rewind(visitor, "/rewind?to_batch=0&sink=none").state == DONE
    assert not list((folder / "commits").glob("[0-9]*"))


def test_a_wrong_name_changes_nothing(visitor: Visitor, folder: Path) -> None:
    before = snapshot(folder)
    sent = fields(look(visitor).text)
    for confirm in ("", "visit", "Visits"):
        answer = send(visitor, "/rewind", confirm=confirm, **sent)
        assert answer.status_code == 422
        assert "is not the checkpoint&#39;s name" in answer.text
        assert fields(answer.text)["plan"] == sent["plan"]  # what was looked at is still there
    rewind(visitor)
    assert (
        send(visitor, "/undo", confirm="x", **fields(look(visitor, "/undo").text)).status_code
        == 422
    )
    assert undo(visitor).state == DONE
    assert snapshot(folder) == before
    assert "rewind to batch 4: refused: What you typed is not the checkpoint's name." in audit(
        visitor
    )


def test_a_plan_that_nobody_was_shown_is_made_and_shown_first(
    visitor: Visitor, folder: Path
) -> None:
    before = snapshot(folder)
    shown = fields(look(visitor).text)
    for sent in (
        {**shown, "plan": "unknown"},
        {**shown, "to_batch": "3"},
        {**shown, "replan": "on"},
    ):
        answer = send(visitor, "/rewind", confirm=NAME, **sent)
        assert answer.status_code == 409
        assert "no longer has the plan" in answer.text
        assert fields(answer.text)["plan"] != shown["plan"]
    assert snapshot(folder) == before


def test_what_changed_since_it_was_shown_is_refused(visitor: Visitor, folder: Path) -> None:
    sent = fields(look(visitor).text)
    (folder / "commits" / "6").unlink()
    old(folder)
    task = ended(visitor, send(visitor, "/rewind", confirm=NAME, **sent))
    assert task.state == REFUSED
    assert "has changed since the plan was made" in task.problem
    assert "make a new plan" in task.next_step
    assert task.again == visitor.place(WAIVED)
    assert audit(visitor)[-1].startswith("Rewind to batch 4: refused: ")


def test_two_tabs_apply_at_once_and_one_wins(
    visitor: Visitor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever comes second is told why, in the core's words, at whatever moment it comes."""
    told = threading.Event()
    go_on = steps.CheckpointChange.go_on

    def wait_for_the_other(self: Any, journal: Any) -> Any:
        assert told.wait(20)
        return go_on(self, journal)

    monkeypatch.setattr(steps.CheckpointChange, "go_on", wait_for_the_other)
    plans = [fields(look(visitor).text) for _ in range(3)]
    answers = [send(visitor, "/rewind", confirm=NAME, **sent) for sent in plans[:2]]
    tasks = visitor.context.tasks
    wait_until(lambda: not all(task.running for task in tasks.of(visitor.key())))
    told.set()
    won, lost = sorted((ended(visitor, answer) for answer in answers), key=lambda task: task.state)
    assert (won.state, lost.state) == (DONE, REFUSED)
    assert "is being rewound (process" in lost.problem
    assert lost.next_step == "Wait until that is done."
    assert len(list((folder / ".ebbtide" / "backups").iterdir())) == 1
    late = ended(visitor, send(visitor, "/rewind", confirm=NAME, **plans[2]))
    assert "has changed since the plan was made" in late.problem


def test_a_refused_plan_has_no_button(visitor: Visitor, folder: Path) -> None:
    os.utime(folder / "offsets" / "6")
    answer = look(visitor)
    assert 'id="apply"' not in answer.text
    assert "the query may be running" in answer.text
    assert "Stop it, then add --assume-stopped." in answer.text
    assert 'id="apply"' in look(visitor, "/rewind?to_batch=4&sink=none&assume_stopped=on").text
    # a form that was made up gets no further
    made_up = visitor.post(visitor.place("/rewind"), plan="x", to_batch="4", confirm=NAME)
    assert made_up.status_code == 409
    for name in ("4.zip", "4.changelog"):
        (folder / "state/0/0" / name).unlink()
    assert 'id="apply"' not in look(visitor, "/rewind?to_batch=4&sink=none&assume_stopped=on").text


@pytest.mark.parametrize(
    ("query", "said", "status"),
    [
        ("to_batch=99", "99", 200),
        ("to_batch=x%3Cb%3E", "is not a batch", 422),
        ("to_batch=4&sink=%3Cb%3E", "is not a way to treat a sink", 422),
        ("to_batch=4&sink=restore", "needs a known sink", 422),
        ("to_batch=4&sink_table=a&sink_files=b", "exclude each other", 422),
    ],
)
def test_what_cannot_be_planned_is_said(
    visitor: Visitor, folder: Path, query: str, said: str, status: int
) -> None:
    del folder
    answer = look(visitor, f"/rewind?{query}")
    assert answer.status_code == status
    assert said in answer.text
    assert 'id="apply"' not in answer.text
    assert "<b>" not in answer.text


@pytest.mark.usefixtures("folder")
def test_the_sink_is_told_and_chosen(visitor: Visitor, tmp_path: Path) -> None:
    page = look(visitor, "/rewind?to_batch=4").text
    assert "it is not known where the query writes. Delta and file sinks skip batches" in page
    assert 'id="apply"' not in page
    assert 'name="sink_table"' in page
    assert 'value="none"' in page
    waived = look(visitor).text
    assert "not checked (--sink none)" in waived
    assert 'id="apply"' in waived
    files = tmp_path / "out"
    (files / "_spark_metadata").mkdir(parents=True)
    for batch in range(7):
        (files / f"part-{batch}").write_text("row")
        entry = {"path": f"file://{files}/part-{batch}", "size": 3, "isDir": False}
        entry |= {"modificationTime": 0, "blockReplication": 1, "blockSize": 1, "action": "add"}
        (files / "_spark_metadata" / str(batch)).write_text(f"v1\n{json.dumps(entry)}")
    named = f"/rewind?to_batch=4&sink_files={files}"
    page = look(visitor, named).text
    assert "3 files of data are set aside" in page
    (files_going,) = re.findall(r"(\d+) files go into a backup", page)
    task = rewind(visitor, named)
    assert task.state == DONE, task.problem
    assert f"3 files of data of {files} are set aside." in "".join(task.result.lines)
    assert not (files / "part-5").exists()
    page = look(visitor, "/undo").text
    assert f"3 files of data of {files} come back" in page
    assert f'class="num">{files_going}</td>' in page, "counted as in the plan"
    assert "stays as it is now" in look(visitor, "/undo?leave_sink=on").text
    assert undo(visitor).state == DONE
    assert (files / "part-5").exists()
    # it was named once
    assert "3 files of data are set aside" in look(visitor, "/rewind?to_batch=4").text


@pytest.mark.usefixtures("folder")
def test_several_tables_are_named_line_by_line(visitor: Visitor, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_batches(tmp_path / name, range(7), "copier")
    page = look(visitor, f"/rewind?to_batch=4&sink_table={tmp_path}/a&sink=restore").text
    assert "b was not named" in page
    assert 'id="apply"' not in page
    both = f"{tmp_path}/a%0D%0A{tmp_path}/b"
    task = rewind(visitor, f"/rewind?to_batch=4&sink_table={both}&sink=restore")
    assert task.state == DONE, task.problem
    assert [rows_of(tmp_path / n) for n in ("a", "b")] == [written(range(4), "copier")] * 2
    page = look(visitor, "/undo").text
    assert all(f"The table {tmp_path}/{n} goes back to how it was" in page for n in ("a", "b"))


def test_the_undo_of_a_copy_has_no_button(visitor: Visitor, folder: Path, tmp_path: Path) -> None:
    write_batches(tmp_path / "t", range(7))
    named = f"/rewind?to_batch=4&sink_table={tmp_path}/t&sink=restore"
    assert rewind(visitor, named).state == DONE
    shutil.copytree(folder, folder.with_name("copy"))
    page = look(visitor, "/undo", "copy").text
    assert "an undo would also change" in page
    assert 'id="apply"' not in page
    assert 'id="apply"' in look(visitor, "/undo?leave_sink=on", "copy").text


def test_a_ready_job_is_told_how_to_go_on(visitor: Visitor, folder: Path) -> None:
    (folder / ".ebbtide").mkdir()
    (folder / ".ebbtide" / "pipeline.json").write_text('{"pipeline": "visits-counter"}')
    (_, command), *_ = rewind(visitor).result.next_steps
    home = visitor.context.settings.home
    assert command == f"ebbtide run visits-counter --checkpoint {folder} --home {home}"
    task = undo(visitor)
    assert [command for _, command in task.result.next_steps] == [command]
    page = visitor.get(f"/tasks/{task.id}").text
    assert "<h2>What next</h2>" in page
    assert f'data-copy="{command}"' in page


def interrupt(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, phase: str = steps._LOGS_AWAY
) -> Task:
    """A rewind during which the disk fails."""
    with monkeypatch.context() as patch:

        def fail(self: Any, backup: Any, returning: Any, *, logs: bool) -> None:
            if logs == (phase == steps._LOGS_AWAY):
                raise OSError(28, "No space left on device")
            take(self, backup, returning, logs=logs)

        take = steps.CheckpointChange._take
        patch.setattr(steps.CheckpointChange, "_take", fail)
        return rewind(visitor)


def test_an_interrupted_change_is_finished(
    visitor: Visitor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(folder)
    shown = fields(look(visitor).text)
    task = interrupt(visitor, monkeypatch)
    assert task.state == REFUSED
    assert "was interrupted: No space left on device" in task.problem
    # a plan shown before would be told as done, were the other one finished in its place
    answer = send(visitor, "/rewind", confirm=NAME, **shown)
    assert answer.status_code == 409
    assert "was interrupted" in answer.text
    for path in ("/rewind?to_batch=3", "/undo"):
        page = look(visitor, path).text
        assert "A rewind to batch 4" in page
        assert 'id="apply"' not in page
        assert visitor.place("/finish") in page
    task = ended(visitor, send(visitor, "/finish"))
    assert task.state == DONE, task.problem
    assert "starts again with batch 4" in task.result.lines[0]
    assert undo(visitor).state == DONE
    assert snapshot(folder) == before
    answer = send(visitor, "/finish")
    assert answer.status_code == 409
    assert "is unfinished" in answer.text


def test_nothing_to_undo(visitor: Visitor, folder: Path) -> None:
    del folder
    answer = look(visitor, "/undo")
    assert answer.status_code == 200
    assert "there is nothing to undo" in answer.text
    assert 'id="apply"' not in answer.text


def test_two_undos_of_one_backup(visitor: Visitor, folder: Path) -> None:
    del folder
    rewind(visitor)
    sent = fields(look(visitor, "/undo").text)
    first, second = (ended(visitor, send(visitor, "/undo", confirm=NAME, **sent)) for _ in "ab")
    assert (first.state, second.state) == (DONE, REFUSED)
    assert f"has no backup {sent['backup']}" in second.problem
    rewind(visitor)
    assert len(re.findall('<td data-label="Made">', look(visitor, "/undo").text)) == 2


def test_a_hostile_name_is_text(home: Path) -> None:
    place = old(make(home / "checkpoints" / HOSTILE, Shape("changelog")))
    visitor = Visitor(WebContext(Settings(home=home))).enter()
    for path in (WAIVED, "/undo", "/state", "/state/diff", "/reprocess"):
        page = look(visitor, path, HOSTILE).text
        assert "<img src=x" not in page, path
        assert html.escape(HOSTILE, quote=True).replace("&quot;", "&#34;") in page, path
    sent = fields(look(visitor, name=HOSTILE).text)
    task = ended(visitor, send(visitor, "/rewind", name=HOSTILE, confirm=HOSTILE, **sent))
    assert task.state == DONE, task.problem
    assert not (place / "commits" / "4").exists()
    assert "<img src=x" not in visitor.get(f"/tasks/{task.id}").text


def test_read_only(home: Path, folder: Path) -> None:
    before = snapshot(folder)
    reader = Visitor(WebContext(Settings(home=home), read_only=True)).enter()
    for path in (WAIVED, "/undo", "/reprocess"):
        page = reader.get(reader.place(path)).text
        assert 'method="post"' not in page
    for path in ("/rewind", "/undo", "/finish", "/reprocess", "/reprocess/retry"):
        assert send(reader, path, confirm=NAME, to_batch="4").status_code == 403
    assert snapshot(folder) == before


def test_a_fragment_is_answered_in_place(visitor: Visitor, folder: Path) -> None:
    del folder
    sent = fields(look(visitor).text)
    answer = visitor.post(
        visitor.place("/rewind"), headers={"HX-Request": "true"}, confirm=NAME, **sent
    )
    assert answer.status_code == 200
    assert "<html" not in answer.text
    id_ = re.search(r'data-task="([^"]+)"', answer.text)
    assert id_ is not None
    task = visitor.context.tasks.wait(id_[1])
    done = visitor.fragment(f"/tasks/{task.id}")
    assert 'hx-swap-oob="innerHTML"' in done.text
    assert visitor.fragment(f"/tasks/{task.id}?seen={task.steps}").status_code == 204
    assert visitor.get("/tasks/unknown").status_code == 404
    assert replace(task).name == NAME


def test_why_it_is_refused_is_said_once(visitor: Visitor, folder: Path) -> None:
    del folder
    text = look(visitor, "/rewind?to_batch=4").text
    assert text.count("it is not known where the query writes") == 1
    assert text.count("To look for it: ebbtide sinks") == 1
