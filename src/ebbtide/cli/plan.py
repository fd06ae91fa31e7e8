"""`ebbtide plan`: results are wrong since a moment; which way back, and what does each cost?"""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import options
from ebbtide.cli.output import log_line, progress_bar, show_json, show_table
from ebbtide.config import load_settings
from ebbtide.formatting import say_bytes
from ebbtide.times import echo, parse_time

if TYPE_CHECKING:
    from ebbtide.advice import Way, Ways

_WIDTH = 80


@options.examples(
    "ebbtide plan visits-counter --since 2026-01-05T02:00",
    "ebbtide plan visits-counter --since 2025-09-04T07:00 --event-time",
)
def plan(
    pipeline: Annotated[str, typer.Argument(help="A ready job, module:attr or path.py:attr.")],
    since: Annotated[str, typer.Option(help="When results began to be wrong.", show_default=False)],
    event_time: Annotated[
        bool, typer.Option("--event-time", help="That is an event time, not when it ran.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="Default: checkpoints/<name> in the home.")
    ] = None,
    home: options.Home = None,
    bootstrap_servers: options.Servers = None,
    timezone: options.Zone = None,
    output: options.Output = "table",
) -> None:
    """Cost both ways back, rewind and reprocess, and recommend one.

    Nothing is changed. Exit 0 if at least one way is open.
    """
    from ebbtide.advice import find_ways
    from ebbtide.systems.jobs import find_pipeline

    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers, timezone=timezone)
    at = parse_time(since, settings.timezone)
    found = find_pipeline(pipeline)
    typed = {
        "--checkpoint": checkpoint,
        "--home": home,
        "--bootstrap-servers": bootstrap_servers,
        "--timezone": timezone,
    }
    with progress_bar("Reading event times", unit="records", hidden=not event_time) as seen:
        ways = find_ways(
            found,
            settings,
            at,
            event_time=event_time,
            checkpoint=checkpoint,
            reference=pipeline,
            flags={name: value for name, value in typed.items() if value},
            on_read=lambda records: seen(records, None),
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
