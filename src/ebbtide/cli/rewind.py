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
from ebbtide.config import Settings, write_whole
from ebbtide.errors import UsageError

if TYPE_CHECKING:
    from ebbtide.checkpoint import Backup, Journal
    from ebbtide.rewind import RewindPlan, RewindRequest

_CKPT = ".ebbtide/checkpoints/visits-windows-counter"
_MAKE_ONE = "Make one: ebbtide rewind CKPT TARGET --save-plan F"


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
    from ebbtide.rewind import RewindRequest

    settings = environment.settings
    request = RewindRequest.parse(
        checkpoint,
        settings.timezone,
        **asdict(target),
        **asdict(sink),
        event_time_field=event_time_field,
        replan=replan,
        assume_stopped=assume_stopped,
    )
    if execute and (finished := _finish(request)) is not None:
        log_line("The rewind that was interrupted is now finished.")
        _show_done(finished, checkpoint, output)
        return
    plan = _plan(request, settings)
    _show_plan(plan, settings.timezone, "table" if execute else output, quiet=execute)
    if save_plan is not None and not plan.refusals:
        _save(plan, save_plan)
    plan.require_allowed()
    if not execute:
        command = request.execute_command(plan.first_batch)
        log_line(f"Nothing has changed. To do it: {command}", style="bold")
        return
    if sys.stdin.isatty():
        ask(f"Rewind {checkpoint} to batch {plan.first_batch}?", yes=yes)
    _apply(plan, checkpoint, settings, output, assume_stopped=assume_stopped)


@command(f"ebbtide rewind {_CKPT} --to-batch 5 --save-plan plan.json", "ebbtide apply plan.json")
def apply(
    plan: Annotated[Path, argument("PLAN", "A file that rewind --save-plan wrote.")],
    environment: options.KafkaOptions,
    yes: options.Yes = False,
    assume_stopped: options.AssumeStopped = False,
    output: options.Output = "table",
) -> None:
    """Carry out a saved plan; refused if anything has changed since it was made."""
    from ebbtide.rewind import RewindPlan

    try:
        saved = RewindPlan.from_dict(json.loads(plan.read_text("utf-8")))
    except OSError as error:
        raise UsageError(f"{plan} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise UsageError(f"{plan} is not JSON.", _MAKE_ONE) from None
    ask(f"Rewind {saved.checkpoint} to batch {saved.first_batch}?", yes=yes)
    _apply(saved, saved.checkpoint, environment.settings, output, assume_stopped=assume_stopped)


def _finish(request: RewindRequest) -> Backup | None:
    from ebbtide.rewind import finish_interrupted

    def same(journal: Journal) -> bool:
        asked = str(request.target) in (journal.target, f"--to-batch {journal.first_batch}")
        return asked and journal.mode == request.mode

    return finish_interrupted(request.checkpoint, "rewind", same)


def _plan(request: RewindRequest, settings: Settings) -> RewindPlan:
    from ebbtide.local import require_connection
    from ebbtide.rewind import plan_rewind, target

    connection = require_connection(settings)
    quick = not isinstance(request.target, target.ToEventTime)
    with progress_bar("Reading event times", unit="records", hidden=quick) as advance:
        return plan_rewind(
            request, connection=connection, on_read=lambda records: advance(records, None)
        )


def _save(plan: RewindPlan, file: Path) -> None:
    try:
        write_whole(file, json.dumps(plan.to_dict(), indent=2))
    except OSError as error:
        raise UsageError(
            f"The plan cannot be written to {file}: {error.strerror}.",
            "Name another file with --save-plan.",
        ) from None
    log_line(f"The plan is in {file}. To do it: ebbtide apply {file}")


def _apply(
    plan: RewindPlan, checkpoint: str, settings: Settings, output: str, *, assume_stopped: bool
) -> None:
    from ebbtide.local import require_connection
    from ebbtide.rewind import apply_rewind

    connection = require_connection(settings)
    with progress_bar("Rewinding") as advance:
        backup = apply_rewind(
            plan, connection=connection, assume_stopped=assume_stopped, on_file=advance
        )
    _show_done(backup, checkpoint, output)


def _show_plan(plan: RewindPlan, zone: str, output: str, *, quiet: bool) -> None:
    from ebbtide.report import messages

    if output == "json":
        show_json(plan.to_dict())
        return
    log_line(messages.format_target(plan))
    log_line(f"Times without a zone are read in {zone}; times shown are UTC.")
    log_line(messages.format_amount(plan))
    if quiet:
        return
    if plan.partitions:
        show_table(messages.PARTITION_COLUMNS, messages.list_partitions(plan), folds="status")
    show_sizes("goes", plan.bytes)
    show_table(("check", "verdict", "detail"), messages.list_checks(plan), folds="detail")


def _show_done(backup: Backup, checkpoint: str, output: str) -> None:
    from ebbtide.report import messages

    if output == "json":
        show_json(messages.summarize_backup(backup))
    log_line(messages.format_rewound(backup, checkpoint))
    warn_of_others(backup)
    for line in (messages.format_query_id(backup), messages.format_sink(backup)):
        if line is not None:
            log_line(line)
    log_line(f"To undo it: {messages.undo_command(checkpoint)}", style="bold")
