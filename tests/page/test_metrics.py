"""The metrics on a checkpoint's page: live, and what is open stays open."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.page.conftest import SHORT, Windows
from tests.page.served import Served, open_timeline
from tests.page.stories import run_another


def test_they_follow_the_stream(small: Served, home: Path, windows: Windows) -> None:
    page = windows.open(small)
    open_timeline(page, small, "visits-counter")
    last = page.locator("#metrics-values tr", has_text="ebbtide_last_batch{").locator("td").nth(1)
    page.locator("#metrics-raw summary").click()
    expect(last).to_have_text("11")
    assert page.locator("#metrics .tile svg path").count() >= 5
    assert run_another(home / "checkpoints" / "visits-counter", SHORT) == 12
    expect(last).to_have_text("12", timeout=60_000)
    # of a good stream a tile says nothing special; six batches of this one had broken records
    broken = page.locator("#metrics .alarm")
    expect(broken).to_contain_text("Broken records")
    expect(broken).to_contain_text("0 to 400 in 13 batches")
    assert last.is_visible(), "the list is still open"
    expect(page.locator("#metrics .tiles")).to_contain_text("batch 12")
