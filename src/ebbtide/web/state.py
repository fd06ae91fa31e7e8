"""A checkpoint in, what its query remembers out: a store at a batch, a key in it, two compared.

Which parts and batches there are is known at once; the rows come in a second request, when Spark
has read them. What to look for in a key is plain text, never SQL.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide.checkpoint import Checkpoint
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.state.parts import (
    Part,
    find_part,
    list_parts,
    list_readable,
    measure,
    require_span,
    require_state,
)
from ebbtide.web.context import Context
from ebbtide.web.rewind import sent, status_of
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.worker import Worker

_STEP, _MOST = 50, 500
_LONGEST_FILTER = 1_000
_ANSWERS = 32
_WAITING = 4
"""So many requests wait for Spark in threads; the others wait without one."""
_NAMES = ("operator", "side", "store", "variable", "timers")


@dataclass(frozen=True)
class Wish:
    """What is to be seen: the flags of `ebbtide state show` and `diff`."""

    part: Mapping[str, Any]
    batch: int | None = None
    before: int | None = None
    after: int | None = None
    contains: str = ""
    limit: int = _STEP

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Wish:
        """From the fields of a form.

        >>> Wish.of({"batch": "3", "operator": "0", "filter": "page"}).part
        {'operator': 0, 'side': None, 'store': None, 'variable': None, 'timers': False}
        """
        part: dict[str, Any] = {name: query.get(name) or None for name in _NAMES}
        part |= {"operator": _number(query, "operator"), "timers": bool(part["timers"])}
        contains = query.get("filter", "").strip()
        if len(contains) > _LONGEST_FILTER:
            raise UsageError("This is too long to look for.", "Type a part of the key.")
        limit = min(_MOST, max(1, _number(query, "limit") or _STEP))
        batch, before, after = (_number(query, name) for name in ("batch", "from", "to"))
        return cls(part, batch, before, after, contains, limit)

    @property
    def names_part(self) -> bool:
        """Whether a part of the state is asked for by name."""
        return any(value is not None and value is not False for value in self.part.values())


@dataclass(frozen=True)
class View:
    """What can be said before Spark has read anything."""

    parts: list[Part]
    part: Part
    readable: list[int]
    batches: tuple[int, ...]
    """The batch, or the two that are compared."""
    bytes: int

    @property
    def earlier(self) -> int | None:
        """The batch before, if it can be read."""
        return max((id_ for id_ in self.readable if id_ < self.batches[0]), default=None)

    @property
    def later(self) -> int | None:
        """The batch after, if it can be read."""
        return min((id_ for id_ in self.readable if id_ > self.batches[-1]), default=None)


def routes(context: Context) -> list[Route]:
    """The state at a batch, what changed between two, and the rows of both."""
    reader = Reader(context)
    context.tasks.at_close(reader.worker.close)

    async def shell(request: Request) -> Response:
        comparing = request.url.path.endswith("/diff")
        snapshot = await run_in_threadpool(context.catalogue.snapshot, request.path_params["key"])
        refusal: EbbtideError | None = None
        wish, view = Wish({}), None
        try:
            wish = Wish.of(request.query_params)
            view = await run_in_threadpool(look, snapshot.checkpoint, wish, comparing=comparing)
        except EbbtideError as error:
            refusal = error
        values = {"snapshot": snapshot, "wish": wish, "view": view, "refusal": refusal}
        links = view and _links(snapshot, wish, view, comparing=comparing)
        template = "state_diff.html" if comparing else "state.html"
        return context.render(
            request,
            template,
            status_of(refusal, request.method),
            **values,
            links=links,
            warm=reader.worker.warm,
        )

    async def rows(request: Request) -> Response:
        comparing = request.url.path.endswith("/diff/rows")
        snapshot = await run_in_threadpool(context.catalogue.snapshot, request.path_params["key"])
        wish = Wish.of(request.query_params)
        found, view = await reader.read(snapshot, wish, comparing=comparing)
        shown = len(found["first"])
        count = sum(found["counts"].values()) if comparing else found["count"]
        links = _links(snapshot, wish, view, comparing=comparing)
        more = links["more"] if shown < count and wish.limit < _MOST else None
        values: dict[str, Any] = {"snapshot": snapshot, "wish": wish, "view": view, "found": found}
        template = "state_changes.html" if comparing else "state_rows.html"
        return context.render(request, template, **values, more=more, shown=shown, count=count)

    path = "/checkpoints/{key}/state"
    return [
        Route(path, shell),
        Route(f"{path}/diff", shell),
        Route(f"{path}/rows", rows),
        Route(f"{path}/diff/rows", rows),
    ]


class Reader:
    """Asks Spark, and remembers what it said last."""

    def __init__(self, context: Context) -> None:
        self.worker = Worker(context.settings)
        self._answers: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._limiter: CapacityLimiter | None = None

    async def read(
        self, snapshot: Snapshot, wish: Wish, *, comparing: bool
    ) -> tuple[dict[str, Any], View]:
        """The rows, or the changes, and what they are of."""
        if self._limiter is None:  # it belongs to the loop that serves the page
            self._limiter = CapacityLimiter(_WAITING)
        return await run_sync(
            lambda: self.read_now(snapshot, wish, comparing=comparing), limiter=self._limiter
        )

    def read_now(
        self, snapshot: Snapshot, wish: Wish, *, comparing: bool
    ) -> tuple[dict[str, Any], View]:
        """As `read`; blocks."""
        view = look(snapshot.checkpoint, wish, comparing=comparing)
        question: dict[str, Any] = {
            "do": "diff" if comparing else "show",
            "location": snapshot.location,
            "part": {name: getattr(view.part, name) for name in _NAMES},
            "contains": wish.contains or None,
            "limit": wish.limit,
        }
        names = ("before", "after") if comparing else ("batch",)
        question |= dict(zip(names, view.batches, strict=True))
        # what lies under a batch's number changes only with the logs
        name = json.dumps([snapshot.checkpoint.logs.digest, snapshot.timeline.parts, question])
        with self._lock:
            known = self._answers.get(name)
        if known is None:
            known = self.worker.ask(question)
            with self._lock:
                self._answers[name] = known
                while len(self._answers) > _ANSWERS:
                    self._answers.popitem(last=False)
        return known, view


def look(checkpoint: Checkpoint, wish: Wish, *, comparing: bool) -> View:
    """Which part and which batches are meant, or why they cannot be read; no Spark."""
    parts = list_parts(checkpoint)
    named = wish.names_part or not parts
    part = find_part(checkpoint, **(wish.part if named else {})) if named else parts[0]
    readable = list_readable(checkpoint, part)
    if comparing:
        last = require_state(checkpoint, part, wish.after)
        earlier = max((id_ for id_ in readable if id_ < last), default=0)
        before = earlier if wish.before is None else wish.before
        batches: tuple[int, ...] = require_span(checkpoint, part, before, last)
    else:
        batches = (require_state(checkpoint, part, wish.batch),)
    return View(parts, part, readable, batches, measure(checkpoint, part, *batches))


def _links(snapshot: Snapshot, wish: Wish, view: View, *, comparing: bool) -> dict[str, Any]:
    """Where each link of the page leads."""
    base = f"/checkpoints/{snapshot.key}/state"
    part = fields_of(view.part)
    text = {"filter": wish.contains} if wish.contains else {}
    batches = dict(zip(("from", "to") if comparing else ("batch",), view.batches, strict=True))
    place = f"{base}/diff" if comparing else base

    def at(where: str, **fields: Any) -> str:
        return f"{where}?{urlencode(fields)}"

    last = view.batches[-1]
    return {
        "rows": at(f"{place}/rows", **part, **batches, **text, limit=wish.limit),
        "more": at(f"{place}/rows", **part, **batches, **text, limit=wish.limit + _STEP * 3),
        "parts": [
            (str(one), one == view.part, at(place, **fields_of(one), **batches, **text))
            for one in view.parts
        ],
        "earlier": None if view.earlier is None else at(base, **part, batch=view.earlier, **text),
        "later": None if view.later is None else at(base, **part, batch=view.later, **text),
        "show": at(base, **part, batch=last, **text),
        "diff": at(f"{base}/diff", **part, to=last, **text),
        "fields": part,
        "place": place,
    }


def fields_of(part: Part) -> dict[str, str]:
    """A part as a form names it.

    >>> fields_of(Part(0, side="left"))
    {'operator': '0', 'side': 'left'}
    """
    return sent({name: getattr(part, name) for name in _NAMES})


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"{text[:40]!r} is no number.", f"Give {name} as a number.")
    return int(text)
