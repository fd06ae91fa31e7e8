"""`ebbtide rewind` and `apply`: what taking a checkpoint back means, and doing it."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli.backups import warn_of_others
from ebbtide.cli.output import (
    AssumeStopped,
    CheckpointArgument,
    Format,
    Home,
    Output,
    Servers,
    Yes,
    Zone,
    ask,
    example,
    note,
    progress_bar,
    show_json,
    show_sizes,
    show_table,
)
from ebbtide.config import load_settings, write_whole
from ebbtide.errors import UsageError

if TYPE_CHECKING:
    from ebbtide.checkpoint.journal import Backup
    from ebbtide.rewind.plan import Plan


class Remedy(str, Enum):
    """What becomes of rows that a Delta table holds of the batches that run again."""

    restore = "restore"
    append_again = "append-again"


_CKPT = ".ebbtide/checkpoints/visits-windows-counter"


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.command(
        epilog=example(
            f"ebbtide rewind {_CKPT} --to-batch 5",
            f"ebbtide rewind {_CKPT} --by-duration PT2H --execute",
            "ebbtide rewind .ebbtide/checkpoints/visits-archive --shift-by -1 --sink restore",
        )
    )(rewind)
    root.command(
        epilog=example(
            f"ebbtide rewind {_CKPT} --to-batch 5 --save-plan plan.json",
            "ebbtide apply plan.json",
        )
    )(apply)


def rewind(
    checkpoint: CheckpointArgument,
    to_batch: Annotated[int | None, typer.Option(help="The first batch to run again.")] = None,
    shift_by: Annotated[int | None, typer.Option(help="-3 runs the last 3 batches again.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(help="The first batch planned at or after this time.")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(help="The first batch planned since so long ago: PT2H.")
    ] = None,
    to_offsets: Annotated[
        str | None, typer.Option(help="""Kafka offsets to read again: '{"visits":{"0":12}}'.""")
    ] = None,
    to_event_time: Annotated[
        str | None, typer.Option(help="The first batch that read this event time or later.")
    ] = None,
    event_time_field: Annotated[
        str | None, typer.Option(help="The JSON field that holds the event time.")
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="The oldest batch that can run again.")
    ] = False,
    to_latest_good: Annotated[
        bool, typer.Option("--to-latest-good", help="The newest batch that can run again.")
    ] = False,
    replan: Annotated[
        bool,
        typer.Option(
            "--replan", help="Let Spark draw new batch boundaries, from the first batch on."
        ),
    ] = False,
    sink: Annotated[
        Remedy | None,
        typer.Option(
            help="A Delta table: set it back to before the batch, or leave its rows and add."
        ),
    ] = None,
    sink_table: Annotated[
        str | None,
        typer.Option(help="The Delta table that the query writes, where that is not known."),
    ] = None,
    sink_files: Annotated[
        str | None,
        typer.Option(help="The folder that the query writes files to, where not known."),
    ] = None,
    save_plan: Annotated[
        Path | None, typer.Option(help="Write the plan to a file for `ebbtide apply`.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without this, only the plan is shown.")
    ] = False,
    yes: Yes = False,
    assume_stopped: AssumeStopped = False,
    home: Home = None,
    bootstrap_servers: Servers = None,
    timezone: Zone = None,
    output: Output = Format.table,
) -> None:
    """Plan to take a query back to a batch, state and all; with --execute, do it.

    Exactly one target. The first batch keeps its recorded records, watermark
    and time unless --replan is given. What leaves the checkpoint goes into a
    backup inside it, for `ebbtide undo`. A Delta table that would skip the
    batches stops the rewind until --sink says what becomes of its rows; the
    log of a file sink goes back with the checkpoint.
    """
    from ebbtide.connectors import SinkPlace
    from ebbtide.local.broker import require_connection
    from ebbtide.report.messages import execute_command
    from ebbtide.rewind.apply import apply_rewind, finish_interrupted
    from ebbtide.rewind.plan import EXACT, REPLAN, plan_rewind
    from ebbtide.rewind.target import choose_target

    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers, timezone=timezone)
    target = choose_target(
        settings.timezone,
        to_batch=to_batch,
        shift_by=shift_by,
        to_datetime=to_datetime,
        by_duration=by_duration,
        to_offsets=to_offsets,
        to_event_time=to_event_time,
        to_earliest=to_earliest,
        to_latest_good=to_latest_good,
    )
    named = SinkPlace.named({"--sink-table": sink_table, "--sink-files": sink_files})
    mode = REPLAN if replan else EXACT
    if execute:
        finished = finish_interrupted(
            checkpoint,
            "rewind",
            lambda journal: (
                journal.mode == mode
                and (journal.target == str(target) or journal.first_batch == to_batch)
            ),
        )
        if finished is not None:
            note("The rewind that was interrupted is now finished.")
            _show_done(finished, checkpoint, output)
            return
    connection = require_connection(settings)
    with progress_bar("Reading event times", unit="records", hidden=to_event_time is None) as seen:
        plan = plan_rewind(
            checkpoint,
            target,
            replan=replan,
            connection=connection,
            event_time_field=event_time_field,
            zone=settings.timezone,
            assume_stopped=assume_stopped,
            sink=named,
            remedy=sink.value if sink else None,
            on_read=lambda records: seen(records, None),
        )
    _show_plan(plan, settings.timezone, output if not execute else Format.table, quiet=execute)
    if save_plan is not None and not plan.refusals:
        try:
            write_whole(save_plan, json.dumps(plan.to_json(), indent=2))
        except OSError as error:
            raise UsageError(
                f"The plan cannot be written to {save_plan}: {error.strerror}.",
                "Name another file with --save-plan.",
            ) from None
        note(f"The plan is in {save_plan}. To do it: ebbtide apply {save_plan}")
    plan.require_allowed()
    if not execute:
        command = execute_command(
            plan,
            checkpoint,
            remedy=sink.value if sink else None,
            table=sink_table,
            files=sink_files,
            assume_stopped=assume_stopped,
        )
        note(f"Nothing has changed. To do it: {command}", style="bold")
        return
    if sys.stdin.isatty():
        ask(f"Rewind {checkpoint} to batch {plan.first_batch}?", yes=yes)
    with progress_bar("Rewinding") as advance:
        backup = apply_rewind(
            plan,
            connection=connection,
            assume_stopped=assume_stopped,
            on_file=advance,
        )
    _show_done(backup, checkpoint, output)


def apply(
    plan: Annotated[Path, typer.Argument(help="A file that `rewind --save-plan` wrote.")],
    yes: Yes = False,
    assume_stopped: AssumeStopped = False,
    home: Home = None,
    bootstrap_servers: Servers = None,
    output: Output = Format.table,
) -> None:
    """Carry out a saved plan; refused if anything has changed since it was made."""
    from ebbtide.local.broker import require_connection
    from ebbtide.rewind.apply import apply_rewind
    from ebbtide.rewind.plan import Plan

    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers)
    try:
        found = Plan.from_json(json.loads(plan.read_text("utf-8")))
    except OSError as error:
        raise UsageError(f"{plan} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise UsageError(
            f"{plan} is not JSON.", "Make one: ebbtide rewind CKPT TARGET --save-plan F"
        ) from None
    ask(f"Rewind {found.checkpoint} to batch {found.first_batch}?", yes=yes)
    connection = require_connection(settings)
    with progress_bar("Rewinding") as advance:
        backup = apply_rewind(
            found,
            connection=connection,
            assume_stopped=assume_stopped,
            on_file=advance,
        )
    _show_done(backup, found.checkpoint, output)


def _show_plan(plan: Plan, zone: str, output: Format, *, quiet: bool) -> None:
    from ebbtide.report import messages as words

    if output is Format.json:
        show_json(plan.to_json())
        return
    note(words.say_target(plan))
    note(f"Times without a zone are read in {zone}; times shown are UTC.")
    note(words.say_amount(plan))
    if quiet:
        return
    if plan.partitions:
        show_table(words.PARTITION_COLUMNS, words.list_partitions(plan), folds="status")
    show_sizes("goes", plan.bytes)
    show_table(("check", "verdict", "detail"), words.list_checks(plan), folds="detail")


def _show_done(backup: Backup, checkpoint: str, output: Format) -> None:
    from ebbtide.report import messages as words

    if output is Format.json:
        show_json(words.summarise(backup))
    note(words.say_rewound(backup, checkpoint))
    warn_of_others(backup)
    for said in (words.say_query_id(backup), words.say_sink(backup)):
        if said is not None:
            note(said)
    note(f"To undo it: {words.undo_command(checkpoint)}", style="bold")
