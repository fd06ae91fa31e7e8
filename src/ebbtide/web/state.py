"""Show the state of a query in the web UI: after a batch, searched by key, or compared.

The page names the parts and the batches at once; a second request gets the rows when Spark has read
them. The text to search for in a key is never SQL.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide.checkpoint import Checkpoint
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.state import StatePart, parts
from ebbtide.web.context import WebContext
from ebbtide.web.pages import CheckpointPage, checkpoint_route, parse_number
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
    comparing: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str], *, comparing: bool = False) -> StateForm:
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
        return cls(part, batch, before, after, contains, limit, comparing)


@dataclass(frozen=True)
class StateView:
    """What is known before Spark has read anything."""

    form: StateForm
    parts: list[StatePart]
    part: StatePart
    readable: list[int]
    batches: tuple[int, ...]
    """The batch, or the two that are compared."""
    bytes: int
    operator: str
    """The name that Spark gives the operator; empty if its metadata has none."""

    @property
    def title(self) -> str:
        """The part, with the name of its operator."""
        whole, *more = str(self.part).split(", ", 1)
        named = f"{whole.capitalize()} ({self.operator})" if self.operator else whole.capitalize()
        return ", ".join((named, *more))

    @property
    def earlier(self) -> int | None:
        """The batch before, if it can be read."""
        return max((id_ for id_ in self.readable if id_ < self.batches[0]), default=None)

    @property
    def later(self) -> int | None:
        """The batch after, if it can be read."""
        return min((id_ for id_ in self.readable if id_ > self.batches[-1]), default=None)

    def question(self, location: str) -> dict[str, Any]:
        """What the worker is asked about it."""
        names = ("before", "after") if self.form.comparing else ("batch",)
        return {
            "do": "diff" if self.form.comparing else "show",
            "location": location,
            "part": {name: getattr(self.part, name) for name in _NAMES},
            "contains": self.form.contains or None,
            "limit": self.form.limit,
            **dict(zip(names, self.batches, strict=True)),
        }


def routes(context: WebContext) -> list[Route]:
    """The state at a batch, what changed between two, and the rows of both."""
    worker, turns = Worker(context.settings), asyncio.Semaphore(_WAITING)
    context.tasks.at_close(worker.close)

    @lru_cache(_ANSWERS)
    def ask(_version: str, question: str) -> dict[str, Any]:
        return dict(worker.ask(json.loads(question)))

    def shell(page: CheckpointPage) -> Response:
        comparing = page.request.url.path.endswith("/diff")
        view, refusal = None, None
        try:
            form = StateForm.of(page.sent, comparing=comparing)
            view = look(page.snapshot.checkpoint, form)
        except EbbtideError as error:
            refusal = error
            form, view = _keep_form(page, comparing=comparing)
        template = "state_diff.html" if comparing else "state.html"
        values = {"form": form, "view": view, "warm": worker.warm, "typed": page.sent}
        return page.render(template, refusal, **values, links=view and _links(page.snapshot, view))

    async def rows(request: Request) -> Response:
        comparing = request.url.path.endswith("/diff/rows")
        snapshot = await run_in_threadpool(context.snapshots.read, request.path_params["key"])
        form = StateForm.of(request.query_params, comparing=comparing)
        async with turns:
            view = await run_in_threadpool(look, snapshot.checkpoint, form)
            # what a batch's number stands for changes only with the logs
            version = f"{snapshot.checkpoint.logs.digest} {snapshot.timeline.parts}"
            question = json.dumps(view.question(snapshot.location))
            answer = await run_in_threadpool(ask, version, question)
        shown = len(answer["first"])
        count = sum(answer["counts"].values()) if comparing else answer["count"]
        more = shown < count and form.limit < _MOST and _links(snapshot, view)["more"]
        template = "state_changes.html" if comparing else "state_rows.html"
        values: dict[str, Any] = {"form": form, "view": view, "answer": answer}
        values |= {"snapshot": snapshot, "shown": shown, "count": count, "more": more}
        return context.render(request, template, **values)

    paths = ("/state", "/state/diff")
    return [
        *(checkpoint_route(context, path, shell) for path in paths),
        *(Route(f"/checkpoints/{{key}}{path}/rows", rows) for path in paths),
    ]


def look(checkpoint: Checkpoint, form: StateForm) -> StateView:
    """The part and the batches that the form means; raises if they cannot be read. No Spark."""
    every = parts.list_parts(checkpoint)
    named = _given(form.part) or not every
    part = parts.find_part(checkpoint, **form.part) if named else every[0]
    readable = parts.list_readable(checkpoint, part)
    if form.comparing:
        last = parts.require_state(checkpoint, part, form.after)
        earlier = max((id_ for id_ in readable if id_ < last), default=0)
        before = earlier if form.before is None else form.before
        batches: tuple[int, ...] = parts.require_span(checkpoint, part, before, last)
    else:
        batches = (parts.require_state(checkpoint, part, form.batch),)
    size = parts.measure(checkpoint, part, *batches)
    names = (one.name for one in checkpoint.operators if one.id == part.operator)
    return StateView(form, every, part, readable, batches, size, next(names, None) or "")


def _keep_form(page: CheckpointPage, *, comparing: bool) -> tuple[StateForm, StateView | None]:
    """The form after a mistake: with the part and the filter that were chosen, if these exist."""
    form = StateForm({}, comparing=comparing)
    for names in ((*_NAMES, "filter"), ()):
        kept = {name: page.sent[name] for name in names if name in page.sent}
        with suppress(EbbtideError):
            form = StateForm.of(kept, comparing=comparing)
            return form, look(page.snapshot.checkpoint, form)
    return form, None


def _links(snapshot: Snapshot, view: StateView) -> dict[str, Any]:
    form, last = view.form, view.batches[-1]
    base = f"/checkpoints/{snapshot.key}/state"
    place = f"{base}/diff" if form.comparing else base
    names = ("from", "to") if form.comparing else ("batch",)
    text: dict[str, Any] = {"filter": form.contains} if form.contains else {}
    here: dict[str, Any] = {**dict(zip(names, view.batches, strict=True)), **text}

    def at(path: str, part: StatePart = view.part, **fields: Any) -> str:
        return f"{path}?{urlencode({**fields_of(part), **fields})}"

    return {
        "rows": at(f"{place}/rows", **here, limit=form.limit),
        "more": at(f"{place}/rows", **here, limit=form.limit + _STEP * 3),
        "parts": [(str(one), one == view.part, at(place, one, **here)) for one in view.parts],
        "earlier": None if view.earlier is None else at(base, batch=view.earlier, **text),
        "later": None if view.later is None else at(base, batch=view.later, **text),
        "show": at(base, batch=last, **text),
        "diff": at(f"{base}/diff", to=last, **text),
        "fields": fields_of(view.part),
        "place": place,
    }


def fields_of(part: StatePart) -> dict[str, str]:
    """A part as a form names it.

    >>> fields_of(StatePart(0, side="left"))
    {'operator': '0', 'side': 'left'}
    """
    named = _given({name: getattr(part, name) for name in _NAMES})
    return {name: "on" if value is True else str(value) for name, value in named.items()}


def _given(part: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that name a part; 0 is one, too."""
    return {name: v for name, v in part.items() if v is not None and v is not False}


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "").strip()
    number = parse_number(text)
    if text and number is None:
        raise UsageError(f"{text[:40]!r} is not a number.", f"Give {name} as a number.")
    return number
