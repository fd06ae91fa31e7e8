"""A checkpoint and a batch in, the plan of a rewind on one screen out; applied, undone, finished.

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

from ebbtide.checkpoint.journal import Backup
from ebbtide.config import Settings
from ebbtide.connectors import SinkPlace, SinkPlan, connector_of
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.local.broker import require_connection
from ebbtide.report import messages as words
from ebbtide.rewind.apply import apply_rewind
from ebbtide.rewind.lease import CHANGE, read_lease
from ebbtide.rewind.plan import Plan, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.systems.jobs import READY
from ebbtide.web.context import Context
from ebbtide.web.progress import answer_started
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.tasks import Advance, Say, Task

_KEPT = 50


@dataclass(frozen=True)
class Wish:
    """What the form of a rewind says: the flags of `ebbtide rewind`."""

    to_batch: int | None = None
    replan: bool = False
    sink: str | None = None
    sink_table: str | None = None
    sink_files: str | None = None
    assume_stopped: bool = False

    @classmethod
    def of(cls, form: Mapping[str, Any]) -> Wish:
        """From the fields of a form.

        >>> Wish.of({"to_batch": "5", "replan": "on", "sink": ""})
        Wish(to_batch=5, replan=True, sink=None, sink_table=None, sink_files=None, \
assume_stopped=False)
        """
        texts = {name: str(form.get(name) or "").strip() or None for name in asdict(cls())}
        batch, sink = texts["to_batch"], texts["sink"]
        if batch is not None and not (batch.isascii() and batch.isdigit() and len(batch) < 19):
            raise UsageError(f"{batch[:40]!r} is no batch.", "Give its number.")
        if sink not in (None, *SinkPlan.REMEDIES):
            choices = " or ".join(SinkPlan.REMEDIES)
            raise UsageError(f"{sink!r} is no way with a sink.", f"Choose {choices}.")
        return cls(
            to_batch=None if batch is None else int(batch),
            replan=texts["replan"] is not None,
            sink=sink,
            sink_table=texts["sink_table"],
            sink_files=texts["sink_files"],
            assume_stopped=texts["assume_stopped"] is not None,
        )

    @property
    def fields(self) -> dict[str, str]:
        """As a form sends them."""
        return sent(asdict(self))


@dataclass(frozen=True)
class Shown:
    """A plan that somebody looks at, under a name of its own."""

    id: str
    key: str
    wish: Wish
    plan: Plan


class Plans:
    """The plans that were shown last."""

    def __init__(self) -> None:
        self._shown: OrderedDict[str, Shown] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, key: str, wish: Wish, plan: Plan) -> Shown:
        """Remember a plan."""
        shown = Shown(secrets.token_urlsafe(12), key, wish, plan)
        with self._lock:
            self._shown[shown.id] = shown
            while len(self._shown) > _KEPT:
                self._shown.popitem(last=False)
        return shown

    def find(self, id_: str, key: str, wish: Wish) -> Shown | None:
        """The plan that was shown under this name, for this checkpoint and these fields."""
        shown = self._shown.get(id_)
        return shown if shown and (shown.key, shown.wish) == (key, wish) else None


@dataclass(frozen=True)
class Changed:
    """What a rewind or an undo has done, in words."""

    said: tuple[str, ...]
    warnings: tuple[str, ...]
    next_steps: tuple[tuple[str, str], ...]
    """What to do, and the line to type for it."""
    can_undo: bool = True


def routes(context: Context) -> list[Route]:
    """The plan, and its application."""
    plans = Plans()

    async def show(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.catalogue.snapshot, request.path_params["key"])
        return await _show_plan(context, plans, request, snapshot, request.query_params)

    async def apply(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.catalogue.snapshot, request.path_params["key"])
        form = await request.form()
        wish = Wish.of(form)
        shown = plans.find(str(form.get("plan", "")), snapshot.key, wish)
        refusal = None
        if shown is None:
            refusal = EbbtideError(
                "The plan that you looked at is no longer kept.", "Look at this new one, and apply."
            )
        elif snapshot.interrupted is not None and not _is_changing(snapshot):
            # the core would finish that one, and we would tell it as this one
            refusal = snapshot.interrupted.interrupted(snapshot.location)
        elif str(form.get("confirm", "")).strip() != snapshot.name:
            refusal = wrong_name(snapshot)
        if refusal is not None or shown is None:
            note_refusal(context, f"rewind to batch {wish.to_batch}", snapshot, refusal)
            return await _show_plan(context, plans, request, snapshot, form, refusal, shown)
        task = await run_in_threadpool(_start, context, snapshot, shown)
        return answer_started(context, request, task)

    path = "/checkpoints/{key}/rewind"
    return [Route(path, show), Route(path, apply, methods=["POST"])]


def _is_changing(snapshot: Snapshot) -> bool:
    """Whether somebody is just rewinding it, or undoing that."""
    lease = read_lease(snapshot.checkpoint.folder, CHANGE)
    return lease is not None and lease.holder() is not None


async def _show_plan(
    context: Context,
    plans: Plans,
    request: Request,
    snapshot: Snapshot,
    form: Mapping[str, Any],
    refusal: EbbtideError | None = None,
    shown: Shown | None = None,
) -> Response:
    wish = Wish()
    try:
        wish = Wish.of(form)
        if shown is None and wish.to_batch is not None and snapshot.interrupted is None:
            plan = await run_in_threadpool(make_plan, context.settings, snapshot.location, wish)
            shown = plans.keep(snapshot.key, wish, plan)
    except EbbtideError as error:
        refusal = error
    status = status_of(refusal, request.method)
    values = {"snapshot": snapshot, "wish": wish, "refusal": refusal, "shown": shown}
    return context.render(request, "rewind.html", status, **values, **_tell(shown))


def make_plan(settings: Settings, location: str, wish: Wish) -> Plan:
    """The core's plan for what a form says, as the command line makes it."""
    assert wish.to_batch is not None
    connection = require_connection(settings)
    return plan_rewind(
        location,
        ToBatch(wish.to_batch),
        replan=wish.replan,
        connection=connection,
        zone=settings.timezone,
        assume_stopped=wish.assume_stopped,
        sink=SinkPlace.named({"--sink-table": wish.sink_table, "--sink-files": wish.sink_files}),
        remedy=wish.sink,
    )


