"""The command `ebbtide plan`, which compares the ways to correct wrong results."""

from __future__ import annotations

from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import log_line, progress_bar, show_json, show_table
from ebbtide.formatting import say_bytes
from ebbtide.times import echo, parse_time

if TYPE_CHECKING:
    from ebbtide.advice import Way, Ways

_WIDTH = 80


@command(
    "ebbtide plan visits-counter --since 2026-01-05T02:00",
    "ebbtide plan visits-counter --since 2025-09-04T07:00 --event-time",
)
def plan(
    pipeline: options.PipelineName,
    since: Annotated[str, option("--since TIME", "When results began to be wrong.")],
    environment: options.Environment,
    event_time: Annotated[
        bool, option("--event-time", "--since is an event time, not a processing time.")
    ] = False,
    checkpoint: options.QueryCheckpoint = None,
    output: options.Output = "table",
) -> None:
    """Compare the cost of a rewind and of a reprocess, and recommend one.

    Nothing is changed. Exit 0 if at least one of them is possible.
    """
    from ebbtide.advice import find_ways
    from ebbtide.systems.jobs import find_pipeline

    settings = environment.settings
    at = parse_time(since, settings.timezone)
    named = {"checkpoint": checkpoint, **asdict(environment)}
    flags = {f"--{name.replace('_', '-')}": value for name, value in named.items() if value}
    with progress_bar("Reading event times", unit="records", hidden=not event_time) as advance:
        ways = find_ways(
            find_pipeline(pipeline),
            settings,
            at,
            event_time=event_time,
            checkpoint=checkpoint,
            reference=pipeline,
            flags=flags,
            on_read=lambda records: advance(records, None),
        )
    if output == "json":
        show_json(ways.to_json())
    else:
        _show(ways)
    if not ways.possible:
        raise typer.Exit(1)


def _show(ways: Ways) -> None:
    log_line(f"{ways.pipeline}: wrong since {echo(ways.since, ways.zone)}, read as {ways.clock}.")
    log_line(f"Times without a zone are read in {ways.zone}; times shown are UTC.")
    if ways.first_batch is not None:
        log_line(f"First batch to replay: {ways.first_batch} ({ways.found}).")
    if ways.span is not None:
        log_line(f"Event times to reprocess: {ways.span} ({ways.span_found}).")
    rewind, reprocess = ways.rewind, ways.reprocess
    show_table(
        ("", "rewind", "reprocess"),
        [
            ("open", _open(rewind), _open(reprocess)),
            ("reads", _reads(rewind), _reads(reprocess)),
            ("source", rewind.retention, reprocess.retention),
            ("state", _state(rewind), reprocess.state),
            ("stream", rewind.stream, reprocess.stream),
            ("output", rewind.sink, reprocess.sink),
        ],
    )
    typer.echo(fill(f"Recommended: {ways.recommended or 'none'}. {ways.reason}", _WIDTH))
    for caveat in ways.caveats:
        typer.echo(fill(f"But: {caveat}", _WIDTH, initial_indent="  ", subsequent_indent="       "))
    for way in (rewind, reprocess):
        if way.possible:
            _show_steps(way)


def _open(way: Way) -> str:
    return "yes" if way.problem is None else f"no: {way.problem} {way.remedy}".rstrip()


def _reads(way: Way) -> str:
    if way.records is None:
        return "?"
    if way.name == "rewind":
        return f"{_count(way.batches, 'batches')}, {_count(way.records, 'records')}"
    read = f"{_count(way.records, 'records')} in {_count(way.files, 'files')}"
    return f"up to {read}, {say_bytes(way.bytes or 0)}"


def _count(number: int | None, what: str) -> str:
    singular = {"batches": "batch"}.get(what, what[:-1])
    return f"{number or 0:,} {singular if number == 1 else what}"


def _state(way: Way) -> str:
    return f"{say_bytes(way.bytes)} {way.state}" if way.bytes else way.state


def _show_steps(way: Way) -> None:
    typer.echo(f"\nTo {way.name}:")
    for number, step in enumerate(way.steps, 1):
        typer.echo(fill(f"  {number}. {step.what}", _WIDTH, subsequent_indent="     "))
        if step.command:
            typer.echo(f"     {step.command}")
