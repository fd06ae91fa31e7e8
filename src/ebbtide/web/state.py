"""Show the state of a query in the web UI: after a batch, searched by key, or compared.

Which parts and batches there are is known at once; the rows come in a second request, when Spark
has read them. The text to look for in a key is never SQL.
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
from ebbtide.state import StatePart, parts
from ebbtide.web.context import WebContext
from ebbtide.web.rewind import sent, status_of
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.worker import Worker

_STEP, _MOST = 50, 500
_LONGEST_FILTER = 1_000
_ANSWERS = 32
_WAITING = 4
"""How many requests wait for Spark in threads; the others wait without one."""
_NAMES = ("operator", "side", "store", "variable", "timers")


@dataclass(frozen=True)
class StateForm:
    """The fields of the form: the flags of `ebbtide state show` and `diff`."""

    part: Mapping[str, Any]
    batch: int | None = None
    before: int | None = None
    after: int | None = None
    contains: str = ""
    limit: int = _STEP

    @classmethod
    def of(cls, query: Mapping[str, str]) -> StateForm:
        """From the fields of a form.

        >>> StateForm.of({"batch": "3", "operator": "0", "filter": "page"}).part
        {'operator': 0, 'side': None, 'store': None, 'variable': None, 'timers': False}
        """
        part: dict[str, Any] = {name: query.get(name) or None for name in _NAMES}
        part |= {"operator": _number(query, "operator"), "timers": bool(part["timers"])}
        contains = query.get("filter", "").strip()
        if len(contains) > _LONGEST_FILTER:
            raise UsageError("This text is too long to search for.", "Type a part of the key.")
        limit = min(_MOST, max(1, _number(query, "limit") or _STEP))
        batch, before, after = (_number(query, name) for name in ("batch", "from", "to"))
        return cls(part, batch, before, after, contains, limit)

    @property
    def names_part(self) -> bool:
        """Whether the form names a part of the state."""
        return any(value is not None and value is not False for value in self.part.values())


@dataclass(frozen=True)
class StateView:
    """What is known before Spark has read anything."""

    parts: list[StatePart]
    part: StatePart
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


def routes(context: WebContext) -> list[Route]:
    """The state at a batch, what changed between two, and the rows of both."""
    reader = StateReader(context)
    context.tasks.at_close(reader.worker.close)

    async def shell(request: Request) -> Response:
        comparing = request.url.path.endswith("/diff")
        snapshot = await run_in_threadpool(context.snapshots.read, request.path_params["key"])
        refusal: EbbtideError | None = None
        form, view = StateForm({}), None
        try:
            form = StateForm.of(request.query_params)
            view = await run_in_threadpool(look, snapshot.checkpoint, form, comparing=comparing)
        except EbbtideError as error:
            refusal = error
        values = {"snapshot": snapshot, "form": form, "view": view, "refusal": refusal}
        links = view and _links(snapshot, form, view, comparing=comparing)
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
        snapshot = await run_in_threadpool(context.snapshots.read, request.path_params["key"])
        form = StateForm.of(request.query_params)
        answer, view = await reader.read(snapshot, form, comparing=comparing)
        shown = len(answer["first"])
        count = sum(answer["counts"].values()) if comparing else answer["count"]
        links = _links(snapshot, form, view, comparing=comparing)
        more = links["more"] if shown < count and form.limit < _MOST else None
        values: dict[str, Any] = {
            "snapshot": snapshot,
            "form": form,
            "view": view,
            "answer": answer,
        }
        template = "state_changes.html" if comparing else "state_rows.html"
        return context.render(request, template, **values, more=more, shown=shown, count=count)

    path = "/checkpoints/{key}/state"
    return [
        Route(path, shell),
        Route(f"{path}/diff", shell),
        Route(f"{path}/rows", rows),
        Route(f"{path}/diff/rows", rows),
    ]


class StateReader:
    """Asks Spark, and caches its last answers."""

    def __init__(self, context: WebContext) -> None:
        self.worker = Worker(context.settings)
        self._answers: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._limiter: CapacityLimiter | None = None

    async def read(
        self, snapshot: Snapshot, form: StateForm, *, comparing: bool
    ) -> tuple[dict[str, Any], StateView]:
        """The rows, or the changes, and what they are of."""
        if self._limiter is None:  # it belongs to the event loop of the web UI
            self._limiter = CapacityLimiter(_WAITING)
        return await run_sync(
            lambda: self.read_now(snapshot, form, comparing=comparing), limiter=self._limiter
        )

    def read_now(
        self, snapshot: Snapshot, form: StateForm, *, comparing: bool
    ) -> tuple[dict[str, Any], StateView]:
        """As `read`, but blocking."""
        view = look(snapshot.checkpoint, form, comparing=comparing)
        question: dict[str, Any] = {
            "do": "diff" if comparing else "show",
            "location": snapshot.location,
            "part": {name: getattr(view.part, name) for name in _NAMES},
            "contains": form.contains or None,
            "limit": form.limit,
        }
        names = ("before", "after") if comparing else ("batch",)
        question |= dict(zip(names, view.batches, strict=True))
        # what lies under a batch's number changes only with the logs
        name = json.dumps([snapshot.checkpoint.logs.digest, snapshot.timeline.parts, question])
        with self._lock:
            answer = self._answers.get(name)
        if answer is None:
            answer = self.worker.ask(question)
            with self._lock:
                self._answers[name] = answer
                while len(self._answers) > _ANSWERS:
                    self._answers.popitem(last=False)
        return answer, view


def look(checkpoint: Checkpoint, form: StateForm, *, comparing: bool) -> StateView:
    """The part and the batches that the form means; raises if they cannot be read. No Spark."""
    every = parts.list_parts(checkpoint)
    named = form.names_part or not every
    part = parts.find_part(checkpoint, **(form.part if named else {})) if named else every[0]
    readable = parts.list_readable(checkpoint, part)
    if comparing:
        last = parts.require_state(checkpoint, part, form.after)
        earlier = max((id_ for id_ in readable if id_ < last), default=0)
        before = earlier if form.before is None else form.before
        batches: tuple[int, ...] = parts.require_span(checkpoint, part, before, last)
    else:
        batches = (parts.require_state(checkpoint, part, form.batch),)
    return StateView(every, part, readable, batches, parts.measure(checkpoint, part, *batches))


def _links(
    snapshot: Snapshot, form: StateForm, view: StateView, *, comparing: bool
) -> dict[str, Any]:
    """The targets of the links."""
    base = f"/checkpoints/{snapshot.key}/state"
    part = fields_of(view.part)
    text = {"filter": form.contains} if form.contains else {}
    batches = dict(zip(("from", "to") if comparing else ("batch",), view.batches, strict=True))
    place = f"{base}/diff" if comparing else base

    def at(where: str, **fields: Any) -> str:
        return f"{where}?{urlencode(fields)}"

    last = view.batches[-1]
    return {
        "rows": at(f"{place}/rows", **part, **batches, **text, limit=form.limit),
        "more": at(f"{place}/rows", **part, **batches, **text, limit=form.limit + _STEP * 3),
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


def fields_of(part: StatePart) -> dict[str, str]:
    """A part as a form names it.

    >>> fields_of(StatePart(0, side="left"))
    {'operator': '0', 'side': 'left'}
    """
    return sent({name: getattr(part, name) for name in _NAMES})


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"{text[:40]!r} is not a number.", f"Give {name} as a number.")
    return int(text)
