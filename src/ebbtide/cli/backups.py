"""The commands `ebbtide undo` and `backups`, which undo a rewind and manage its backups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide import report
from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import ask, interruptible, log_line, progress_bar, show_json, show_table
from ebbtide.errors import UsageError
from ebbtide.formatting import format_bytes

if TYPE_CHECKING:
    from ebbtide.checkpoint import Backup

_CKPT = ".ebbtide/checkpoints/visits-windows-counter"


@command(f"ebbtide undo {_CKPT}")
def undo(
    checkpoint: str = options.CHECKPOINT,
    backup: str | None = option("--backup ID", "An older backup, as ebbtide backups names it."),
    leave_sink: bool = option("--leave-sink", "Leave the table or the files as they are now."),
    yes: bool = options.YES,
    assume_stopped: bool = options.ASSUME_STOPPED,
    output: options.Output = options.OUTPUT,
) -> None:
    """Go back to before the last rewind, even if the query has run since.

    What has run since is backed up in turn, so an undo can be undone. A Delta
    table or the files of a sink that the rewind rolled back return, too.
    """
    from ebbtide.checkpoint import read_checkpoint
    from ebbtide.rewind import backups as saved
    from ebbtide.rewind import finish_interrupted, undo_rewind

    with interruptible():
        done = finish_interrupted(
            checkpoint,
            "undo",
            lambda j: backup in (None, j.restores),
            leave_sink=leave_sink,
            assume_stopped=assume_stopped,
        )
    if done is None:
        chosen = saved.find_backup(checkpoint, backup, with_sink=not leave_sink)
        log_line(report.messages.format_returning(chosen))
        for returning in report.messages.list_returning_sinks(chosen, leave_sink=leave_sink):
            log_line(returning, style="bold yellow")
        ask(f"Undo the {chosen.action} of {checkpoint}?", yes=yes)
        with interruptible(), progress_bar("Undoing") as advance:
            done = undo_rewind(
                checkpoint,
                chosen.id,
                assume_stopped=assume_stopped,
                leave_sink=leave_sink,
                on_file=advance,
            )
    show_change(done, output)
    if done.action == "rewind":  # interrupted at its sink
        log_line(f"The interrupted rewind was reverted: {checkpoint} is as it was before it.")
        return
    if line := report.messages.format_damage(read_checkpoint(checkpoint)):
        log_line(line, style="bold yellow")
    undo_command = report.messages.undo_command(checkpoint)
    log_line(f"{checkpoint} is back as it was. To undo that: {undo_command}")


@command(f"ebbtide backups {_CKPT}", f"ebbtide backups {_CKPT} --prune --older-than P30D --keep 3")
def backups(
    checkpoint: str = options.CHECKPOINT,
    prune: bool = option("--prune", "Remove backups for good."),
    older_than: str | None = option(
        "--older-than D", "With --prune: older than this, such as P30D."
    ),
    keep: int | None = option("--keep N", "With --prune: keep the newest N.", min=1),
    yes: bool = options.YES,
    assume_stopped: bool = options.RARE_ASSUME_STOPPED,
    output: options.Output = options.OUTPUT,
) -> None:
    """List the backups inside a checkpoint, or prune them by age and count."""
    from ebbtide.checkpoint import Backup, read_logs
    from ebbtide.rewind import backups as saved
    from ebbtide.storage import open_folder
    from ebbtide.times import parse_duration

    folder = open_folder(checkpoint)
    read_logs(folder)
    existing = Backup.read_all(folder)
    if not prune:
        if older_than or keep:
            raise UsageError("--older-than and --keep say what to prune.", "Add --prune.")
        _show_backups(existing, output)
        if not existing:
            log_line("There is no backup: nothing was rewound, or the backups were pruned.")
        return
    if older_than is None and keep is None:
        raise UsageError("--prune needs to know which.", "Add --older-than P30D or --keep 3.")
    age = parse_duration(older_than) if older_than else None
    going = saved.prune_backups(checkpoint, older_than=age, keep=keep, dry_run=True)
    if going:
        size = format_bytes(sum(backup.bytes for backup in going))
        ask(f"Remove {len(going)} of {len(existing)} backups ({size}) for good?", yes=yes)
        going = saved.prune_backups(
            checkpoint, older_than=age, keep=keep, assume_stopped=assume_stopped
        )
    _show_backups(going, output)
    log_line(f"{len(going)} of {len(existing)} backups removed.")


def show_change(backup: Backup, output: str) -> None:
    """Show what a rewind or an undo did; warn if something else ran meanwhile."""
    if output == "json":
        show_json(report.messages.summarize_backup(backup))
    for warning in report.messages.format_others(backup):
        log_line(warning, style="bold yellow")
    for line in report.messages.list_sinks(backup):
        log_line(line)


def _show_backups(listed: list[Backup], output: str) -> None:
    if output == "json":
        show_json([report.messages.summarize_backup(backup) for backup in listed])
        return
    if not listed:  # no table of nothing
        return
    show_table(
        ("backup", "made by", "batches", "files", "size"),
        [
            (
                backup.id,
                backup.made_by,
                report.messages.format_batches(backup),
                len(backup.taken),  # as the plan counts them
                format_bytes(backup.bytes),
            )
            for backup in listed
        ],
    )
