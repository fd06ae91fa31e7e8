"""Show the plan of a rewind on one page, and apply it.

What is applied is the very plan that was shown: it is kept here until it is too old, and the core
refuses it if anything has changed since.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide.checkpoint import Backup
from ebbtide.checks import CheckKind
from ebbtide.config import Settings
from ebbtide.connectors import connector_of
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.local import require_connection
from ebbtide.report import messages
from ebbtide.rewind import RewindPlan, RewindRequest, apply_rewind, lease, plan_rewind
from ebbtide.systems import READY
from ebbtide.web.context import WebContext
from ebbtide.web.progress import answer_started
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.tasks import Advance, Say, Task

_KEPT = 50


@dataclass(frozen=True)
class RewindForm:
    """The fields of the form, named as the flags of `ebbtide rewind`; empty if not given."""

    to_batch: str = ""
    replan: str = ""
    sink: str = ""
    sink_table: str = ""
    sink_files: str = ""
    assume_stopped: str = ""

    @classmethod
    def read(cls, form: Mapping[str, Any]) -> RewindForm:
        """From what a form sends.

        >>> RewindForm.read({"to_batch": " 5", "replan": "on", "other": "x"}).fields
        {'to_batch': '5', 'replan': 'on'}
        """
        return cls(**{name: str(form.get(name) or "").strip() for name in asdict(cls())})

    @property
    def fields(self) -> dict[str, str]:
        """The fields that are given, to be sent again."""
        return {name: value for name, value in asdict(self).items() if value}

    def request(self, location: str, zone: str) -> RewindRequest:
        """What the form asks for."""
        return RewindRequest.parse(location, zone, **self.fields)


@dataclass(frozen=True)
class ShownPlan:
    """A plan that somebody looks at, under a name of its own."""

    id: str
    key: str
    request: RewindRequest
    plan: RewindPlan
    form: RewindForm


class ShownPlans:
    """The plans that were shown last."""

    def __init__(self) -> None:
        self._shown: OrderedDict[str, ShownPlan] = OrderedDict()
        self._lock = threading.Lock()

    def keep(
        self, key: str, request: RewindRequest, plan: RewindPlan, form: RewindForm
    ) -> ShownPlan:
        """Remember a plan."""
        shown = ShownPlan(secrets.token_urlsafe(12), key, request, plan, form)
        with self._lock:
            self._shown[shown.id] = shown
            while len(self._shown) > _KEPT:
                self._shown.popitem(last=False)
        return shown

    def find(self, id_: str, key: str, form: RewindForm) -> ShownPlan | None:
        """The plan that was shown under this name, for this checkpoint and these fields."""
        shown = self._shown.get(id_)
        return shown if shown and (shown.key, shown.form) == (key, form) else None


@dataclass(frozen=True)
class ChangeResult:
    """What a rewind or an undo has done, in words."""

    said: tuple[str, ...]
    warnings: tuple[str, ...]
    next_steps: tuple[tuple[str, str], ...]
    """What to do, and the line to type for it."""
    can_undo: bool = True


def routes(context: WebContext) -> list[Route]:
    """The plan, and its application."""
    plans = ShownPlans()

    async def show(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.snapshots.read, request.path_params["key"])
        return await _show_plan(
            context, plans, request, snapshot, RewindForm.read(request.query_params)
        )

    async def apply(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.snapshots.read, request.path_params["key"])
        sent = await request.form()
        form = RewindForm.read(sent)
        form.request(snapshot.location, context.settings.timezone)
        shown = plans.find(str(sent.get("plan", "")), snapshot.key, form)
        refusal = None
        if shown is None:
            refusal = EbbtideError(
                "The plan that you looked at is no longer kept.", "Look at this new one, and apply."
            )
        elif snapshot.interrupted is not None and not _is_changing(snapshot):
            # the core would finish that one, and we would tell it as this one
            refusal = snapshot.interrupted.interrupted(snapshot.location)
        elif str(sent.get("confirm", "")).strip() != snapshot.name:
            refusal = wrong_name(snapshot)
        if refusal is not None or shown is None:
            note_refusal(context, f"rewind to batch {form.to_batch}", snapshot, refusal)
            return await _show_plan(context, plans, request, snapshot, form, refusal, shown)
        task = await run_in_threadpool(_start, context, snapshot, shown)
        return answer_started(context, request, task)

    path = "/checkpoints/{key}/rewind"
    return [Route(path, show), Route(path, apply, methods=["POST"])]


def _is_changing(snapshot: Snapshot) -> bool:
    """Whether somebody is just rewinding it, or undoing that."""
    change = lease.read_lease(snapshot.checkpoint.folder, lease.CHANGE)
    return change is not None and change.holder() is not None


async def _show_plan(
    context: WebContext,
    plans: ShownPlans,
    request: Request,
    snapshot: Snapshot,
    form: RewindForm,
    refusal: EbbtideError | None = None,
    shown: ShownPlan | None = None,
) -> Response:
    try:
        if shown is None and form.to_batch and snapshot.interrupted is None:
            wanted = form.request(snapshot.location, context.settings.timezone)
            plan = await run_in_threadpool(make_plan, context.settings, wanted)
            shown = plans.keep(snapshot.key, wanted, plan, form)
    except EbbtideError as error:
        refusal = error
    status = status_of(refusal, request.method)
    values = {"snapshot": snapshot, "form": form, "refusal": refusal, "shown": shown}
    return context.render(request, "rewind.html", status, **values, **_describe(shown))


def make_plan(settings: Settings, request: RewindRequest) -> RewindPlan:
    """The plan for a request, as the command line makes it."""
    return plan_rewind(request, connection=require_connection(settings))


def _describe(shown: ShownPlan | None) -> dict[str, Any]:
    """What the template shows of a plan."""
    if shown is None:
        return {"plan": None}
    plan = shown.plan
    place = plan.sink.sink if plan.sink else None
    sink = connector_of(place.kind).sink if place else None
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
        "ask_sink": sink is None or place is None or sink.lacks_place(place),
        "command": shown.request.execute_command(plan.first_batch),
    }


def _start(context: WebContext, snapshot: Snapshot, shown: ShownPlan) -> Task:
    plan, settings = shown.plan, context.settings

    def work(advance: Advance, say: Say) -> ChangeResult:
        del say
        connection = require_connection(settings)
        backup = apply_rewind(
            plan,
            connection=connection,
            assume_stopped=shown.request.assume_stopped,
            on_file=advance,
        )
        return describe_rewound(backup, snapshot, settings)

    return context.tasks.start(
        "rewind",
        f"Rewind to batch {plan.first_batch}",
        snapshot.key,
        work,
        target=snapshot.location,
        again=f"/checkpoints/{snapshot.key}/rewind?{urlencode(shown.form.fields)}",
    )


def describe_rewound(backup: Backup, snapshot: Snapshot, settings: Settings) -> ChangeResult:
    """What a rewind has done, and how the query goes on."""
    said = (
        messages.format_rewound(backup, snapshot.location),
        messages.format_query_id(backup),
        messages.format_sink(backup),
    )
    return ChangeResult(
        tuple(line for line in said if line),
        tuple(messages.format_others(backup)),
        (_run_again(snapshot, settings),),
    )


def _run_again(snapshot: Snapshot, settings: Settings) -> tuple[str, str]:
    """How to start the query again: the line to type, if it is a ready job."""
    name = str(snapshot.owner.pipeline or "")
    if name not in READY:
        return "Start the query again as you started it before.", ""
    command = ["ebbtide", "run", name]
    if str(settings.checkpoint(name).absolute()) != snapshot.location:
        command += ["--checkpoint", snapshot.location]
    return "Run the query again:", " ".join(map(quote, [*command, *name_settings(settings)]))


def name_settings(settings: Settings) -> list[str]:
    """The flags that give another process our settings, where they are not the usual ones.

    >>> name_settings(Settings(bootstrap_servers="kafka:9092"))
    ['--bootstrap-servers', 'kafka:9092']
    """
    found = [] if settings.home == Settings.home else ["--home", str(settings.home.absolute())]
    if settings.bootstrap_servers:
        found += ["--bootstrap-servers", settings.bootstrap_servers]
    return found


def sent(fields: Mapping[str, Any]) -> dict[str, str]:
    """Fields as a form sends them: what is not there or not ticked is left out, 0 is there.

    >>> sent({"to_batch": 0, "replan": True, "sink": None, "assume_stopped": False})
    {'to_batch': '0', 'replan': 'on'}
    """
    there = {name: value for name, value in fields.items() if value is not None}
    return {n: "on" if v is True else str(v) for n, v in there.items() if v is not False}


def wrong_name(snapshot: Snapshot) -> UsageError:
    """What was typed to confirm is not the checkpoint's name."""
    return UsageError(
        "What you typed is not the checkpoint's name.", f"Type {snapshot.name} to confirm."
    )


def note_refusal(
    context: WebContext, action: str, snapshot: Snapshot, error: EbbtideError | None
) -> None:
    """Note in the audit log of the web UI that something was refused."""
    context.audit.write(action, snapshot.location, f"refused: {error.problem if error else ''}")


def status_of(error: EbbtideError | None, method: str) -> int:
    """The status of a page that says why not; one that was only looked at has done its work.

    >>> status_of(EbbtideError(""), "GET"), status_of(EbbtideError(""), "POST")
    (200, 409)
    >>> status_of(UsageError(""), "GET"), status_of(None, "POST")
    (422, 200)
    """
    if isinstance(error, UsageError):
        return 422
    return 409 if error is not None and method == "POST" else 200
