"""Undo the last change of a checkpoint, or finish one that was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide.checkpoint import Backup, Journal, read_checkpoint, read_logs
from ebbtide.checks import REFUSE, Check
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.report import messages
from ebbtide.rewind import find_backup, finish_interrupted, lease, undo_rewind
from ebbtide.storage import open_folder
from ebbtide.web.context import WebContext
from ebbtide.web.progress import answer_started
from ebbtide.web.rewind import ChangeResult, describe_rewound, note_refusal, status_of, wrong_name
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.tasks import Advance, Say, Task

_NOTHING_LEFT = (
    "Nothing is left to finish: it had moved nothing yet and was taken back, or somebody else "
    "has finished it meanwhile."
)


@dataclass(frozen=True)
class UndoForm:
    """What the form of an undo says: the flags of `ebbtide undo`."""

    backup: str | None = None
    leave_sink: bool = False
    assume_stopped: bool = False

    @classmethod
    def read(cls, sent: Mapping[str, Any]) -> UndoForm:
        """From the fields of a form."""
        backup = str(sent.get("backup") or "").strip()
        return cls(backup or None, bool(sent.get("leave_sink")), bool(sent.get("assume_stopped")))


def routes(context: WebContext) -> list[Route]:
    """What comes back, the undo, and the end of an interrupted change."""

    async def show(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.snapshots.read, request.path_params["key"])
        return await _show(context, request, snapshot, UndoForm.read(request.query_params))

    async def undo(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.snapshots.read, request.path_params["key"])
        sent = await request.form()
        form = UndoForm.read(sent)
        if str(sent.get("confirm", "")).strip() != snapshot.name:
            refusal = wrong_name(snapshot)
            note_refusal(context, "undo", snapshot, refusal)
            return await _show(context, request, snapshot, form, refusal)
        task = await run_in_threadpool(_start_undo, context, snapshot, form)
        return answer_started(context, request, task)

    async def finish(request: Request) -> Response:
        snapshot = await run_in_threadpool(context.snapshots.read, request.path_params["key"])
        task = await run_in_threadpool(_start_finish, context, snapshot)
        return answer_started(context, request, task)

    path = "/checkpoints/{key}"
    return [
        Route(f"{path}/undo", show),
        Route(f"{path}/undo", undo, methods=["POST"]),
        Route(f"{path}/finish", finish, methods=["POST"]),
    ]


async def _show(
    context: WebContext,
    request: Request,
    snapshot: Snapshot,
    form: UndoForm,
    refusal: EbbtideError | None = None,
) -> Response:
    backup = running = None
    try:
        if snapshot.interrupted is None:
            backup, running = await run_in_threadpool(_find, snapshot.location, form)
    except EbbtideError as error:
        refusal = error
    backups = [(one, messages.format_batches(one)) for one in reversed(snapshot.backups)]
    values = {"snapshot": snapshot, "form": form, "refusal": refusal, "backups": backups}
    return context.render(
        request,
        "undo.html",
        status_of(refusal, request.method),
        **values,
        backup=backup,
        running=running,
        refused=running is not None and running.verdict == REFUSE,
        returning=backup and messages.format_returning(backup),
        sink=backup and messages.format_returning_sink(backup.sink),
        command=_command(snapshot, form),
    )


def _find(location: str, form: UndoForm) -> tuple[Backup, Check]:
    """The backup that would come back, and whether the query is stopped."""
    folder = open_folder(location)
    logs = read_logs(folder)
    running = lease.check_running(folder, logs, assume_stopped=form.assume_stopped)
    return find_backup(location, form.backup), running


def _command(snapshot: Snapshot, form: UndoForm) -> str:
    flags = [
        f"--backup {quote(form.backup)}" if form.backup else "",
        "--leave-sink" if form.leave_sink else "",
        "--assume-stopped" if form.assume_stopped else "",
    ]
    return " ".join(filter(None, [messages.undo_command(snapshot.location), *flags]))


def _start_undo(context: WebContext, snapshot: Snapshot, form: UndoForm) -> Task:
    def work(advance: Advance, say: Say) -> ChangeResult:
        del say
        backup = undo_rewind(
            snapshot.location,
            form.backup,
            assume_stopped=form.assume_stopped,
            leave_sink=form.leave_sink,
            on_file=advance,
        )
        return _describe_undone(backup, snapshot)

    again = f"/checkpoints/{snapshot.key}/undo"
    return context.tasks.start(
        "undo", "Undo", snapshot.key, work, target=snapshot.location, again=again
    )


def _start_finish(context: WebContext, snapshot: Snapshot) -> Task:
    location = snapshot.location
    folder = open_folder(location)
    journal = Journal.read(folder)
    if journal is None:
        raise CheckpointError(
            f"No change of {location} is unfinished.", "Load its page again to see how it stands."
        )

    def work(advance: Advance, say: Say) -> ChangeResult:
        del say
        backup = finish_interrupted(
            location, journal.action, lambda found: found.backup == journal.backup, on_file=advance
        )
        if backup is None:
            return ChangeResult((_NOTHING_LEFT,), (), (), can_undo=False)
        if journal.action == "undo":
            return _describe_undone(backup, snapshot)
        return describe_rewound(backup, snapshot, context.settings)

    title = f"Finish the {journal.action} to batch {journal.first_batch}"
    return context.tasks.start("finish", title, snapshot.key, work, target=location)


def _describe_undone(backup: Backup, snapshot: Snapshot) -> ChangeResult:
    location = snapshot.location
    said = (f"{location} is back as it was.", messages.format_sink(backup))
    damage = None
    with suppress(EbbtideError):  # it is done, whatever has become of the checkpoint since
        damage = messages.format_damage(read_checkpoint(location))
    return ChangeResult(
        tuple(line for line in said if line),
        (*messages.format_others(backup), *([damage] if damage else [])),
        (),
    )
