"""The page without a browser: a home with small checkpoints, and a visitor."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ebbtide.config import Settings
from ebbtide.history.store import write_entry
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_folder
from ebbtide.web.app import make_app
from ebbtide.web.context import WebContext
from tests.inside import inside, no_waiting_for_the_disk, tmp_path  # noqa: F401
from tests.trees import Shape, make
from tests.unit.history.test_history import entry

ORIGIN = "http://127.0.0.1:8765"
_loop = asyncio.new_event_loop()


class Visitor:
    """Somebody with a browser; a bug in a page is an answer, too."""

    def __init__(self, context: WebContext) -> None:
        self.context = context
        self.app = make_app(context)
        served = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=served, base_url=ORIGIN)

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Any request, as it is."""
        return _loop.run_until_complete(self._client.request(method, path, **more))

    def enter(self) -> Visitor:
        """Open the link."""
        assert self.get(self.context.link).status_code == 303
        return self

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Look at a page."""
        return self.send("GET", path, headers=headers)

    def fragment(self, path: str) -> httpx.Response:
        """What htmx asks for."""
        return self.get(path, **{"HX-Request": "true"})

    def post(self, path: str, headers: Any = None, **fields: str) -> httpx.Response:
        """Send a form of our own page."""
        sent = {"csrf": self.context.session.csrf, **fields}
        return self.send("POST", path, data=sent, headers={"Origin": ORIGIN, **(headers or {})})

    def key(self, name: str = "visits") -> str:
        """The key of a checkpoint."""
        return next(one.key for one in self.context.snapshots.entries() if one.name == name)

    def place(self, path: str = "", name: str = "visits") -> str:
        """The address of a page about a checkpoint."""
        return f"/checkpoints/{self.key(name)}{path}"


@pytest.fixture(autouse=True)
def no_recent_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """What other tests used lately is not known here."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


@pytest.fixture
def home(tmp_path: Path) -> Path:  # noqa: F811
    """A home with one checkpoint of seven batches, the first six recorded."""
    place = make(tmp_path / "home" / "checkpoints" / "visits", Shape())
    for batch in range(6):
        write_entry(open_folder(str(place)), entry(batch))
    for path in place.glob("[oc]*/*"):  # the logs: nobody takes the query for running
        os.utime(path, (1_000_000, 1_000_000))
    age(place)
    return tmp_path / "home"


def age(folder: Path) -> None:
    """Let a folder look as if nothing had changed in it lately."""
    for place, _, _ in os.walk(folder):
        before = os.stat(place)
        os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns - 10**10))


@pytest.fixture
def visitor(home: Path) -> Visitor:
    """Somebody who has opened the link."""
    return Visitor(WebContext(Settings(home=home))).enter()


def rewind(home: Path, batch: int) -> Path:
    """Take the checkpoint back; who asks for it later finds nothing written just now."""
    place = home / "checkpoints" / "visits"
    apply_rewind(
        plan_rewind(RewindRequest(str(place), ToBatch(batch), assume_stopped=True, remedy="none")),
        assume_stopped=True,
    )
    age(place)
    return place


def wait_until(true: Callable[[], object], seconds: float = 60) -> None:
    """Wait for something to become true, but not for ever."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.002)


@contextmanager
def hanging() -> Iterator[int]:
    """The port of a server that accepts, as its system does for it, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=500) as server:
        yield server.getsockname()[1]