def _tell(shown: Shown | None) -> dict[str, Any]:
    """What the template says about a plan, in the core's words."""
    if shown is None:
        return {"plan": None}
    plan, wish = shown.plan, shown.wish
    place = plan.sink.sink if plan.sink else None
    sink = connector_of(place.kind).sink if place else None
    return {
        "plan": plan,
        "target": words.say_target(plan),
        "amount": words.say_amount(plan),
        "partition_columns": words.PARTITION_COLUMNS,
        "partitions": words.list_partitions(plan),
        "sizes": words.group_sizes(plan.bytes),
        "sink_check": next((check for check in plan.checks if check.name == "sink"), None),
        "other_checks": [check for check in plan.checks if check.name != "sink"],
        "remedies": sink.remedies if sink else (),
        "ask_sink": sink is None or place is None or sink.lacks_place(place),
        "command": words.execute_command(
            plan,
            plan.checkpoint,
            remedy=wish.sink,
            table=wish.sink_table,
            files=wish.sink_files,
            assume_stopped=wish.assume_stopped,
        ),
    }


def _start(context: Context, snapshot: Snapshot, shown: Shown) -> Task:
    plan, settings = shown.plan, context.settings

    def work(advance: Advance, say: Say) -> Changed:
        del say
        connection = require_connection(settings)
        backup = apply_rewind(
            plan,
            connection=connection,
            assume_stopped=shown.wish.assume_stopped,
            on_file=advance,
        )
        return tell_rewound(backup, snapshot, settings)

    return context.tasks.start(
        "rewind",
        f"Rewind to batch {plan.first_batch}",
        snapshot.key,
        work,
        target=snapshot.location,
        again=f"/checkpoints/{snapshot.key}/rewind?{urlencode(shown.wish.fields)}",
    )


def tell_rewound(backup: Backup, snapshot: Snapshot, settings: Settings) -> Changed:
    """What a rewind has done, and how the query goes on."""
    said = (
        words.say_rewound(backup, snapshot.location),
        words.say_query_id(backup),
        words.say_sink(backup),
    )
    return Changed(
        tuple(line for line in said if line),
        tuple(words.say_others(backup)),
        (_run_again(snapshot, settings),),
    )


def _run_again(snapshot: Snapshot, settings: Settings) -> tuple[str, str]:
    """How to start the query again: the line to type, if it is a ready job."""
    name = str(snapshot.owner.get("pipeline", ""))
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
    context: Context, action: str, snapshot: Snapshot, error: EbbtideError | None
) -> None:
    """Note in the page's log that something was not done."""
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
