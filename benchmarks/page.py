"""How soon the page of a stream with 10,000 batches answers, against a static page beside it."""

from __future__ import annotations

import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page

from ebbtide.local.broker import free_port
from tests.browser import open_browser
from tests.page.served import WIDE, Served, find_key, serve, visit
from tests.page.stories import Story, tell

NAME = "visits-counter"
_SERVER = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
files = StaticFiles(directory=sys.argv[1], html=True)
app = Starlette(routes=[Mount("/", files)])
uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""
_SCRIPT = """
document.addEventListener('click', async () => {
  const answer = await fetch('batch.html');
  document.querySelector('#batch').innerHTML = await answer.text();
});
"""
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_DRAWN = """() => {
  const canvas = document.querySelector('#timeline canvas');
  if (!canvas?.width) return 0;
  const colours = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return colours.some(value => value) && performance.now();
}"""
_CLICK = """() => new Promise((done, fail) => {
  const place = document.querySelector('#batch');
  let began;
  document.addEventListener(
    'pointerdown', event => { began = event.timeStamp }, {capture: true, once: true});
  const seen = new MutationObserver(() => {
    if (!place.querySelector('#batch-view')) return;
    seen.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
  });
  seen.observe(place, {childList: true, subtree: true});
  setTimeout(() => fail('no batch came'), 10000);
})"""
_ZOOM = """() => new Promise(done => {
  const place = document.querySelector('#timeline .u-over');
  const box = place.getBoundingClientRect();
  const began = performance.now();
  place.dispatchEvent(new WheelEvent('wheel', {deltaY: -120, ctrlKey: true, bubbles: true,
    cancelable: true, clientX: box.x + box.width * 0.9, clientY: box.y + box.height / 2}));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""


@dataclass(frozen=True)
class Speed:
    """Milliseconds, ours and those of the static page."""

    what: str
    ours: list[float]
    static: list[float]

    @property
    def ratio(self) -> float:
        """Median by median."""
        return statistics.median(self.ours) / statistics.median(self.static)

    def __str__(self) -> str:
        ours, static = statistics.median(self.ours), statistics.median(self.static)
        slow = sorted(self.ours)[int(0.95 * (len(self.ours) - 1) + 0.5)]
        return (
            f"{self.what:<26} {ours:>6.0f} ms, 95 % within {slow:.0f} ms: {self.ratio:.2f} × "
            f"the static page's {static:.0f} ms"
        )


def run(*, quick: bool) -> Iterator[str]:
    """first paint, a click on a batch and a step of zoom, as ratios to a static page"""
    batches, rounds, clicks = (500, 2, 3) if quick else (10_000, 9, 40)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    tell(home / "checkpoints" / NAME, Story(batches=batches))
    with serve(home) as served, open_browser() as browser:
        yield f"{batches:,} batches, Chromium {browser.version}"
        yield f"the timeline drawn for the first time: {_first(browser, served):.0f} ms"
        for speed in measure(browser, served, rounds=rounds, clicks=clicks):
            yield str(speed)
    shutil.rmtree(home, ignore_errors=True)


def _first(browser: Browser, served: Served) -> float:
    """Nobody has read the history before."""
    with visit(browser, served) as (page, _):
        page.goto(served.origin)
        url = f"{served.origin}/checkpoints/{find_key(page, NAME)}"
    return float(_look(browser, url, served.state, _painted_and_drawn)[1])


def measure(browser: Browser, served: Served, *, rounds: int, clicks: int) -> list[Speed]:
    """The page of the one checkpoint that the server knows, and a static page, by turns."""
    with visit(browser, served) as (page, _):
        page.goto(served.origin)
        place = f"/checkpoints/{find_key(page, NAME)}"
        texts = {
            "index.html": page.request.get(f"{served.origin}{place}").text(),
            "app.css": page.request.get(f"{served.origin}/static/app.css").text(),
            "batch.html": page.request.get(
                f"{served.origin}{place}/batches/1", headers={"HX-Request": "true"}
            ).text(),
        }
    with _static(texts) as still:
        paints, drawn, loads = _paints(browser, served, place, still, rounds)
        ours = _clicks(browser, f"{served.origin}{place}", served.state, clicks)
        theirs = _clicks(browser, still, None, clicks)
        zooms = _zooms(browser, f"{served.origin}{place}", served.state, clicks)
    return [
        Speed("first paint", paints, loads),
        Speed("the timeline drawn", drawn, loads),
        Speed("a click on a batch", ours, theirs),
        Speed("the same, to first paint", ours, loads),
        Speed("a step of zoom", zooms, loads),
    ]


def _paints(
    browser: Browser, served: Served, place: str, still: str, rounds: int
) -> tuple[list[float], list[float], list[float]]:
    """First paint and the timeline drawn, ours; first paint of the static page; by turns."""
    paints, drawn, loads = [], [], []
    for _ in range(rounds + 1):
        loads.append(_look(browser, still, None, _painted))
        both = _look(browser, f"{served.origin}{place}", served.state, _painted_and_drawn)
        paints.append(both[0])
        drawn.append(both[1])
    return paints[1:], drawn[1:], loads[1:]  # the first warms up


def _look(browser: Browser, url: str, state: Any, see: Callable[[Page], Any]) -> Any:
    """What is seen in a window of its own, which has nothing in its cache."""
    width, height = WIDE
    context = browser.new_context(viewport={"width": width, "height": height}, storage_state=state)
    page = context.new_page()
    page.goto(url)
    found = see(page)
    context.close()
    return found


def _painted(page: Page) -> float:
    return float(page.wait_for_function(_PAINTED).json_value())


def _painted_and_drawn(page: Page) -> tuple[float, float]:
    drawn = float(page.wait_for_function(_DRAWN).json_value())
    return _painted(page), drawn


def _clicks(browser: Browser, url: str, state: Any, clicks: int) -> list[float]:
    """From the press of the button to the frame that shows the batch."""

    def see(page: Page) -> list[float]:
        left, right, y = 40.0, 740.0, 400.0
        if state is not None:
            page.wait_for_function(_DRAWN)
            panel = page.locator("#timeline .panel").nth(1).locator(".u-over")
            panel.scroll_into_view_if_needed()
            box = panel.bounding_box()
            assert box is not None
            left, right, y = box["x"], box["x"] + box["width"], box["y"] + box["height"] / 2
        rng = random.Random(5)
        found = []
        for _ in range(clicks + 1):
            page.evaluate("document.querySelector('#batch').replaceChildren()")
            seen = page.evaluate_handle(f"({{done: ({_CLICK})()}})")
            page.mouse.click(rng.uniform(left + 5, right - 5), y)
            found.append(float(page.evaluate("({done}) => done", seen)))
        return found[1:]

    return list(_look(browser, url, state, see))


def _zooms(browser: Browser, url: str, state: Any, steps: int) -> list[float]:
    """From a turn of the wheel to the frame that shows it."""

    def see(page: Page) -> list[float]:
        page.wait_for_function(_DRAWN)
        return [float(page.evaluate(_ZOOM)) for _ in range(min(steps, 10))]

    return list(_look(browser, url, state, see))


@contextmanager
def _static(texts: dict[str, str]) -> Iterator[str]:
    """The same page as files, without scripts but the one that a click needs; its address."""
    with tempfile.TemporaryDirectory(prefix="ebbtide-static-") as folder:
        page = re.sub(r"<script.*?</script>|<link rel=.icon.*?>", "", texts["index.html"])
        page = re.sub(r'href="[^"]*app\.css[^"]*"', 'href="app.css"', page)
        page = re.sub(r"<link[^>]*vendor[^>]*>", "", page)
        page = page.replace("</body>", '<script src="click.js"></script></body>')
        for name, text in (texts | {"index.html": page, "click.js": _SCRIPT}).items():
            (Path(folder) / name).write_text(text, "utf-8")
        port = free_port()
        server = subprocess.Popen([sys.executable, "-c", _SERVER, folder, str(port)])
        url = f"http://127.0.0.1:{port}/"
        try:
            _wait(url)
            yield url
        finally:
            server.kill()
            server.wait()


def _wait(url: str) -> None:
    for _ in range(200):
        try:
            httpx.get(url)
        except httpx.TransportError:  # noqa: PERF203 - until it is there
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(url)
