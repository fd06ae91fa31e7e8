"""Reprocess a range of event time from the web UI: plan, compare, write, and retry what failed.

The command line does the work in a child process, and its events are read line by line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.responses import Response
from starlette.routing import Route

from ebbtide.config import Settings
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.reprocessing import ReprocessRequest, events, list_runs, load_run
from ebbtide.systems import READY
from ebbtide.times import EPOCH, in_utc, parse_time
from ebbtide.web.context import WebContext
from ebbtide.web.filters import format_count
from ebbtide.web.pages import CheckpointPage, TextForm, checkpoint_route
from ebbtide.web.subprocesses import run_module
from ebbtide.web.tasks import DONE, FAILED, REFUSED, Command, Task

_TITLES = {
    "plan": "Plan to reprocess {}",
    "compare": "Compare {} with a reprocess",
    "execute": "Reprocess {}",
}
_SHOWN_CHANGES = 200
_LONGEST, _LONGEST_REASON = 2_000, 300
_LONGEST_FIELD = 500
_RUNS = 10


@dataclass(frozen=True)
class ReprocessForm(TextForm):
    """The form as it was filled in."""

    pipeline: str = ""
    start: str = ""
    end: str = ""
    chunk: str = ""
    what: str = ""
    only_changed: str = ""

    @classmethod
    def of(cls, sent: Mapping[str, Any], pipeline: str = "") -> ReprocessForm:
        """From the fields of a form; a range that was dragged comes in milliseconds.

        >>> form = {"start": "1756969200000", "end": "2025-09-04T07:10"}
        >>> ReprocessForm.of(form, "visits-counter").start
        '2025-09-04T07:00:00.000Z'
        """
        form = cls.read(sent)
        for name, text in form.given.items():
            if len(text) > _LONGEST_FIELD or "\0" in text:
                raise UsageError(f"This is not a valid {name}.", "Type it again.")
        return replace(
            form,
            pipeline=form.pipeline or pipeline,
            start=_parse_moment(form.start),
            end=_parse_moment(form.end),
            what=form.what or "plan",
        )

    def request(self, settings: Settings) -> ReprocessRequest:
        """What is asked for; raises if it is incomplete or not possible."""
        if self.what not in _TITLES:
            raise UsageError(f"{self.what!r} is unknown.", f"Choose {', '.join(_TITLES)}.")
        for name in ("pipeline", "start", "end"):
            if not getattr(self, name):
                raise UsageError(f"The {name} is missing.", "Fill it in.")
        return ReprocessRequest.parse(
            *(settings, self.pipeline, self.start, self.end),
            chunk=self.chunk or None,
            only_changed=bool(self.only_changed),
            compare=self.what == "compare",
            execute=self.what == "execute",
        )


@dataclass(frozen=True)
class ReprocessResult:
    """What is shown of a reprocess: filled by its events."""

    plan: Mapping[str, Any] | None = None
    run: str | None = None
    finished: events.RunFinished | None = None
    """None until all chunks have run, and for a plan."""

    @property
    def changes(self) -> list[tuple[str, str, str, str]]:
        """Start, verdict, which result, was → is."""
        changes = self.finished.summary.diff.changes if self.finished else ()
        return [
            (one.start or "", one.verdict, _cut(one.identify()), _cut(one.describe()))
            for one in changes[:_SHOWN_CHANGES]
        ]

    @property
    def points(self) -> Mapping[str, Sequence[Any]] | None:
        """By columns: `at` in milliseconds since 1970, `old` and `new`."""
        return _columns(self.finished.summary.diff.points) if self.finished else None


def update_task(task: Task, line: str) -> Task:
    """The task after one more line of the child process."""
    try:
        event = events.read_event(line)
    except ValueError:
        return task.with_lines(line)  # a print in the pipeline's own code
    task = task.with_lines(*event.lines())
    result = task.result or ReprocessResult()
    match event:
        case events.ReprocessPlanned(plan):
            return replace(task, result=replace(result, plan=plan.to_dict()))
        case events.RunStarted(run, done):
            result = replace(result, run=run.id)
            return replace(task, result=result, done=done, total=len(run.chunks))
        case events.ChunkFinished(_, done, total):
            return replace(task, done=done, total=total)
        case events.RunFinished():
            run_id = event.summary.run.id if event.executed else None
            task = replace(task, result=replace(result, run=run_id, finished=event))
            return _describe_failures(task, event) if event.exit_code else task
        case events.PlanRefused(check):
            problem, next_step = event.problem, check.next
        case events.ErrorRaised(problem, next_step):
            pass
        case _:
            return task
    return replace(task, ending=REFUSED, problem=problem, next_step=next_step)


def _describe_failures(task: Task, event: events.RunFinished) -> Task:
    """The task after a run in which chunks failed: how many, why, and how to go on."""
    summary = event.summary
    first, failed = summary.failed[0], len(summary.failed)
    what = f"{failed:,} of {format_count(len(summary.run.chunks), 'chunk')} failed"
    line = (first.error or "").strip().partition("\n")[0]
    problem = f"{what}; chunk {first.number}: {_cut(line, _LONGEST_REASON)}"
    next_step = event.lines()[-1] if event.executed else ""
    return replace(task, ending=FAILED, problem=problem, next_step=next_step)


def routes(context: WebContext) -> list[Route]:
    """The form, the work, and the retry of what failed."""
    return [
        checkpoint_route(context, "/reprocess", _show),
        checkpoint_route(context, "/reprocess", _start, "POST"),
        checkpoint_route(context, "/reprocess/retry", _retry, "POST"),
    ]


def _show(page: CheckpointPage, refusal: EbbtideError | None = None) -> Response:
    owner, settings = page.snapshot.owner, page.context.settings
    name = "" if owner.is_attached else owner.pipeline or ""
    form, command = ReprocessForm(name if name in READY else ""), None
    try:
        form = ReprocessForm.of(page.sent, form.pipeline)
    except EbbtideError as error:
        refusal = error
    with suppress(EbbtideError):  # the form may not be complete yet
        command = form.request(settings).command_line(settings)
    tasks = [task for task in page.context.tasks.of(page.snapshot.key) if task.kind == "reprocess"]
    return page.render(
        "reprocess.html",
        refusal,
        form=form,
        ready=tuple(READY),
        runs=list_runs(settings, name, _RUNS) if name else [],
        tasks=tasks,
        planned=next((task for task in tasks if _is_plan_of(task, form)), None),
        command=command,
        timezone=settings.timezone,
    )


def _is_plan_of(task: Task, form: ReprocessForm) -> bool:
    """Whether a task has planned or compared what the form asks for."""
    sent = dict(parse_qsl(urlsplit(task.again).query))
    if task.state != DONE or sent.get("what") == "execute":
        return False
    return ReprocessForm.of(sent) == replace(form, what=sent.get("what", ""))


def _start(page: CheckpointPage) -> Response:
    settings = page.context.settings
    try:
        form = ReprocessForm.of(page.sent)
        words = form.request(settings).words(settings)
        if form.what == "execute":
            page.require_confirmation()
    except EbbtideError as error:
        page.log_refusal("reprocess", error)
        return _show(page, error)
    title = f"{_TITLES[form.what].format(form.pipeline)}, {form.start} to {form.end}"
    return page.start("reprocess", title, _make_command(words), urlencode(form.given))


def _retry(page: CheckpointPage) -> Response:
    settings = page.context.settings
    run = load_run(settings, str(page.sent.get("run", "")))
    return page.start("reprocess", f"Retry {run.id}", _make_command(run.words(settings)))


def _make_command(words: Sequence[str]) -> Command:
    name, *flags = words
    return Command((*run_module("ebbtide"), name, "--events", "--yes", *flags), update_task)


def _parse_moment(text: str) -> str:
    """A time as typed; milliseconds since 1970, as the timeline has them, as a time.

    >>> _parse_moment("1756969200000"), _parse_moment("2025-09-04 07:00")
    ('2025-09-04T07:00:00.000Z', '2025-09-04 07:00')
    """
    return in_utc(int(text)) if text.isascii() and text.isdigit() and len(text) > 10 else text


def _columns(points: Sequence[tuple[str, float | None, float | None]]) -> dict[str, list[Any]]:
    """Points of all chunks in the order of time; those of one time together.

    >>> _columns([("1970-01-01T00:00:01.000Z", 1, None)])
    {'at': [1000], 'old': [1], 'new': [None]}
    """
    pairs: dict[int, list[float | None]] = {}
    for start, *values in points:
        at = parse_time(start) - EPOCH
        pair = pairs.setdefault(round(at.total_seconds() * 1000), [None, None])
        for index, value in enumerate(values):
            if value is not None and math.isfinite(value):
                pair[index] = value + (pair[index] or 0)
    ordered = sorted(pairs)
    old, new = ([pairs[at][index] for at in ordered] for index in (0, 1))
    return {"at": ordered, "old": old, "new": new}


def _cut(text: str, longest: int = _LONGEST) -> str:
    """What is shown of a text, and how long it is if that is not all."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… (cut: {longest:,} of {len(text):,} characters)"
