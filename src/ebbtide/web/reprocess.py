"""A checkpoint's pipeline and a range in, the same logic over the archive out, and what differs.

The work is the command line's own, in a child process: planned, compared or written, chunk by
chunk, and what failed once more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide.config import Settings
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.reprocess.diff import VERDICTS, Change
from ebbtide.reprocess.events import REFUSED, Progress
from ebbtide.reprocess.journal import COMPLETE, list_runs, load_run
from ebbtide.systems.jobs import READY
from ebbtide.times import EPOCH, in_utc, parse_time
from ebbtide.web.context import Context
from ebbtide.web.progress import answer_started
from ebbtide.web.rewind import note_refusal, sent, status_of, wrong_name
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.subprocesses import run_module
from ebbtide.web.tasks import Command

PLAN, COMPARE, EXECUTE = "plan", "compare", "execute"
WHATS = (PLAN, COMPARE, EXECUTE)
_FLAGS = {PLAN: (), COMPARE: ("--compare",), EXECUTE: ("--execute", "--yes")}
_TITLES = {
    PLAN: "Plan to reprocess {}",
    COMPARE: "Compare {} with a reprocess",
    EXECUTE: "Reprocess {}",
}
_SHOWN_CHANGES = 200
_LONGEST = 2_000
_LONGEST_FIELD = 500
_RUNS = 10


@dataclass(frozen=True)
class Wish:
    """What the form says: the flags of `ebbtide reprocess`."""

    pipeline: str = ""
    start: str = ""
    end: str = ""
    only_changed: bool = False
    chunk: str = ""
    what: str = PLAN

    @classmethod
    def of(cls, form: Mapping[str, Any], pipeline: str = "") -> Wish:
        """From the fields of a form; a range that was dragged comes in milliseconds.

        >>> Wish.of({"start": "1756969200000", "end": "2025-09-04T07:10"}, "visits-counter").start
        '2025-09-04T07:00:00.000Z'
        """
        names = ("pipeline", "start", "end", "chunk", "what")
        texts = {name: str(form.get(name) or "").strip() for name in names}
        for name, text in texts.items():
            if len(text) > _LONGEST_FIELD or "\0" in text:
                raise UsageError(f"This is no {name}.", "Type it again.")
        return cls(
            texts["pipeline"] or pipeline,
            _moment(texts["start"]),
            _moment(texts["end"]),
            bool(form.get("only_changed")),
            texts["chunk"],
            texts["what"] or PLAN,
        )

    def words(self, settings: Settings) -> tuple[str, ...]:
        """The arguments of the command line; no field can pass for a flag."""
        return (
            "reprocess",
            f"--event-time-start={self.start}",
            f"--event-time-end={self.end}",
            *(["--only-changed"] if self.only_changed else []),
            *([f"--chunk={self.chunk}"] if self.chunk else []),
            *_FLAGS[self.what],
            *_place(settings),
            f"--timezone={settings.timezone}",
            *("--", self.pipeline),
        )

    def require(self) -> None:
        """Refuse what cannot be asked for; the rest the command line tells."""
        if self.what not in WHATS:
            raise UsageError(f"{self.what!r} is not known.", f"Choose {', '.join(WHATS)}.")
        for name, value in (("pipeline", self.pipeline), ("start", self.start), ("end", self.end)):
            if not value:
                raise UsageError(f"The {name} is missing.", "Fill it in.")
        for value in (self.start, self.end):
            parse_time(value)


@dataclass(frozen=True)
class Result:
    """What a reprocess or its plan said, as far as it is shown."""

    plan: Mapping[str, Any] | None
    status: str | None
    """None of a plan alone."""
    run: str | None
    written: int
    counts: Mapping[str, int]
    changes: tuple[tuple[str, str, str], ...]
    """Start, verdict, was → is."""
    differ: int
    chunks: Sequence[Mapping[str, Any]]
    points: Mapping[str, Sequence[Any]]
    """By columns: `at` in milliseconds since 1970, `old` and `new`."""

    @classmethod
    def of(cls, found: Mapping[str, Any] | None, run: str | None) -> Result:
        """From the JSON of the command line, and the run that it said it has begun."""
        if found is None or "status" not in found:
            return cls(found, None, run, 0, {}, (), 0, (), _columns([]))
        counts = {verdict: found["counts"].get(verdict, 0) for verdict in VERDICTS}
        changes = (Change(**change) for change in found["changes"][:_SHOWN_CHANGES])
        return cls(
            plan=found["plan"],
            status=found["status"],
            run=found["run"] or run,
            written=found["written"],
            counts=counts,
            changes=tuple((c.start or "", c.verdict, _cut(c.describe())) for c in changes),
            differ=sum(counts.values()) - counts["unchanged"],
            chunks=found["chunks"],
            points=_columns(found["points"]),
        )


def routes(context: Context) -> list[Route]:
    """The form, the work, and once more what failed."""

    async def show(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.catalogue.snapshot, request.path_params["key"])
        return await _show(context, request, snapshot, request.query_params)

    async def start(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.catalogue.snapshot, request.path_params["key"])
        form = await request.form()
        try:
            wish = Wish.of(form)
            wish.require()
            if wish.what == EXECUTE and str(form.get("confirm", "")).strip() != snapshot.name:
                raise wrong_name(snapshot)
        except EbbtideError as error:
            note_refusal(context, "reprocess", snapshot, error)
            return await _show(context, request, snapshot, form, error)
        title = _TITLES[wish.what].format(wish.pipeline)
        return await _begin(
            context, request, snapshot, f"{title}, {wish.start} to {wish.end}", wish
        )

    async def retry(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.catalogue.snapshot, request.path_params["key"])
        form = await request.form()
        run = await run_in_threadpool(load_run, context.settings, str(form.get("run", "")))
        return await _begin(context, request, snapshot, f"Retry {run.id}", run.id)

    path = "/checkpoints/{key}/reprocess"
    return [
        Route(path, show),
        Route(path, start, methods=["POST"]),
        Route(f"{path}/retry", retry, methods=["POST"]),
    ]


async def _begin(
    context: Context, request: Request, snapshot: Snapshot, title: str, what: Wish | str
) -> Response:
    settings = context.settings
    words = (
        what.words(settings)
        if isinstance(what, Wish)
        else ("retry", "--yes", *_place(settings), "--", what)
    )
    progress = Progress()
    command = Command(
        (*run_module("ebbtide"), words[0], "--output=json", *words[1:]),
        progress=progress.read,
        read=lambda found: Result.of(found, progress.run),
        refusals=("Error: ", REFUSED),
    )
    fields = sent(asdict(what)) if isinstance(what, Wish) else {}
    again = f"/checkpoints/{snapshot.key}/reprocess?{urlencode(fields)}"
    task = await run_in_threadpool(
        lambda: context.tasks.start(
            "reprocess", title, snapshot.key, command, target=snapshot.location, again=again
        )
    )
    return answer_started(context, request, task)


async def _show(
    context: Context,
    request: Request,
    snapshot: Snapshot,
    form: Mapping[str, Any],
    refusal: EbbtideError | None = None,
) -> Response:
    name = str(snapshot.owner.pipeline or "")
    wish = Wish(name if name in READY else "")
    try:
        wish = Wish.of(form, wish.pipeline)
    except EbbtideError as error:
        refusal = error
    runs = await run_in_threadpool(list_runs, context.settings, name, _RUNS) if name else []
    complete = wish.pipeline and wish.start and wish.end and wish.what in WHATS
    values = {"snapshot": snapshot, "wish": wish, "refusal": refusal, "ready": tuple(READY)}
    return context.render(
        request,
        "reprocess.html",
        status_of(refusal, request.method),
        **values,
        runs=[(run, status, status != COMPLETE) for run, status in runs],
        tasks=[task for task in context.tasks.of(snapshot.key) if task.kind == "reprocess"],
        command=_say_command(wish, context.settings) if complete else None,
        timezone=context.settings.timezone,
    )


def _say_command(wish: Wish, settings: Settings) -> str:
    return "ebbtide " + " ".join(map(quote, wish.words(settings)))


def _place(settings: Settings) -> list[str]:
    """Where the command line works: our home and our broker, whatever its environment says."""
    found = [f"--home={settings.home.absolute()}"]
    if settings.bootstrap_servers:
        found.append(f"--bootstrap-servers={settings.bootstrap_servers}")
    return found


def _moment(text: str) -> str:
    """A time as typed; milliseconds since 1970, as the timeline has them, as a time.

    >>> _moment("1756969200000"), _moment("2025-09-04 07:00")
    ('2025-09-04T07:00:00.000Z', '2025-09-04 07:00')
    """
    return in_utc(int(text)) if text.isascii() and text.isdigit() and len(text) > 10 else text


def _columns(points: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Points of all chunks in the order of time; those of one time together.

    >>> _columns([{"start": "1970-01-01T00:00:01.000Z", "old": 1, "new": None}])
    {'at': [1000], 'old': [1], 'new': [None]}
    """
    found: dict[int, list[float | None]] = {}
    for point in points:
        at = parse_time(point["start"]) - EPOCH
        pair = found.setdefault(round(at.total_seconds() * 1000), [None, None])
        for index, value in enumerate((point["old"], point["new"])):
            if value is not None and math.isfinite(value):
                pair[index] = value + (pair[index] or 0)
    ordered = sorted(found)
    return {
        "at": list(ordered),
        "old": [found[at][0] for at in ordered],
        "new": [found[at][1] for at in ordered],
    }


def _cut(text: str) -> str:
    """What is shown of a text, and how long it is if that is not all."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… (cut: {_LONGEST:,} of {len(text):,} characters)"
