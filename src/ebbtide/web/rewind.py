"""Plan, apply and undo a rewind in the web UI, or finish one that was interrupted.

The plan that is applied is the one that was shown: the web UI remembers it for a while, and the
core refuses it if anything has changed since.
"""

from __future__ import annotations

import secrets
import shlex
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response
from starlette.routing import Route

from ebbtide import rewind
from ebbtide.checkpoint import Backup, Journal, read_checkpoint, read_logs
from ebbtide.checks import REFUSE, Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors import connector_of
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.local import require_connection
from ebbtide.report import messages
from ebbtide.storage import open_folder
from ebbtide.systems import READY
from ebbtide.web.context import WebContext
from ebbtide.web.pages import CheckpointPage, TextForm, checkpoint_route
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.tasks import Advance

_REMEMBERED = 50
_NOTHING_LEFT = (
    "Nothing is left to finish: it had moved nothing yet and was taken back, or somebody else "
    "has finished it meanwhile."
)


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

    def request(self, page: CheckpointPage) -> rewind.RewindRequest:
        """What the form asks for; raises if it is not valid."""
        location, zone = page.snapshot.location, page.context.settings.timezone
        tables = [line.strip() for line in self.sink_table.splitlines() if line.strip()]
        given: dict[str, Any] = {**self.given, "sink_table": tables}
        return rewind.RewindRequest.parse(location, zone, **given)


@dataclass(frozen=True)
class UndoForm(TextForm):
    """The fields of the form, named as the flags of `ebbtide undo`."""

    backup: str = ""
    leave_sink: str = ""
    assume_stopped: str = ""

    def format_command(self, location: str) -> str:
        """The command that does the same."""
        words = ["--backup", self.backup] if self.backup else []
        words += ["--leave-sink"] if self.leave_sink else []
        words += ["--assume-stopped"] if self.assume_stopped else []
        return f"{messages.undo_command(location)} {shlex.join(words)}".rstrip()


@dataclass(frozen=True)
class ShownPlan:
    """A plan that somebody looks at, and what it was made for."""

    id: str
    key: str
    form: RewindForm
    request: rewind.RewindRequest
    plan: rewind.RewindPlan


