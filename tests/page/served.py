"""`ebbtide ui` as a process in, its page in a real browser out: for the tests and the walk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.browser import Watch

SHOTS = "EBBTIDE_SHOTS"
"""Set, the pictures of the documents are taken anew."""
PICTURES = Path(__file__).parents[2] / "docs" / "images" / "ui"
WIDE = (1280, 800)
_TALLEST = 1_000
_LARGEST = 200_000
_START_SECONDS = 60.0
_WAIT_MS = 30_000
"""So long a busy machine may take to show something; Playwright gives it 5 s."""
expect.set_options(timeout=_WAIT_MS)


@dataclass
class Served:
    """A running `ebbtide ui`."""

    process: subprocess.Popen[str]
    link: str
    """Good for one visit."""
    state: Any = None
    """The cookies of that visit, for more contexts."""

    @property
    def origin(self) -> str:
        """Without a path."""
        parts = urlsplit(self.link)
        return f"{parts.scheme}://{parts.netloc}"

    def stop(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(20)


@contextmanager
def serve(home: Path, *flags: str, **environment: str) -> Iterator[Served]:
    """`ebbtide ui`, which knows only the checkpoints of this home."""
    command = [sys.executable, "-m", "ebbtide", "ui", "--no-browser", "--port", "0", "-o", "json"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, "--home", str(home), *flags],
            cwd=home,
            env={**os.environ, "XDG_STATE_HOME": str(home / "state-home"), "LOGNAME": "ann"}
            | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        try:
            said = _read_start(process)
            errors.seek(0)
            assert said, errors.read()
            yield Served(process, json.loads(said)["url"])
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _read_start(process: subprocess.Popen[str]) -> str:
    """What it says first; nothing, or a part, if it ends or takes too long."""
    assert process.stdout is not None
    too_long = threading.Timer(_START_SECONDS, process.kill)
    too_long.start()
    said = ""
    for line in process.stdout:
        said += line
        if line == "}\n":  # the end of its JSON; it goes on serving
            break
    too_long.cancel()
    return said


@contextmanager
def visit(browser: Browser, served: Served, **options: Any) -> Iterator[tuple[Page, Watch]]:
    """A window of its own on the page, signed in; whatever goes wrong in it fails the test."""
    width, height = options.pop("size", WIDE)
    context = browser.new_context(
        viewport={"width": width, "height": height}, storage_state=served.state, **options
    )
    context.set_default_timeout(_WAIT_MS)
    watch = Watch(context)
    try:
        page = context.new_page()
        if served.state is None:
            page.goto(served.link)
            served.state = context.storage_state()
        yield page, watch
        settle(context)
        assert not watch.faults, "\n".join(watch.faults)
    finally:
        context.close()


@contextmanager
def shown(home: Path) -> Iterator[Path]:
    """The home, in pictures for the documents under a name that says nothing of this machine."""
    if not os.environ.get(SHOTS):
        yield home
        return
    named = Path(tempfile.gettempdir()) / "ebbtide"
    named.unlink(missing_ok=True)
    named.symlink_to(home)
    yield named
    named.unlink(missing_ok=True)


def settle(context: BrowserContext) -> None:
    """Let what a page still has to say arrive."""
    with suppress(Exception):
        for page in context.pages:
            page.wait_for_timeout(50)


def shoot(page: Page, name: str, *, whole: bool = False) -> None:
    """A picture of what a person sees, or of the whole page; into the documents, if asked for."""
    page.evaluate("scrollTo(0, 0)" if whole else "0")
    taken = page.screenshot(animations="disabled", caret="hide", full_page=whole)
    if not os.environ.get(SHOTS):
        return
    seen = Image.open(BytesIO(taken))
    picture = seen.crop((0, 0, seen.width, min(seen.height, _TALLEST)))
    PICTURES.mkdir(parents=True, exist_ok=True)
    file = PICTURES / f"{name}.png"
    # a palette that keeps every colour about as it is, also one that few pixels have
    way = Image.Quantize.MAXCOVERAGE
    small = picture.convert("RGB").quantize(256, way, kmeans=3, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
    assert file.stat().st_size < _LARGEST, file


def colours(part: Locator) -> int:
    """How many colours a part of the page has: one, if nothing is drawn there."""
    picture = Image.open(BytesIO(part.screenshot()))
    return len(picture.convert("RGB").getcolors(WIDE[0] * WIDE[1]) or [])


def purple(part: Locator) -> int:
    """How many pixels of a part of the page have the colour of a mark, in light and in dark."""
    picture = Image.open(BytesIO(part.screenshot())).convert("RGB")
    pixels = picture.getcolors(WIDE[0] * WIDE[1]) or []
    return sum(n for n, (r, g, b) in pixels if r - g > 30 and b - g > 30)  # type: ignore[misc]


def open_timeline(page: Page, served: Served, name: str) -> str:
    """From the list to the timeline of a checkpoint, drawn; returns its key."""
    page.goto(served.origin)
    key = find_key(page, name)
    page.goto(f"{served.origin}/checkpoints/{key}")
    page.locator("#timeline canvas").first.wait_for()
    return key


def find_key(page: Page, name: str) -> str:
    """The key of a checkpoint in the list that is open."""
    link = page.locator("a[href^='/checkpoints/']").filter(has_text=name).first
    address = link.get_attribute("href")
    assert address is not None
    return address.removeprefix("/checkpoints/").partition("/")[0].partition("?")[0]
