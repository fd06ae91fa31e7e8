"""Rewind from the batch that went wrong, and undo, on the page."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ebbtide.checkpoint import Journal
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_folder
from tests.browser import check_access
from tests.page.conftest import SHORT, Windows
from tests.page.served import Served, find_key, open_timeline, purple
from tests.page.stories import BROKEN, run_another
from tests.power import cut
from tests.trees import snapshot

NAME = "visits-counter"
assert SHORT.wrong is not None
WRONG: int = SHORT.wrong


@pytest.fixture
def folder(home: Path) -> Path:
    """The checkpoint."""
    return home / "checkpoints" / NAME


def commits(folder: Path) -> list[int]:
    return list(open_folder(str(folder)).ids("commits"))


def plan(page: Page, served: Served, batch: int = WRONG) -> str:
    """The plan of a rewind; returns the checkpoint's key."""
    page.goto(served.origin)
    key = find_key(page, NAME)
    page.goto(f"{served.origin}/checkpoints/{key}/rewind?to_batch={batch}")
    return key


def confirm(page: Page, name: str = NAME) -> None:
    page.get_by_label("to confirm").fill(name)
    page.locator("#apply button").click()


def test_from_the_wrong_batch_and_back(small: Served, windows: Windows, folder: Path) -> None:
    before = snapshot(folder)
    page = windows.open(small)
    open_timeline(page, small, NAME)
    panels = page.locator("#timeline .panel")
    assert [purple(panel) for panel in panels.all()] == [0] * panels.count()
    expect(page.locator("#changes")).to_be_hidden()
    page.get_by_text("The same as a table").click()
    page.locator("#timeline").focus()
    for key in ("End", *["ArrowLeft"] * (SHORT.batches - 1 - WRONG)):
        page.keyboard.press(key)
    expect(page.locator("#timeline-value-broken")).to_have_text(str(BROKEN))
    expect(page.locator(f"#batch-view[data-batch='{WRONG}']")).to_be_visible()
    page.get_by_role("link", name="Rewind from here").click()
    expect(page.locator("#plan")).to_contain_text("4 batches run again")
    expect(page.locator("#sink")).to_contain_text("the console gets the output of batches 8 to 11")
    check_access(page)
    assert snapshot(folder) == before
    # another name changes nothing
    windows.allow("422", "409")
    page.get_by_label("to confirm").fill("visits")
    page.locator("#apply button").click(force=True)
    expect(page.locator("#refusal")).to_be_visible()
    check_access(page)
    assert snapshot(folder) == before
    plan(page, small)
    confirm(page)
    expect(page.locator("#task[data-state=done]")).to_be_visible(timeout=60_000)
    expect(page.locator("#result")).to_contain_text("batch 8")
    expect(page.locator("#next li").first).to_contain_text("ebbtide run visits-counter")
    expect(page.locator("#next").get_by_role("button", name="Copy")).to_be_visible()
    check_access(page)
    assert commits(folder)[-1] == WRONG - 1
    page.get_by_role("link", name="To the timeline").click()
    expect(page.locator("#timeline canvas").first).to_be_visible()
    expect(page.locator("#timeline-value-batch")).to_have_text(str(WRONG))  # is planned again
    check_marks(page, f"Rewind to batch {WRONG} by ann@")
    page.get_by_role("link", name="Undo the last rewind").click()
    expect(page.locator("#undo-plan")).to_be_visible()
    expect(page.locator("#options")).to_have_count(0)  # nothing is left to choose
    expect(page.locator("#backups tbody tr")).to_contain_text(f"rewind to batch {WRONG}")
    check_access(page)
    confirm(page)
    expect(page.locator("#task[data-state=done]")).to_be_visible(timeout=60_000)
    assert snapshot(folder) == before
    open_timeline(page, small, NAME)
    check_marks(page, f"Undo to batch {WRONG} by ann@", f"Rewind to batch {WRONG} by ann@")
    page.get_by_role("link", name="Audit log").click()
    expect(page.get_by_role("table")).to_contain_text("Undo")
    expect(page.get_by_role("table")).to_contain_text("Rewind to batch 8")
    expect(page.get_by_role("link", name=NAME, exact=True).first).to_be_visible()
    check_access(page)


def check_marks(page: Page, *changes: str) -> None:
    """Lines through every panel, and below them the list, the newest first."""
    expect(page.locator("#timeline-changes li")).to_contain_text(list(changes))
    for panel in page.locator("#timeline .panel").all():
        assert purple(panel) > 30
    check_access(page)


def test_two_windows_at_once(small: Served, windows: Windows, folder: Path, home: Path) -> None:
    """Both look at a plan and apply it: one wins, the other is told why."""
    pages = [windows.open(small), windows.open(small)]
    windows.allow("409")
    for page in pages:
        plan(page, small)
        page.get_by_label("to confirm").fill(NAME)
    for page in pages:
        page.evaluate("setTimeout(() => document.querySelector('#apply button').click())")
    ends = [end_of(page) for page in pages]
    assert sorted(end for end, _ in ends) == ["done", "refused"], ends
    (why,) = (text for end, text in ends if end == "refused")
    assert any(word in why for word in ("has changed", "being rewound", "already")), why
    assert commits(folder)[-1] == WRONG - 1
    lines = (folder / ".ebbtide" / "audit.jsonl").read_text().splitlines()
    assert len(lines) == 1, lines
    told = [json.loads(line)["outcome"] for line in (home / "audit.jsonl").read_text().splitlines()]
    assert any("done" in outcome for outcome in told), told
    assert any("refused" in outcome for outcome in told), told


