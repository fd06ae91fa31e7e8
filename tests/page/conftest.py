"""What the tests of the page share: one browser, a page to look at, small ones to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser import NoBrowserError, Watch, open_browser
from tests.page.served import Served, serve, shown, visit
from tests.page.stories import IMAGE, SCRIPT, Story, tell

LONG = Story(batches=10_000, wrong=9_960)
SHORT = Story(batches=12, wrong=8)
HOSTILE = Story(batches=12, topic=SCRIPT, operator=SCRIPT, pipeline=IMAGE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(open_browser())
        except NoBrowserError as error:
            pytest.fail(str(error), pytrace=False)
        yield found


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a home with a long, a short and a hostile checkpoint; nobody changes them."""
    with shown(tmp_path_factory.mktemp("large")) as home:
        tell(home / "checkpoints" / "visits-counter", LONG)
        tell(home / "checkpoints" / "visits-short", SHORT)
        tell(home / "checkpoints" / IMAGE, HOSTILE)
        with serve(home) as served:
            yield served


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a short checkpoint, to change."""
    tell(tmp_path / "checkpoints" / "visits-counter", SHORT)
    return tmp_path


@pytest.fixture
def small(home: Path) -> Iterator[Served]:
    """The page of that home."""
    with serve(home) as served:
        yield served


class Windows:
    """Windows of the browser; whatever goes wrong in one of them fails the test."""

    def __init__(self, browser: Browser, stack: ExitStack) -> None:
        self._browser, self._stack = browser, stack
        self._watches: list[Watch] = []

    def open(self, served: Served, path: str = "/", **options: Any) -> Page:
        """A window of its own, signed in."""
        page, watch = self._stack.enter_context(visit(self._browser, served, **options))
        self._watches.append(watch)
        page.goto(f"{served.origin}{path}")
        return page

    def allow(self, *texts: str) -> None:
        """From now on, faults with one of these texts are expected."""
        for watch in self._watches:
            watch.allow(*texts)


@pytest.fixture
def windows(browser: Browser) -> Iterator[Windows]:
    """To look at pages with."""
    with ExitStack() as stack:
        yield Windows(browser, stack)
