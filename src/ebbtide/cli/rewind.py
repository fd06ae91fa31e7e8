"""`ebbtide rewind` and `apply`: plan a rewind of a checkpoint, and apply it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ebbtide.cli import options
from ebbtide.cli.backups import warn_of_others
from ebbtide.cli.commands import argument, command, option
from ebbtide.cli.options import SINK, TARGET
from ebbtide.cli.output import ask, log_line, progress_bar, show_json, show_sizes, show_table
from ebbtide.config import write_whole
from ebbtide.errors import UsageError

if TYPE_CHECKING:
    from ebbtide.checkpoint.journal import Backup
    from ebbtide.rewind.plan import Plan

_CKPT = ".ebbtide/checkpoints/visits-windows-counter"


@dataclass(frozen=True)
class TargetOptions:
    """The target of a rewind: exactly one."""

    to_batch: Annotated[
        int | None, option("--to-batch N", "The first batch to run again.", panel=TARGET)
    ] = None
    shift_by: Annotated[
        int | None, option("--shift-by N", "-3 runs the last 3 batches again.", panel=TARGET)
    ] = None
    to_datetime: Annotated[
        str | None,
        option("--to-datetime T", "The first batch planned at or after a time.", panel=TARGET),
    ] = None
    by_duration: Annotated[
        str | None,
        option("--by-duration D", "The first batch planned in the last PT2H.", panel=TARGET),
    ] = None
    to_offsets: Annotated[
        str | None,
        option("--to-offsets JSON", """Kafka offsets: '{"visits":{"0":12}}'.""", panel=TARGET),
    ] = None
    to_event_time: Annotated[
        str | None,
        option("--to-event-time T", "The first batch that read this or later.", panel=TARGET),
    ] = None
    to_earliest: Annotated[
        bool, option("--to-earliest", "The oldest batch that can run again.", panel=TARGET)
    ] = False
    to_latest_good: Annotated[
        bool, option("--to-latest-good", "The newest batch that can run again.", panel=TARGET)
    ] = False


@dataclass(frozen=True)
class SinkOptions:
    """What becomes of the sink of a rewound query."""

    sink: Annotated[
        Literal["restore", "append-again"] | None,
        option("--sink WAY", "A Delta table: restore, or append-again to its rows.", panel=SINK),
    ] = None
    sink_table: Annotated[
        str | None,
        option("--sink-table TABLE", "The Delta table that the query writes.", panel=SINK),
    ] = None
    sink_files: Annotated[
        str | None,
        option("--sink-files DIR", "The folder that the query writes files to.", panel=SINK),
    ] = None


@command(
    f"ebbtide rewind {_CKPT} --to-batch 5",
    f"ebbtide rewind {_CKPT} --by-duration PT2H --execute",
    "ebbtide rewind .ebbtide/checkpoints/visits-archive --shift-by -1 --sink restore",
)
def rewind(
    checkpoint: options.CheckpointPath,
    target: TargetOptions,
    sink: SinkOptions,
    environment: options.Environment,
    event_time_field: options.EventTimeField = None,
    replan: options.Replan = False,
    save_plan: Annotated[
        Path | None, option("--save-plan FILE", "Write the plan to a file for ebbtide apply.")
    ] = None,
    execute: options.Execute = False,
    yes: options.Yes = False,
    assume_stopped: options.AssumeStopped = False,
    output: options.Output = "table",
) -> None:
    """Plan to take a query back to a batch, state and all; with --execute, do it.

    Exactly one target. The first batch keeps its recorded records, watermark
    and time unless --replan is given. What leaves the checkpoint goes into a
    backup inside it, for `ebbtide undo`. A Delta table that would skip the
    batches stops the rewind until --sink says what becomes of its rows; the
    log of a file sink goes back with the checkpoint.
    """
    from ebbtide.connectors.sink_plans import Sink
    from ebbtide.local import require_connection
    from ebbtide.report.messages import execute_command
    from ebbtide.rewind.apply import apply_rewind, finish_interrupted
    from ebbtide.rewind.plan import EXACT, REPLAN, plan_rewind
    from ebbtide.rewind.target import choose_target

    settings = environment.settings
    chosen = choose_target(settings.timezone, **asdict(target))
    named = Sink.named(table=sink.sink_table, files=sink.sink_files)
    mode = REPLAN if replan else EXACT
    if execute:
        finished = finish_interrupted(
            checkpoint,
            "rewind",
            lambda journal: (
                journal.mode == mode
                and (journal.target == str(chosen) or journal.first_batch == target.to_batch)
            ),
        )
        if finished is not None:
            log_line("The rewind that was interrupted is now finished.")
            _show_done(finished, checkpoint, output)
            return
    connection = require_connection(settings)
    with progress_bar(
        "Reading event times", unit="records", hidden=target.to_event_time is None
    ) as seen:
        plan = plan_rewind(
            checkpoint,
            chosen,
            replan=replan,
            connection=connection,
            event_time_field=event_time_field,
            zone=settings.timezone,
            assume_stopped=assume_stopped,
            sink=named,
            remedy=sink.sink,
            on_read=lambda records: seen(records, None),
        )
    _show_plan(plan, settings.timezone, output if not execute else "table", quiet=execute)
    if save_plan is not None and not plan.refusals:
        try:
            write_whole(save_plan, json.dumps(plan.to_json(), indent=2))
        except OSError as error:
            raise UsageError(
                f"The plan cannot be written to {save_plan}: {error.strerror}.",
                "Name another file with --save-plan.",
            ) from None
        log_line(f"The plan is in {save_plan}. To do it: ebbtide apply {save_plan}")
    plan.require_allowed()
    if not execute:
        command = execute_command(
            plan,
            checkpoint,
            remedy=sink.sink,
            table=sink.sink_table,
            files=sink.sink_files,
            assume_stopped=assume_stopped,
        )
        log_line(f"Nothing has changed. To do it: {command}", style="bold")
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


@command(f"ebbtide rewind {_CKPT} --to-batch 5 --save-plan plan.json", "ebbtide apply plan.json")
def apply(
    plan: Annotated[Path, argument("PLAN", "A file that rewind --save-plan wrote.")],
    environment: options.KafkaOptions,
    yes: options.Yes = False,
    assume_stopped: options.AssumeStopped = False,
    output: options.Output = "table",
) -> None:
    """Carry out a saved plan; refused if anything has changed since it was made."""
    from ebbtide.local import require_connection
    from ebbtide.rewind.apply import apply_rewind
    from ebbtide.rewind.plan import Plan

    settings = environment.settings
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


def _show_plan(plan: Plan, zone: str, output: options.Output, *, quiet: bool) -> None:
    from ebbtide.report import messages as words

    if output == "json":
        show_json(plan.to_json())
        return
    log_line(words.say_target(plan))
    log_line(f"Times without a zone are read in {zone}; times shown are UTC.")
    log_line(words.say_amount(plan))
    if quiet:
        return
    if plan.partitions:
        show_table(words.PARTITION_COLUMNS, words.list_partitions(plan), folds="status")
    show_sizes("goes", plan.bytes)
    show_table(("check", "verdict", "detail"), words.list_checks(plan), folds="detail")


def _show_done(backup: Backup, checkpoint: str, output: options.Output) -> None:
    from ebbtide.report import messages as words

    if output == "json":
        show_json(words.summarise(backup))
    log_line(words.say_rewound(backup, checkpoint))
    warn_of_others(backup)
    for said in (words.say_query_id(backup), words.say_sink(backup)):
        if said is not None:
            log_line(said)
    log_line(f"To undo it: {words.undo_command(checkpoint)}", style="bold")