def end_of(page: Page) -> tuple[str, str]:
    """How it ended, and what it says."""
    ended = page.locator("#task[data-state=done], #task[data-state=refused], #refusal, #error")
    ended.first.wait_for(timeout=60_000)
    task = page.locator("#task")
    state = task.get_attribute("data-state") if task.count() else "refused"
    return str(state), page.inner_text("main")


def test_an_old_plan_is_refused(small: Served, windows: Windows, folder: Path) -> None:
    """The query ran on since the plan was shown: nothing is changed."""
    page = windows.open(small)
    windows.allow("409")
    plan(page, small)
    run_another(folder, SHORT)
    for path in folder.rglob("*"):
        os.utime(path, (2_000_000, 2_000_000))
    before = snapshot(folder)
    confirm(page)
    end, text = end_of(page)
    assert end == "refused"
    assert "changed" in text
    assert snapshot(folder) == before


def test_what_the_core_refuses_has_no_button(small: Served, windows: Windows, folder: Path) -> None:
    page = windows.open(small)
    run_another(folder, SHORT)  # just now: it may be running
    plan(page, small)
    expect(page.locator("#refused")).to_contain_text("may be running")
    assert page.locator("#apply").count() == 0
    check_access(page)


def test_an_undo_that_is_refused_has_no_button(
    small: Served, windows: Windows, folder: Path
) -> None:
    """Before a rewind there is nothing to undo; after it, the query may run again."""
    page = windows.open(small)
    key = find_key(page, NAME)
    page.goto(f"{small.origin}/checkpoints/{key}/undo")
    expect(page.locator("#no-backups")).to_contain_text("or the backups were pruned")
    expect(page.locator("[role=alert]:visible")).to_have_count(0)
    check_access(page)
    apply_rewind(plan_rewind(RewindRequest(str(folder), ToBatch(WRONG))))
    (folder / "offsets" / str(WRONG)).touch()
    page.reload()
    expect(page.get_by_role("button", name="Undo the rewind")).to_be_disabled()
    check_access(page)
    page.get_by_label("--assume-stopped").check()
    page.get_by_role("button", name="Look again").click()
    expect(page.get_by_role("button", name="Undo the rewind")).to_be_enabled()


def test_a_sink_that_is_not_known_has_no_button(
    small: Served, windows: Windows, folder: Path
) -> None:
    """Until it is named, or said to accept them again."""
    (folder / ".ebbtide" / "pipeline.json").unlink()
    page = windows.open(small)
    plan(page, small)
    expect(page.locator("#refused")).to_contain_text("it is not known where the query writes")
    assert page.locator("#apply").count() == 0
    expect(page.get_by_label("Delta tables, one on each line")).to_be_visible()
    check_access(page)
    rewind, again = (
        page.get_by_role("button", name=name) for name in (f"Rewind to batch {WRONG}", "Plan again")
    )
    expect(rewind).to_be_disabled()
    expect(again).to_be_disabled()
    page.get_by_label("Folder of files").fill("/data/out")
    expect(again).to_be_enabled()
    page.get_by_label("Folder of files").fill(" ")
    expect(again).to_be_disabled()
    page.get_by_label("It accepts the same batches again").check()
    again.click()
    expect(rewind).to_be_enabled()
    expect(page.locator("#sink")).to_contain_text("not checked (--sink none)")
    confirm(page)
    expect(page.locator("#task[data-state=done]")).to_be_visible(timeout=60_000)
    assert commits(folder)[-1] == WRONG - 1


def test_an_unknown_sink_is_asked_for_at_once(
    small: Served, windows: Windows, folder: Path
) -> None:
    page = windows.open(small)
    form = f"{small.origin}/checkpoints/{find_key(page, NAME)}/rewind"
    page.goto(form)
    expect(page.locator("#options")).to_contain_text("Batches 0 to 11 can run again.")
    expect(page.locator("#sink-fields")).to_have_count(0)
    expect(page.get_by_role("button", name="Show the plan")).to_be_enabled()
    (folder / ".ebbtide" / "pipeline.json").unlink()
    page.goto(form)
    expect(page.locator("#sink-fields")).to_contain_text("Where the query writes is not known")
    expect(page.get_by_role("button", name="Show the plan")).to_be_disabled()
    check_access(page)


def test_an_interrupted_rewind_is_finished(small: Served, windows: Windows, folder: Path) -> None:
    found = plan_rewind(RewindRequest(str(folder), ToBatch(WRONG), assume_stopped=True))
    assert cut(folder, 40, lambda on: apply_rewind(found, assume_stopped=True, folder=on))
    journal = Journal.read(open_folder(str(folder)))
    assert journal is not None
    assert journal.phase > "5", "something has moved"
    page = windows.open(small)
    page.goto(f"{small.origin}/checkpoints/{find_key(page, NAME)}")
    expect(page.locator("#unfinished")).to_contain_text("was interrupted")
    check_access(page)
    page.get_by_role("button", name="Finish it").click()
    expect(page.locator("#task[data-state=done]")).to_be_visible(timeout=60_000)
    assert commits(folder)[-1] == WRONG - 1
    assert Journal.read(open_folder(str(folder))) is None
