"""Show the plan of a rewind in the web UI, and apply it.

The plan that is applied is the one that was shown: the web UI remembers it for a while, and the
core refuses it if anything has changed since.
"""

from __future__ import annotations

import secrets
import shlex
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response
from starlette.routing import Route

from ebbtide.checkpoint import Backup
from ebbtide.checks import CheckKind
from ebbtide.config import Settings
from ebbtide.errors import EbbtideError
from ebbtide.local import require_connection
from ebbtide.report import messages
from ebbtide.rewind import RewindPlan, RewindRequest, apply_rewind, lease, plan_rewind
from ebbtide.systems import READY
from ebbtide.web.context import WebContext
from ebbtide.web.pages import CheckpointPage, TextForm, checkpoint_route
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.tasks import Advance

_REMEMBERED = 50


@dataclass(frozen=True)
class RewindForm(TextForm):
    """The fields of the form, named as the flags of `ebbtide rewind`.

    >>> RewindForm.read({"to_batch": " 5", "replan": "on", "other": "x"}).given
    {'to_batch': '5', 'replan': 'on'}
    """

    to_batch: str = ""
    replan: str = ""
    sink: str = ""
    sink_table: str = ""
    sink_files: str = ""
    assume_stopped: str = ""


@dataclass(frozen=True)
class ShownPlan:
    """A plan that somebody looks at, and what it was made for."""

    id: str
    key: str
    form: RewindForm
    request: RewindRequest
    plan: RewindPlan


@dataclass(frozen=True)
class ChangeResult:
    """What a rewind or an undo has done, as lines of text."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    next_steps: tuple[tuple[str, str], ...] = ()
    """What to do, and the command to type for it."""
    can_undo: bool = True


def routes(context: WebContext) -> list[Route]:
    """The plan, and its application."""
    plans: dict[str, ShownPlan] = {}
    return [
        checkpoint_route(context, "/rewind", partial(_show, plans)),
        checkpoint_route(context, "/rewind", partial(_start, plans), "POST"),
    ]


def _show(
    plans: dict[str, ShownPlan],
    page: CheckpointPage,
    refusal: EbbtideError | None = None,
    shown: ShownPlan | None = None,
) -> Response:
    form = RewindForm.read(page.sent)
    try:
        if shown is None and form.to_batch and page.snapshot.interrupted is None:
            shown = _plan(page, form)
            plans[shown.id] = shown
            for old in list(plans)[:-_REMEMBERED]:
                plans.pop(old, None)
    except EbbtideError as error:
        refusal = error
    return page.render("rewind.html", refusal, form=form, shown=shown, **_describe(shown))


def _start(plans: dict[str, ShownPlan], page: CheckpointPage) -> Response:
    snapshot, settings = page.snapshot, page.context.settings
    form = RewindForm.read(page.sent)
    RewindRequest.parse(snapshot.location, settings.timezone, **form.given)
    shown = plans.get(str(page.sent.get("plan", "")))
    if shown and (shown.key, shown.form) != (snapshot.key, form):
        shown = None
    try:
        if shown is None:
            raise EbbtideError(
                "The web UI no longer has the plan that you looked at.",
                "Look at this new one, and apply it.",
            )
        if snapshot.interrupted is not None and not _is_changing(snapshot):
            # the core would finish that change, and we would report it as this one
            raise snapshot.interrupted.interrupted(snapshot.location)
        page.require_confirmation()
    except EbbtideError as error:
        page.log_refusal(f"rewind to batch {form.to_batch}", error)
        return _show(plans, page, error, shown)
    title = f"Rewind to batch {shown.plan.first_batch}"
    work = partial(_apply, settings, snapshot, shown)
    return page.start("rewind", title, work, urlencode(form.given))


def _is_changing(snapshot: Snapshot) -> bool:
    """Whether somebody is rewinding the checkpoint right now, or undoing that."""
    change = lease.read_lease(snapshot.checkpoint.folder, lease.CHANGE)
    return change is not None and change.holder() is not None


def _plan(page: CheckpointPage, form: RewindForm) -> ShownPlan:
    key, settings = page.snapshot.key, page.context.settings
    request = RewindRequest.parse(page.snapshot.location, settings.timezone, **form.given)
    plan = plan_rewind(request, connection=require_connection(settings))
    return ShownPlan(secrets.token_urlsafe(12), key, form, request, plan)


def _describe(shown: ShownPlan | None) -> dict[str, Any]:
    if shown is None:
        return {"plan": None}
    plan = shown.plan
    sink = plan.sink.sink if plan.sink else None
    return {
        "plan": plan,
        "target": messages.format_target(plan),
        "amount": messages.format_amount(plan),
        "partition_columns": messages.PARTITION_COLUMNS,
        "partitions": messages.list_partitions(plan),
        "sizes": messages.group_sizes(plan.bytes),
        "sink_check": next((c for c in plan.checks if c.kind is CheckKind.SINK), None),
        "other_checks": [check for check in plan.checks if check.kind is not CheckKind.SINK],
        "remedies": sink.remedies if sink else (),
        "ask_sink": sink is None or not sink.is_known,
        "command": shown.request.execute_command(plan.first_batch),
    }


def _apply(
    settings: Settings, snapshot: Snapshot, shown: ShownPlan, advance: Advance
) -> ChangeResult:
    backup = apply_rewind(
        shown.plan,
        connection=require_connection(settings),
        assume_stopped=shown.request.assume_stopped,
        on_file=advance,
    )
    return describe_rewound(backup, snapshot, settings)


def describe_rewound(backup: Backup, snapshot: Snapshot, settings: Settings) -> ChangeResult:
    """What a rewind has done, and how to start the query again."""
    lines = (
        messages.format_rewound(backup, snapshot.location),
        messages.format_query_id(backup),
        messages.format_sink(backup),
    )
    return ChangeResult(
        tuple(filter(None, lines)),
        tuple(messages.format_others(backup)),
        (_run_again(snapshot, settings),),
    )


def _run_again(snapshot: Snapshot, settings: Settings) -> tuple[str, str]:
    """How to start the query again: the command to type, if it is a ready job."""
    name = str(snapshot.owner.pipeline or "")
    if name not in READY:
        return "Start the query again as you started it before.", ""
    command = ["ebbtide", "run", name]
    if str(settings.checkpoint(name).absolute()) != snapshot.location:
        command += ["--checkpoint", snapshot.location]
    if settings.home != Settings.home:
        command += ["--home", str(settings.home.absolute())]
    if settings.bootstrap_servers:
        command += ["--bootstrap-servers", settings.bootstrap_servers]
    return "Run the query again:", shlex.join(command)
