"""The list of checkpoints: searched, sorted and forgotten; and every page on a telephone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Page, expect

from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from tests.browser import check_access
from tests.page.conftest import SHORT, Windows
from tests.page.served import Served, find_key, serve
from tests.page.stories import Story, tell
from tests.power import cut
from tests.trees import Shape, make, snapshot

LONG_NAME = "a-name-that-describes-everything-that-the-query-does-and-who-owns-it-and-why"


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Served]:
    """One that is fine, one that is interrupted, one that is broken, and two with one name."""
    folders = tmp_path / "checkpoints"
    tell(folders / "visits-counter", SHORT)
    tell(folders / LONG_NAME, Story(batches=12, wrong=11, pipeline=LONG_NAME))
    interrupted = tell(folders / "interrupted", Story(batches=20))
    plan = plan_rewind(RewindRequest(str(interrupted), ToBatch(8), assume_stopped=True))
    assert cut(interrupted, 40, lambda on: apply_rewind(plan, assume_stopped=True, folder=on))
    (make(folders / "broken", Shape()) / "offsets" / "3").write_text("v9")
    twins = [tmp_path / job / "checkpoint" for job in ("a", "b")]
    for place, query in zip(twins, ("orders", "pages"), strict=True):
        tell(place, Story(batches=15, pipeline=query))
    with serve(tmp_path, *map(str, twins)) as served:
        yield served


def names(page: Page) -> list[str]:
    """The checkpoints that are shown, from top to bottom."""
    links = page.locator("#checkpoints tbody tr:visible th a")
    return links.all_inner_texts()


def open_list(windows: Windows, served: Served, **options: Any) -> Page:
    page = windows.open(served, **options)
    expect(page.locator("#checkpoints tbody tr[data-status]")).to_have_count(6)
    return page


def test_it_is_searched_filtered_and_sorted(many: Served, windows: Windows) -> None:
    page = open_list(windows, many)
    everything = [LONG_NAME, "broken", "a/checkpoint", "b/checkpoint", "interrupted"]
    everything.append("visits-counter")
    assert names(page) == everything
    row = page.get_by_role("row").filter(has_text=LONG_NAME)
    expect(row).to_contain_text("400 broken records in batch 11")
    expect(page.locator(".chip:visible")).to_have_text(["1 broken", "1 interrupted", "4 stopped"])
    check_access(page)
    page.get_by_role("searchbox").fill("ORDERS")
    assert names(page) == ["a/checkpoint"]
    expect(page.locator("#list-count")).to_have_text("1 of 6 checkpoints")
    page.get_by_role("searchbox").fill("no such thing")
    page.get_by_role("button", name="Show all").click()
    assert names(page) == everything
    page.get_by_role("button", name="1 interrupted").click()
    assert names(page) == ["interrupted"]
    page.reload()  # the address has it
    expect(page.locator("#checkpoints tbody tr[data-status]")).to_have_count(6)
    assert names(page) == ["interrupted"]
    page.get_by_role("button", name="1 interrupted").click()
    page.get_by_role("button", name="Status").click()
    assert names(page)[:2] == ["broken", "interrupted"]
    page.get_by_role("button", name="Checkpoint", exact=True).click()
    page.get_by_role("button", name="Checkpoint", exact=True).click()
    assert names(page) == ["visits-counter", "interrupted", "broken", *names(page)[3:]]
    head = page.locator("th", has=page.get_by_role("button", name="Checkpoint", exact=True))
    expect(head).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="Lag").click()
    assert names(page)[-1] == "broken", "without a value it comes last"
    check_access(page)


def test_one_is_forgotten_and_put_back(many: Served, windows: Windows, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "checkpoints" / "broken")
    page = open_list(windows, many)
    page.get_by_role("button", name="Forget broken").click()
    expect(page.locator("#checkpoints")).to_contain_text("Nothing on disk has changed.")
    check_access(page)
    page.get_by_role("button", name="Put it back").click()
    expect(page.locator("#checkpoints tbody tr[data-status=broken]")).to_be_visible()
    page.get_by_role("button", name="Forget broken").click()
    expect(page.locator("#checkpoints")).to_contain_text("Nothing on disk has changed.")
    page.reload()
    expect(page.locator("#checkpoints tbody tr[data-status]")).to_have_count(5)
    assert "broken" not in names(page)
    assert snapshot(tmp_path / "checkpoints" / "broken") == before


SCREENS = (
    *("/batches/11", "/batches/11/records", "/batches/999", "/rewind", "/rewind?to_batch=11"),
    *("/undo", "/reprocess", "/metrics", "/state", "/state?batch=99", "/state/diff"),
)


def test_every_screen_fits_a_telephone(many: Served, windows: Windows, tmp_path: Path) -> None:
    """At 400 pixels nothing goes over the edge, whatever the names."""
    lines = [{"at": "2026-01-05T10:00:00Z", "by": "ann", "action": "open", "target": LONG_NAME * 3}]
    (tmp_path / "audit.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    page = open_list(windows, many, size=(400, 800))
    windows.allow("404", "409", "422", "501", "503")
    keys = [find_key(page, name) for name in (LONG_NAME, "interrupted", "broken")]
    fits(page, "the list")
    for path in ("/audit", "/nothing", *(f"/checkpoints/{key}" for key in keys)):
        page.goto(f"{many.origin}{path}")
        fits(page, path)
    for path in SCREENS:
        page.goto(f"{many.origin}/checkpoints/{keys[0]}{path}")
        fits(page, path)
    page.goto(f"{many.origin}/checkpoints/{keys[0]}/rewind?to_batch=11")
    page.get_by_label("to confirm").fill(LONG_NAME)
    page.locator("#apply button").click()
    expect(page.locator("#task[data-state=done]")).to_be_visible()
    fits(page, "the task")
    place = str(tmp_path / "checkpoints" / LONG_NAME)
    apply_rewind(plan_rewind(RewindRequest(place, ToBatch(9), assume_stopped=True)))
    page.goto(f"{many.origin}/checkpoints/{keys[0]}/undo")
    expect(page.locator("#backups tbody tr")).to_have_count(2)
    fits(page, "the undo")


def fits(page: Page, what: str) -> None:
    """Nothing goes over the edge, once all parts of the page have come."""
    expect(page.get_by_text("Reading …")).to_have_count(0)
    root = "document.documentElement"
    try:
        page.wait_for_function(f"() => {root}.scrollWidth <= {root}.clientWidth", timeout=5_000)
    except Error:
        wide = page.evaluate(
            """[...document.querySelectorAll('main *')].filter(
                e => e.getBoundingClientRect().right > 401 && !e.closest('.scroll')
            ).map(e => e.outerHTML.slice(0, 120)).slice(0, 5)"""
        )
        raise AssertionError(f"{what} is too wide: {wide}") from None
    check_access(page)
