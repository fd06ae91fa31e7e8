"""Undo the last change of a checkpoint, or finish one that was interrupted."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.responses import Response
from starlette.routing import Route

from ebbtide.checkpoint import Backup, Journal, read_checkpoint, read_logs
from ebbtide.checks import REFUSE
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.report import messages
from ebbtide.rewind import find_backup, finish_interrupted, lease, undo_rewind
from ebbtide.storage import open_folder
from ebbtide.web.context import WebContext
from ebbtide.web.pages import CheckpointPage, TextForm, checkpoint_route
from ebbtide.web.rewind import ChangeResult, describe_rewound
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.tasks import Advance

_NOTHING_LEFT = (
    "Nothing is left to finish: it had moved nothing yet and was taken back, or somebody else "
    "has finished it meanwhile."
)


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


def routes(context: WebContext) -> list[Route]:
    """What comes back, the undo, and the end of an interrupted change."""
    return [
        checkpoint_route(context, "/undo", _show),
        checkpoint_route(context, "/undo", _start_undo, "POST"),
        checkpoint_route(context, "/finish", _start_finish, "POST"),
    ]


def _show(page: CheckpointPage, refusal: EbbtideError | None = None) -> Response:
    form, location = UndoForm.read(page.sent), page.snapshot.location
    backup = running = None
    try:
        if page.snapshot.interrupted is None:
            folder, stopped = open_folder(location), bool(form.assume_stopped)
            running = lease.check_running(folder, read_logs(folder), assume_stopped=stopped)
            backup = find_backup(location, form.backup or None)
    except EbbtideError as error:
        refusal = error
    return page.render(
        "undo.html",
        refusal,
        form=form,
        backups=[(one, messages.format_batches(one)) for one in reversed(page.snapshot.backups)],
        backup=backup,
        running=running,
        refused=running is not None and running.verdict == REFUSE,
        returning=backup and messages.format_returning(backup),
        sink=backup and messages.format_returning_sink(backup.sink),
        command=form.format_command(location),
    )


def _start_undo(page: CheckpointPage) -> Response:
    try:
        page.require_confirmation()
    except EbbtideError as error:
        page.log_refusal("undo", error)
        return _show(page, error)
    work = partial(_undo, page.snapshot.location, UndoForm.read(page.sent))
    return page.start("undo", "Undo", work)


def _start_finish(page: CheckpointPage) -> Response:
    journal = Journal.read(open_folder(page.snapshot.location))
    if journal is None:
        raise CheckpointError(
            f"No change of {page.snapshot.location} is unfinished.",
            "Reload its page to see its current state.",
        )
    title = f"Finish the {journal.action} to batch {journal.first_batch}"
    work = partial(_finish, page.context.settings, page.snapshot, journal)
    return page.start("finish", title, work)


def _undo(location: str, form: UndoForm, advance: Advance) -> ChangeResult:
    backup = undo_rewind(
        location,
        form.backup or None,
        assume_stopped=bool(form.assume_stopped),
        leave_sink=bool(form.leave_sink),
        on_file=advance,
    )
    return _describe_undone(backup, location)


def _finish(
    settings: Settings, snapshot: Snapshot, journal: Journal, advance: Advance
) -> ChangeResult:
    def is_same(other: Journal) -> bool:
        return other.backup == journal.backup

    location = snapshot.location
    backup = finish_interrupted(location, journal.action, is_same, on_file=advance)
    if backup is None:
        return ChangeResult((_NOTHING_LEFT,), can_undo=False)
    if journal.action == "undo":
        return _describe_undone(backup, location)
    return describe_rewound(backup, snapshot, settings)


def _describe_undone(backup: Backup, location: str) -> ChangeResult:
    damage = None
    with suppress(EbbtideError):  # the undo is done, whatever has become of the checkpoint since
        damage = messages.format_damage(read_checkpoint(location))
    lines = (f"{location} is back as it was.", messages.format_sink(backup))
    warnings = (*messages.format_others(backup), damage)
    return ChangeResult(tuple(filter(None, lines)), tuple(filter(None, warnings)))
