"""With 10,000 batches the page is about as quick as a static one in the same browser."""

from __future__ import annotations

from playwright.sync_api import Browser

from benchmarks.page import measure
from tests.page.served import Served

LIMITS = {
    "first paint": 4,
    "the timeline drawn": 12,
    "a click on a batch": 8,
    "the same, to first paint": 2,
    "a step of zoom": 2,
}
"""At least three times what `python -m benchmarks page` finds, as other tests run beside."""


def test_the_page_is_quick(large: Served, browser: Browser) -> None:
    found = measure(browser, large, rounds=5, clicks=15)
    said = "\n".join(map(str, found))
    assert [speed.what for speed in found] == list(LIMITS)
    assert all(speed.ratio < LIMITS[speed.what] for speed in found), said