@dataclass(frozen=True)
class ChangeResult:
    """What a rewind or an undo has done, as lines of text."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    next_steps: tuple[tuple[str, str], ...] = ()
    """What to do, and the command to type for it."""
    can_undo: bool = True


def routes(context: WebContext) -> list[Route]:
    """The plan and its application, the undo, and the end of an interrupted change."""
    plans: dict[str, ShownPlan] = {}
    return [
        checkpoint_route(context, "/rewind", partial(_show_plan, plans)),
        checkpoint_route(context, "/rewind", partial(_start_rewind, plans), "POST"),
        checkpoint_route(context, "/undo", _show_undo),
        checkpoint_route(context, "/undo", _start_undo, "POST"),
        checkpoint_route(context, "/finish", _start_finish, "POST"),
    ]


def _show_plan(
    plans: dict[str, ShownPlan],
    page: CheckpointPage,
    refusal: EbbtideError | None = None,
    shown: ShownPlan | None = None,
) -> Response:
    form = RewindForm.read(page.sent)
    try:
        if shown is None and form.to_batch and page.snapshot.interrupted is None:
            key, settings = page.snapshot.key, page.context.settings
            wanted = form.request(page)
            plan = rewind.plan_rewind(wanted, connection=require_connection(settings))
            shown = ShownPlan(secrets.token_urlsafe(12), key, form, wanted, plan)
            plans[shown.id] = shown
            for old in list(plans)[:-_REMEMBERED]:
                plans.pop(old, None)
    except EbbtideError as error:
        refusal = error
    values = {"ask_sink": not page.snapshot.sinks, **_describe(shown)}
    choice = _describe_choice(page.snapshot)
    return page.render("rewind.html", refusal, form=form, shown=shown, choice=choice, **values)


def _start_rewind(plans: dict[str, ShownPlan], page: CheckpointPage) -> Response:
    snapshot, settings = page.snapshot, page.context.settings
    form = RewindForm.read(page.sent)
    wanted = form.request(page)  # raises before anything else is checked
    shown = plans.get(str(page.sent.get("plan", "")))
    if shown and (shown.key, shown.request) != (snapshot.key, wanted):
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
        return _show_plan(plans, page, error, shown)
    plan, stopped = shown.plan, shown.request.assume_stopped

    def work(advance: Advance) -> ChangeResult:
        connection = require_connection(settings)
        backup = rewind.apply_rewind(
            plan, connection=connection, assume_stopped=stopped, on_file=advance
        )
        return _describe_rewound(backup, snapshot, settings)

    title = f"Rewind to batch {plan.first_batch}"
    return page.start("rewind", title, work, urlencode(form.given))


def _is_changing(snapshot: Snapshot) -> bool:
    """Whether somebody is rewinding the checkpoint right now, or undoing that."""
    change = rewind.lease.read_lease(snapshot.checkpoint.folder, rewind.lease.CHANGE)
    return change is not None and change.holder() is not None


def _describe_choice(snapshot: Snapshot) -> str:
    """Which batches a rewind can go to."""
    oldest, batches = snapshot.windows.oldest, snapshot.checkpoint.logs.batches
    if oldest is None or not batches:
        return "No batch can run again."
    return f"Batches {oldest:,} to {batches[-1].id:,} can run again. The timeline shows them."


def _describe(shown: ShownPlan | None) -> dict[str, Any]:
    if shown is None:
        return {"plan": None, "remedies": ()}
    plan = shown.plan
    sinks = [(connector_of(one.sink.kind).sink, one.sink) for one in plan.sinks]
    return {
        "plan": plan,
        "target": messages.format_target(plan),
        "amount": messages.format_amount(plan),
        "partition_columns": messages.PARTITION_COLUMNS,
        "partitions": messages.list_partitions(plan),
        "sizes": messages.group_sizes(plan.bytes),
        # refusals have a section of their own
        "sink_checks": [
            check
            for check in plan.checks
            if check.kind is CheckKind.SINK and check.verdict != REFUSE
        ],
        "other_checks": [check for check in plan.checks if check.kind is not CheckKind.SINK],
        "remedies": [remedy for sink, _ in sinks for remedy in sink.remedies],
        "ask_sink": not sinks or any(sink.lacks_place(place) for sink, place in sinks),
        "command": shown.request.execute_command(plan.first_batch),
    }


def _describe_rewound(backup: Backup, snapshot: Snapshot, settings: Settings) -> ChangeResult:
    lines = (
        messages.format_rewound(backup, snapshot.location),
        messages.format_query_id(backup),
        *messages.list_sinks(backup),
    )
    return ChangeResult(
        tuple(filter(None, lines)),
        tuple(messages.format_others(backup)),
        (_run_again(snapshot, settings),),
    )


def _run_again(snapshot: Snapshot, settings: Settings) -> tuple[str, str]:
    """How to start the query again: the command to type, if it is a ready job."""
    name = str(snapshot.owner.pipeline or "")
    if name not in READY or snapshot.owner.is_attached:
        return "Start the query again as you started it before; the web UI starts no jobs.", ""
    command = ["ebbtide", "run", name]
    if settings.location("checkpoints", name) != snapshot.location:
        command += ["--checkpoint", snapshot.location]
    if settings.url or settings.home != Settings.home:
        command += ["--home", settings.location()]
    command += [word for flag in settings.kafka_flags() for word in flag]
    return "Start the query again; the web UI starts no jobs:", shlex.join(command)


def _show_undo(page: CheckpointPage, refusal: EbbtideError | None = None) -> Response:
    form, location = UndoForm.read(page.sent), page.snapshot.location
    backup, checks = None, list[Check | None]()
    try:
        if page.snapshot.interrupted is None and (page.snapshot.backups or form.backup):
            folder, stopped = open_folder(location), bool(form.assume_stopped)
            checks += [
                rewind.lease.check_running(folder, read_logs(folder), assume_stopped=stopped)
            ]
            backup = rewind.backups.find_backup(location, form.backup or None)
            checks += [] if form.leave_sink else [rewind.sinks.check_own_sinks(folder, backup)]
    except EbbtideError as error:
        refusal = error
    return page.render(
        "undo.html",
        refusal,
        form=form,
        backups=[(one, messages.format_batches(one)) for one in reversed(page.snapshot.backups)],
        backup=backup,
        checks=[check for check in checks if check],
        refused=any(check and check.verdict == REFUSE for check in checks),
        returning=backup and messages.format_returning(backup),
        sinks=backup and messages.list_returning_sinks(backup, leave_sink=bool(form.leave_sink)),
        command=form.format_command(location),
        prune_command=shlex.join(["ebbtide", "backups", location, "--prune", "--keep", "3"]),
    )


def _start_undo(page: CheckpointPage) -> Response:
    try:
        page.require_confirmation()
    except EbbtideError as error:
        page.log_refusal("undo", error)
        return _show_undo(page, error)
    form, location = UndoForm.read(page.sent), page.snapshot.location

    def work(advance: Advance) -> ChangeResult:
        backup = rewind.undo_rewind(
            location,
            form.backup or None,
            assume_stopped=bool(form.assume_stopped),
            leave_sink=bool(form.leave_sink),
            on_file=advance,
        )
        return _describe_undone(backup, page.snapshot, page.context.settings)

    return page.start("undo", "Undo", work)


def _start_finish(page: CheckpointPage) -> Response:
    location = page.snapshot.location
    journal = Journal.read(open_folder(location))
    if journal is None:
        raise CheckpointError(
            f"No change of {location} is unfinished.", "Reload its page to see its current state."
        )
    action, backup_id = journal.action, journal.backup

    def work(advance: Advance) -> ChangeResult:
        backup = rewind.finish_interrupted(
            location, action, lambda other: other.backup == backup_id, on_file=advance
        )
        if backup is None:
            return ChangeResult((_NOTHING_LEFT,), can_undo=False)
        if action == "undo":
            return _describe_undone(backup, page.snapshot, page.context.settings)
        return _describe_rewound(backup, page.snapshot, page.context.settings)

    return page.start("finish", f"Finish the {action} to batch {journal.first_batch}", work)


def _describe_undone(backup: Backup, snapshot: Snapshot, settings: Settings) -> ChangeResult:
    location, damage = snapshot.location, None
    with suppress(EbbtideError):  # the undo is done, whatever has become of the checkpoint since
        damage = messages.format_damage(read_checkpoint(location))
    lines = (f"{location} is back as it was.", *messages.list_sinks(backup))
    warnings = (*messages.format_others(backup), damage)
    next_steps = (_run_again(snapshot, settings),)
    return ChangeResult(lines, tuple(filter(None, warnings)), next_steps)
