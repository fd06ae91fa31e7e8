"""The commands `ebbtide rewind` and `apply`, which plan and apply a rewind of a checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

from ebbtide import report
from ebbtide.checks import Check
from ebbtide.cli import options
from ebbtide.cli.backups import show_change
from ebbtide.cli.commands import argument, command, option
from ebbtide.cli.output import (
    ask,
    end_part,
    interruptible,
    log_line,
    progress_bar,
    show_json,
    show_sizes,
    show_table,
)
from ebbtide.config import write_whole
from ebbtide.errors import UsageError
from ebbtide.parsing import parse_json, read_regular

if TYPE_CHECKING:
    from ebbtide.checkpoint import Backup, Journal
    from ebbtide.connectors.kafka import KafkaConnection
    from ebbtide.rewind import RewindPlan, RewindRequest

_CKPT = ".ebbtide/checkpoints/visits-windows-counter"


@dataclass(frozen=True)
class TargetOptions:
    """The target of a rewind: exactly one."""

    panel = "Target (exactly one)"

    to_batch: int | None = option("--to-batch N", "The first batch to run again.")
    shift_by: int | None = option("--shift-by N", "-3 runs the last 3 batches again.")
    to_datetime: str | None = option(
        "--to-datetime T", "The first batch planned at or after a time."
    )
    by_duration: str | None = option("--by-duration D", "The first batch planned in the last PT2H.")
    to_offsets: str | None = option("--to-offsets JSON", 'Kafka offsets: \'{"visits":{"0":12}}\'.')
    to_event_time: str | None = option(
        "--to-event-time T", "The first batch that read this or later."
    )
    to_earliest: bool = option("--to-earliest", "The oldest batch that can run again.")
    to_latest_good: bool = option("--to-latest-good", "The newest batch that can run again.")


@dataclass(frozen=True)
class SinkOptions:
    """What becomes of the sink of a rewound query."""

    panel = "Sink"

    sink: Literal["restore", "append-again", "none"] | None = option(
        "--sink WAY", "Delta: restore, or append-again. none: it accepts the same batches again."
    )
    sink_table: list[str] | None = options.SINK_TABLE
    sink_files: str | None = options.SINK_FILES


@command(
    f"ebbtide rewind {_CKPT} --to-batch 5",
    f"ebbtide rewind {_CKPT} --by-duration PT2H --execute",
    "ebbtide rewind .ebbtide/checkpoints/visits-archive --shift-by -1 --sink restore",
    "ebbtide rewind /data/ckpt --to-batch 5 --sink-table /data/a --sink-table /data/b",
    "ebbtide rewind /data/kafka-job --to-batch 5 --sink none",
)
def rewind(
    target: TargetOptions,
    sink: SinkOptions,
    environment: options.Environment,
    checkpoint: str = options.CHECKPOINT,
    event_time_field: str | None = options.EVENT_TIME_FIELD,
    replan: bool = options.REPLAN,
    save_plan: Path | None = option(
        "--save-plan FILE", "Write the plan to a file for ebbtide apply."
    ),
    execute: bool = options.EXECUTE,
    yes: bool = options.YES,
    assume_stopped: bool = options.ASSUME_STOPPED,
    output: options.Output = options.OUTPUT,
) -> None:
    """Plan to take a query back to a batch, state and all; with --execute, do it.

    Exactly one target. The first batch keeps its records, watermark and
    time unless --replan is given. What leaves the checkpoint goes into a
    backup inside it, for `ebbtide undo`. A Delta table that would skip the
    batches stops the rewind until --sink says what becomes of its rows; the
    log of a file sink goes back with the checkpoint. If Ebbtide does not run
    the query, name its sink once, or use --sink none for one that accepts the
    same batches again, such as Kafka or the console.
    """
    from ebbtide.local import require_connection
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
    connection = require_connection(settings)
    kafka = "".join(f" {flag} {quote(value)}" for flag, value in settings.kafka_flags())
    plan = _plan(request, connection)
    _show_plan(plan, settings.timezone, "table" if execute else output, quiet=execute)
    execute_command = f"{request.execute_command(plan.first_batch)}{kafka}"
    if save_plan is not None and not plan.refusals:
        _save(plan, save_plan)
        log_line(f"The plan is in {save_plan}.")
        stopped = " --assume-stopped" if assume_stopped else ""
        execute_command = f"ebbtide apply {quote(str(save_plan))}{stopped}{kafka}"
    plan.require_allowed()
    if not execute:
        log_line(f"Nothing has changed. To do it: {execute_command}", style="bold")
        return
    if sys.stdin.isatty():
        ask(f"Rewind {checkpoint} to batch {plan.first_batch}?", yes=yes)
    backup = _apply(plan, connection, assume_stopped=assume_stopped)
    _show_done(backup, checkpoint, output)


@command(f"ebbtide rewind {_CKPT} --to-batch 5 --save-plan plan.json", "ebbtide apply plan.json")
def apply(
    environment: options.KafkaOptions,
    plan: Path = argument("PLAN", "A file that rewind --save-plan wrote."),
    checkpoint: str | None = option(
        "--checkpoint CKPT", "Its URL with the password, which no plan contains."
    ),
    yes: bool = options.YES,
    assume_stopped: bool = options.ASSUME_STOPPED,
    output: options.Output = options.OUTPUT,
) -> None:
    """Carry out a saved plan; refused if anything has changed since it was made."""
    from ebbtide.local import require_connection
    from ebbtide.rewind import RewindPlan
    from ebbtide.storage import open_folder

    make_one = "Make one: ebbtide rewind CKPT TARGET --save-plan F"
    try:
        saved = RewindPlan.from_dict(parse_json(read_regular(str(plan))))
    except OSError as error:
        raise UsageError(f"{plan} cannot be read: {error.strerror}.", make_one) from None
    except UsageError as error:
        raise UsageError(f"{plan}: {error.problem}", make_one) from None
    except ValueError:
        raise UsageError(f"{plan} is not JSON.", make_one) from None
    if checkpoint and open_folder(checkpoint).address != open_folder(saved.checkpoint).address:
        raise UsageError(
            f"{plan} is a plan for {saved.checkpoint}, not for {checkpoint}.",
            "Leave out --checkpoint, or name that one.",
        )
    _show_plan(saved, None, "table", quiet=True)
    ask(f"Rewind {saved.checkpoint} to batch {saved.first_batch}?", yes=yes)
    connection = require_connection(environment.settings)
    backup = _apply(saved, connection, assume_stopped=assume_stopped)
    _show_done(backup, saved.checkpoint, output)


def _finish(request: RewindRequest) -> Backup | None:
    from ebbtide.rewind import finish_interrupted

    def same(journal: Journal) -> bool:
        asked = str(request.target) in (journal.target, f"--to-batch {journal.first_batch}")
        return asked and journal.mode == request.mode

    with interruptible():
        return finish_interrupted(
            request.checkpoint, "rewind", same, assume_stopped=request.assume_stopped
        )


def _plan(request: RewindRequest, connection: KafkaConnection | None) -> RewindPlan:
    from ebbtide.rewind import plan_rewind, target

    quick = not isinstance(request.target, target.ToEventTime)
    with progress_bar("Reading event times", unit="records", hidden=quick) as advance:
        return plan_rewind(request, connection=connection, on_read=advance)


def _save(plan: RewindPlan, file: Path) -> None:
    try:
        write_whole(file, json.dumps(plan.to_dict(), indent=2))
    except OSError as error:
        raise UsageError(
            f"The plan cannot be written to {file}: {error.strerror}.",
            "Name another file with --save-plan.",
        ) from None


def _apply(plan: RewindPlan, connection: KafkaConnection | None, *, assume_stopped: bool) -> Backup:
    from ebbtide.rewind import apply_rewind

    with interruptible(), progress_bar("Rewinding") as advance:
        return apply_rewind(
            plan, connection=connection, assume_stopped=assume_stopped, on_file=advance
        )


def _show_plan(plan: RewindPlan, zone: str | None, output: str, *, quiet: bool) -> None:
    if output == "json":
        show_json(plan.to_dict())
        return
    log_line(report.messages.format_target(plan))
    if zone is not None:
        log_line(f"Times without a zone are read in {zone}; times shown are UTC.")
    log_line(report.messages.format_amount(plan))
    if quiet:
        for check in plan.warnings:
            log_line(f"Warning: {check.name}: {check.advice}", style="bold yellow")
        return
    if plan.partitions:
        show_table(
            report.messages.PARTITION_COLUMNS, report.messages.list_partitions(plan), folds="status"
        )
    show_sizes("goes", plan.bytes)
    show_checks(plan.checks)


def show_checks(checks: Iterable[Check]) -> None:
    """Show the checks of a plan."""
    rows = [(check.name, check.verdict, check.advice) for check in checks]
    show_table(("check", "verdict", "detail"), rows, folds="detail")


def _show_done(backup: Backup, checkpoint: str, output: str) -> None:
    end_part()
    log_line(report.messages.format_rewound(backup, checkpoint))
    if line := report.messages.format_query_id(backup):
        log_line(line)
    show_change(backup, output)
    log_line(f"To undo it: {report.messages.undo_command(checkpoint)}", style="bold")
