"""`ebbtide undo` and `backups`: back to before a rewind, and what is kept for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli.output import (
    AnyAssumption,
    AnyHome,
    AnyServers,
    AssumeStopped,
    CheckpointArgument,
    Format,
    Output,
    Yes,
    ask,
    example,
    note,
    progress_bar,
    say_bytes,
    show_json,
    show_table,
)
from ebbtide.errors import UsageError

if TYPE_CHECKING:
    from ebbtide.checkpoint import Backup

_CKPT = ".ebbtide/checkpoints/visits-windows-counter"


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.command(epilog=example(f"ebbtide undo {_CKPT}"))(undo)
    root.command(
        epilog=example(
            f"ebbtide backups {_CKPT}",
            f"ebbtide backups {_CKPT} --prune --older-than P30D --keep 3",
        )
    )(backups)


def undo(
    checkpoint: CheckpointArgument,
    backup: Annotated[
        str | None, typer.Option(help="An older backup, as `ebbtide backups` names it.")
    ] = None,
    leave_sink: Annotated[
        bool, typer.Option("--leave-sink", help="Leave the table or the files as they are now.")
    ] = False,
    yes: Yes = False,
    assume_stopped: AssumeStopped = False,
    home: AnyHome = None,
    bootstrap_servers: AnyServers = None,
    output: Output = Format.table,
) -> None:
    """Go back to before the last rewind, also after the query ran on.

    What has run since is backed up in turn, so an undo can be undone. A Delta
    table or the files of a sink that the rewind set back come back, too.
    """
    from ebbtide.checkpoint import read_checkpoint, read_logs
    from ebbtide.report.messages import say_damage, say_returning, say_sink, summarise, undo_command
    from ebbtide.rewind.apply import finish_interrupted, undo_rewind
    from ebbtide.rewind.backups import find_backup
    from ebbtide.storage import open_folder

    del home, bootstrap_servers
    folder = open_folder(checkpoint)
    query_id = read_logs(folder).query_id
    done = finish_interrupted(checkpoint, "undo", lambda j: backup in (None, j.restores))
    if done is None:
        found = find_backup(folder, query_id, backup)
        note(say_returning(found))
        ask(f"Undo the {found.action} of {checkpoint}?", yes=yes)
        with progress_bar("Undoing") as advance:
            done = undo_rewind(
                checkpoint,
                backup,
                assume_stopped=assume_stopped,
                leave_sink=leave_sink,
                on_file=advance,
            )
    if output is Format.json:
        show_json(summarise(done))
    warn_of_others(done)
    if said := say_sink(done):
        note(said)
    if said := say_damage(read_checkpoint(checkpoint)):
        note(said, style="bold yellow")
    note(f"{checkpoint} is back as it was. To undo that: {undo_command(checkpoint)}")


def backups(
    checkpoint: CheckpointArgument,
    prune: Annotated[bool, typer.Option("--prune", help="Remove backups for good.")] = False,
    older_than: Annotated[
        str | None, typer.Option(help="With --prune: those made so long ago, such as P30D.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="With --prune: all but the newest so many.")
    ] = None,
    yes: Yes = False,
    assume_stopped: AnyAssumption = False,
    home: AnyHome = None,
    bootstrap_servers: AnyServers = None,
    output: Output = Format.table,
) -> None:
    """List the backups inside a checkpoint, or prune them by age and count."""
    from ebbtide.checkpoint import Backup, read_logs
    from ebbtide.rewind.apply import prune_backups
    from ebbtide.rewind.backups import select_backups
    from ebbtide.storage import open_folder
    from ebbtide.times import parse_duration

    del assume_stopped, home, bootstrap_servers  # a running query does not mind
    folder = open_folder(checkpoint)
    read_logs(folder)
    found = Backup.read_all(folder)
    if not prune:
        if older_than or keep:
            raise UsageError("--older-than and --keep say what to prune.", "Add --prune.")
        _show_backups(found, output)
        return
    if older_than is None and keep is None:
        raise UsageError("--prune needs to know which.", "Add --older-than P30D or --keep 3.")
    age = parse_duration(older_than) if older_than else None
    going = select_backups(found, older_than=age, keep=keep)
    if going:
        size = say_bytes(sum(backup.bytes for backup in going))
        ask(f"Remove {len(going)} of {len(found)} backups ({size}) for good?", yes=yes)
        going = prune_backups(checkpoint, older_than=age, keep=keep)
    _show_backups(going, output)
    note(f"{len(going)} of {len(found)} backups removed.")


def warn_of_others(backup: Backup) -> None:
    """Say if something still ran while the checkpoint was changed."""
    from ebbtide.report.messages import say_others

    for warning in say_others(backup):
        note(warning, style="bold yellow")


def _show_backups(found: list[Backup], output: Format) -> None:
    from ebbtide.report.messages import say_backup_batches, summarise

    if output is Format.json:
        show_json([summarise(backup) for backup in found])
        return
    show_table(
        ("backup", "made by", "batches", "files", "size"),
        [
            (
                backup.id,
                backup.made_by,
                say_backup_batches(backup),
                len(backup.taken) + len(backup.kept),
                say_bytes(backup.bytes),
            )
            for backup in found
        ],
    )
