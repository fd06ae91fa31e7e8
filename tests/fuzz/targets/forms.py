"""Requests to the web UI: any path, query, header and form; also pages about damaged notes."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

from ebbtide.config import Settings
from ebbtide.errors import EbbtideError
from ebbtide.web.app import make_app
from ebbtide.web.context import WebContext
from ebbtide.web.reprocess import ReprocessForm
from ebbtide.web.safety import Safety
from ebbtide.web.state import StateForm
from tests.fuzz.target import Target, scratch
from tests.hostile import make_case
from tests.trees import Shape


class PageError(AssertionError):
    """The web UI has answered with 500: a traceback in its terminal."""


class _Site:
    """The web UI of a home with one checkpoint that has all notes, and somebody who is let in."""

    def __init__(self, name: str) -> None:
        self.home = scratch() / name
        (self.home / "checkpoints").mkdir(parents=True)
        os.environ["XDG_STATE_HOME"] = str(self.home / "state")
        os.environ.pop("EBBTIDE_HOME", None)
        case = make_case(
            self.home / "checkpoints", Shape("changelog", 4, partitions=1, operator_metadata="v1")
        )
        self.folder = case.checkpoint
        self.context = WebContext(Settings(home=self.home))
        self.app: Safety = make_app(self.context)
        self.loop = asyncio.new_event_loop()
        self.key = next(one.key for one in self.context.snapshots.entries() if one.name == "c")

    def send(self, method: str, target: str, body: bytes = b"", *more: tuple[bytes, bytes]) -> int:
        """Send a request; the status of the answer."""
        path, _, query = target.partition("?")
        session = self.context.session
        headers = [
            (b"host", b"127.0.0.1:8765"),
            (b"origin", b"http://127.0.0.1:8765"),
            (b"cookie", f"ebbtide-8765={session.cookie}".encode()),
            (b"x-csrf-token", session.csrf.encode()),
            (b"content-type", b"application/x-www-form-urlencoded"),
            *more,
        ]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "root_path": "",
            "raw_path": path.encode("utf-8", "surrogatepass"),
            "headers": headers,
            "query_string": query.encode("utf-8", "surrogatepass"),
            "client": None,
            "server": None,
        }
        return self.loop.run_until_complete(self._ask(scope, body))

    async def _ask(self, scope: dict[str, Any], body: bytes) -> int:
        status: list[int] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            status.extend([message["status"]] if message["type"] == "http.response.start" else [])

        await self.app(scope, receive, send)
        return status[0]


@cache
def _site(name: str) -> _Site:
    return _Site(name)


def _reaches_out(text: str) -> bool:
    """Whether a request may open a place elsewhere, start Spark, or confirm a change."""
    lower = text.lower()
    words = ("://", "%3a%2f%2f", "::", "%3a%3a", "confirm", "/rows", "records", "reprocess")
    return any(word in lower for word in words)


def _request(data: bytes) -> None:
    """The method and the path in the first line, a header in the second, then the body."""
    first, _, rest = data.partition(b"\n")
    header, _, body = rest.partition(b"\n")
    method, _, target = first.decode("utf-8", "replace").partition(" ")
    name, _, value = header.partition(b":")
    site = _site("web")
    _read_forms(target.partition("?")[2], body)
    if _reaches_out(f"{target} {body.decode('utf-8', 'replace')}"):
        return
    more = ((name.strip().lower(), value.strip()),) if name.strip() else ()
    status = site.send(method[:20] or "GET", target.replace("KEY", site.key), body, *more)
    if status >= 500 and status not in (501, 503):
        raise PageError(f"{status} for {method} {target}")


def _read_forms(query: str, body: bytes) -> None:
    """The forms of pages that would start Spark, without the pages."""
    for text in (query, body.decode("utf-8", "replace")):
        with suppress(ValueError):
            sent = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=1000))
            with suppress(EbbtideError):
                ReprocessForm.of(sent).request(Settings()).words(Settings())
            for comparing in (False, True):
                with suppress(EbbtideError):
                    StateForm.of(sent, comparing=comparing)


_PAGES = ("", "/facts", "/timeline.json", "/batches/2", "/rewind?to_batch=2", "/undo")
_NOTES = (
    *(".ebbtide/pipeline.json", ".ebbtide/timeline.json", ".ebbtide/audit.jsonl"),
    *(".ebbtide/history/000000000001.jsonl", ".ebbtide/query-ids.json", "commits/2", "offsets/2"),
    *(".ebbtide/fork.json", ".ebbtide/change.json"),
)


def _show_damaged(data: bytes) -> None:
    """Pages of a checkpoint of which the first byte chooses the file that is damaged."""
    site = _site("damaged")
    file = site.folder / _NOTES[(data[0] if data else 0) % len(_NOTES)]
    before = file.read_bytes() if file.is_file() else None
    file.write_bytes(data[1:])
    try:
        site.context.snapshots._cached.clear()
        for page in _PAGES:
            status = site.send("GET", f"/checkpoints/{site.key}{page}")
            if status >= 500 and status not in (501, 503):
                raise PageError(f"{status} for {page} with {file.name}")
        if (status := site.send("GET", "/audit")) >= 500 and status != 503:
            raise PageError(f"{status} for /audit with {file.name}")
    finally:
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)


def _notes() -> list[bytes]:
    folder = _site("damaged").folder
    return [
        bytes([at]) + ((folder / name).read_bytes() if (folder / name).is_file() else b'{"a":1}')
        for at, name in enumerate(_NOTES)
    ]


_REQUESTS = (
    b"GET /\n\n",
    b"GET /checkpoints/KEY\nHX-Request: true\n",
    b'GET /checkpoints/KEY/facts?row=1\nIf-None-Match: "a"\n',
    b"GET /checkpoints/KEY/batches/2\n\n",
    b"GET /checkpoints/KEY/rewind?to_batch=2&replan=on&sink=restore&assume_stopped=on\n\n",
    b"POST /checkpoints/KEY/rewind\n\nto_batch=2&plan=x&sink_files=%2Ftmp%2Fs&assume_stopped=on",
    b"POST /checkpoints/KEY/undo\n\nbackup=b1&leave_sink=on",
    b"POST /checkpoints/KEY/finish\n\na=1",
    b"POST /checkpoints\nHX-Request: true\nlocation=%2Fnone%2Fhere",
    b"POST /checkpoints/KEY/forget\n\n",
    b"POST /checkpoints/KEY/remember\n\n",
    b"GET /checkpoints/KEY/state?batch=2&operator=0&key=a&limit=5\n\n",
    b"GET /checkpoints/KEY/state/diff?from=1&to=2\n\n",
    b"GET /checkpoints/KEY/reprocess?start=1756969200000&end=2025-09-04T07:10&chunk=PT1H\n\n",
    b"GET /audit\n\n",
    b"GET /static/../app.py\n\n",
    b"GET /tasks/abc.json\n\n",
    b"GET /open?token=a\nCookie: a=b\n",
)
TARGETS = (
    Target("web-request", lambda: list(_REQUESTS), _request, share=6, largest=1 << 13, native=True),
    Target("web-page", _notes, _show_damaged, share=1, largest=1 << 13, native=True),
)
