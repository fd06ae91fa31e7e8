"""A job that is not a pipeline, and that `ebbtide.attach` follows, on the page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ebbtide.registry import note_use
from ebbtide.rewind.holders import RUN
from ebbtide.rewind.lease import hold_lease
from ebbtide.storage import open_writable
from tests.browser import check_access
from tests.leases import plant
from tests.outputs import shown, write_files
from tests.page.conftest import SHORT, Windows
from tests.page.served import Served, find_key, open_timeline, serve
from tests.page.stories import tell
from tests.trees import snapshot

NAME = "pages-by-window"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its checkpoint, which lies outside of the home, and is used by an attached job."""
    folder = tell(tmp_path / "job" / NAME, SHORT)
    out = tmp_path / "job" / "out"
    write_files(out, range(SHORT.batches))
    note = {
        "pipeline": "pages",
        "source": {"kind": "kafka"},
        "sink": {"kind": "files", "name": str(out), "path": str(out)},
        "location": str(folder.resolve()),
    }
    (folder / ".ebbtide" / "pipeline.json").write_text(json.dumps({**note, "is_attached": True}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / "state-home"))
    note_use(str(folder))
    return folder


@pytest.fixture
def served(tmp_path: Path, folder: Path) -> Iterator[Served]:
    """A page that knows the checkpoint only because the job noted that it uses it."""
    assert folder.is_dir()
    with serve(tmp_path / "home") as served:
        yield served


def test_it_says_which_query_it_is(served: Served, windows: Windows, folder: Path) -> None:
    page = windows.open(served)
    row = page.locator("#checkpoints tbody tr")
    expect(row).to_contain_text([f"{NAME} query pages{folder}"])
    expect(row).to_contain_text(["stopped"])
    check_access(page)
    open_timeline(page, served, NAME)
    facts = page.locator("#facts")
    expect(facts).to_contain_text("Querypages")
    expect(facts).to_contain_text(f"Writes to{folder.parent / 'out'}")
    expect(facts).to_contain_text("the checkpoint loses no batch until it runs on")
    check_access(page)


def test_nothing_is_offered_that_takes_a_pipeline(served: Served, windows: Windows) -> None:
    page = windows.open(served)
    key = open_timeline(page, served, NAME)
    expect(page.locator("#facts")).to_contain_text("Writes to")
    for text in ("Reprocess", "Choose a range", "Reprocess this range …"):
        expect(page.get_by_text(text, exact=True)).to_be_hidden()
    page.goto(f"{served.origin}/checkpoints/{key}/batches/8")
    expect(page.get_by_role("link", name="Rewind from here")).to_be_visible()
    expect(page.get_by_role("link", name="Reprocess")).to_have_count(0)
    page.goto(f"{served.origin}/checkpoints/{key}/reprocess")
    expect(page.locator("main")).to_contain_text("This query is not a pipeline.")
    check_access(page)


def confirm(page: Page) -> None:
    page.get_by_label("to confirm").fill(NAME)
    page.locator("#apply button").click()
    expect(page.locator("#task[data-state=done]")).to_be_visible(timeout=60_000)


def test_its_sink_goes_back_with_it(served: Served, windows: Windows, folder: Path) -> None:
    out, before = folder.parent / "out", snapshot(folder)
    page = windows.open(served)
    key = open_timeline(page, served, NAME)
    page.goto(f"{served.origin}/checkpoints/{key}/rewind?to_batch=8")
    expect(page.locator("#sink")).to_contain_text("would skip batches 8 to 11, so its log goes")
    expect(page.locator("#sink_files")).to_have_count(0)  # nobody is asked
    confirm(page)
    expect(page.locator("#next")).to_contain_text("Start the query again as you started it")
    assert shown(out) == [f"old {batch} {n}" for batch in range(8) for n in range(2)]
    page.get_by_role("link", name="Undo").click()
    confirm(page)
    assert snapshot(folder) == before
    assert len(shown(out)) == 2 * SHORT.batches


def test_while_it_runs_it_is_refused(served: Served, windows: Windows, folder: Path) -> None:
    before = snapshot(folder)
    with hold_lease(open_writable(str(folder)), RUN):
        page = windows.open(served)
        key = open_timeline(page, served, NAME)
        running = f"process {os.getpid()}"
        expect(page.locator("#facts")).to_contain_text(running)
        page.goto(f"{served.origin}/checkpoints/{key}/rewind?to_batch=8")
        refused = page.locator("#refused")
        expect(refused).to_contain_text(f"the query is running ({running}).")
        expect(refused).to_contain_text("Stop it first.")
        expect(page.locator("#apply")).to_have_count(0)
        check_access(page)
    assert snapshot(folder) == before


def test_a_run_elsewhere_says_when_it_was_seen(
    served: Served, windows: Windows, folder: Path
) -> None:
    """A lease that its host may still renew, then a query that has just written."""
    plant(open_writable(str(folder)))
    page = windows.open(served, size=(400, 800))
    row = page.locator("#checkpoints tbody tr")
    expect(row).to_contain_text(["on host elsewhere"])
    expect(row).to_contain_text(["Last renewed at 1970-01-01 00:00:01 UTC"])
    key = find_key(page, NAME)
    (folder / ".ebbtide" / "leases" / "1.json").unlink()
    (folder / "offsets" / str(SHORT.batches - 1)).touch()
    page.goto(f"{served.origin}/checkpoints/{key}")
    expect(page.locator("#facts")).to_contain_text("may be running")
    expect(page.locator("#facts")).to_contain_text("without a write, it counts as stopped at 20")
    check_access(page)
