"""The command `ebbtide plan`, which compares the ways to correct wrong results."""

from __future__ import annotations

from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING

import typer

from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import log_line, progress_bar, show_json, show_table
from ebbtide.formatting import format_bytes
from ebbtide.times import echo, parse_time

if TYPE_CHECKING:
    from ebbtide.advice import Advice, RecoveryOption

_WIDTH = 80


@command(
    "ebbtide plan visits-counter --since 2026-01-05T02:00",
    "ebbtide plan visits-counter --since 2025-09-04T07:00 --event-time",
)
def plan(
    environment: options.Environment,
    pipeline: str = options.PIPELINE,
    since: str = option("--since TIME", "Time since which results are wrong.", ...),
    event_time: bool = option(
        "--event-time", "Read --since as an event time, not as a processing time."
    ),
    checkpoint: str | None = options.QUERY_CHECKPOINT,
    output: options.Output = options.OUTPUT,
) -> None:
    """Compare the cost of a rewind and of a reprocess, and recommend one.

    Nothing is changed. Exit 0 if at least one of them is possible.
    """
    from ebbtide.advice import compare_options
    from ebbtide.systems import find_pipeline

    settings = environment.settings
    named = {"checkpoint": checkpoint, **asdict(environment)}
    flags = {f"--{name.replace('_', '-')}": value for name, value in named.items() if value}
    with progress_bar("Reading event times", unit="records", hidden=not event_time) as advance:
        advice = compare_options(
            find_pipeline(pipeline),
            settings,
            parse_time(since, settings.timezone),
            event_time=event_time,
            checkpoint=checkpoint,
            reference=pipeline,
            flags=flags,
            on_read=advance,
        )
    if output == "json":
        show_json(advice.to_dict())
    else:
        _show(advice)
    if not advice.possible:
        raise typer.Exit(1)


def _show(advice: Advice) -> None:
    since = echo(advice.since, advice.zone)
    log_line(f"{advice.pipeline}: wrong since {since}, read as {advice.clock}.")
    log_line(f"Times without a zone are read in {advice.zone}; times shown are UTC.")
    if advice.first_batch is not None:
        log_line(f"First batch to replay: {advice.first_batch} ({advice.first_batch_reason}).")
    if advice.span is not None:
        log_line(f"Event times to reprocess: {advice.span} ({advice.span_origin}).")
    rewind, reprocess = advice.rewind, advice.reprocess
    size = format_bytes(rewind.bytes) if rewind.bytes else ""
    show_table(
        ("", "rewind", "reprocess"),
        [
            ("possible", _possible(rewind), _possible(reprocess)),
            ("reads", _reads(rewind), _reads(reprocess)),
            ("source", rewind.retention, reprocess.retention),
            ("state", f"{size} {rewind.state}".strip(), reprocess.state),
            ("stream", rewind.stream, reprocess.stream),
            ("output", rewind.sink, reprocess.sink),
        ],
    )
    typer.echo(fill(f"Recommended: {advice.recommended or 'none'}. {advice.reason}", _WIDTH))
    for caveat in advice.caveats:
        typer.echo(fill(f"But: {caveat}", _WIDTH, initial_indent="  ", subsequent_indent="       "))
    for chosen in (rewind, reprocess):
        if chosen.possible:
            _show_steps(chosen)


def _possible(option: RecoveryOption) -> str:
    return "yes" if option.problem is None else f"no: {option.problem} {option.remedy}".rstrip()


def _reads(option: RecoveryOption) -> str:
    if option.records is None:
        return "?"
    if option.name == "rewind":
        return f"{_count(option.batches, 'batches')}, {_count(option.records, 'records')}"
    read = f"{_count(option.records, 'records')} in {_count(option.files, 'files')}"
    return f"up to {read}, {format_bytes(option.bytes or 0)}"


def _count(number: int | None, what: str) -> str:
    singular = {"batches": "batch"}.get(what, what[:-1])
    return f"{number or 0:,} {singular if number == 1 else what}"


def _show_steps(option: RecoveryOption) -> None:
    typer.echo(f"\nTo {option.name}:")
    for number, step in enumerate(option.steps, 1):
        typer.echo(fill(f"  {number}. {step.what}", _WIDTH, subsequent_indent="     "))
        if step.command:
            typer.echo(f"     {step.command}")
