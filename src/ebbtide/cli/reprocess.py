"""`ebbtide reprocess` and `retry`: a range of event time again, beside the running stream."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli.output import (
    Conf,
    Format,
    Home,
    Master,
    Output,
    PipelineArgument,
    Servers,
    Yes,
    Zone,
    ask,
    ensure_jars,
    example,
    note,
    say_bytes,
    show_json,
    show_table,
    stderr,
    with_broker,
)
from ebbtide.config import Settings, load_settings, make_folder
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.times import echo, parse_duration, parse_time

if TYPE_CHECKING:
    from ebbtide.pipeline import Pipeline
    from ebbtide.reprocess.diff import Diff
    from ebbtide.reprocess.logic import Logic
    from ebbtide.reprocess.plan import Plan
    from ebbtide.reprocess.run import OnChunk, Summary

_SHOWN_CHANGES = 20
_POLITE = 5
"""The priority of a nice process; 0 is usual, 19 is for what may starve."""

Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="Draw old and new results into this .png.", show_default=False),
]


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.command(
        epilog=example(
            "ebbtide reprocess visits-counter --event-time-start 2025-09-04T07:00 "
            "--event-time-end 2025-09-04T07:10",
        )
    )(reprocess)
    root.command(epilog=example("ebbtide retry last"))(retry)


def reprocess(
    pipeline: PipelineArgument,
    event_time_start: Annotated[
        str, typer.Option(help="The first event time of the range.", show_default=False)
    ],
    event_time_end: Annotated[
        str, typer.Option(help="The event time before which it ends.", show_default=False)
    ],
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without, the plan is shown.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compute and compare, but write nothing.")
    ] = False,
    only_changed: Annotated[
        bool, typer.Option("--only-changed", help="Write only results that differ.")
    ] = False,
    chunk: Annotated[
        str | None, typer.Option(help="Length of a chunk: PT1H. [dim]at most 24 chunks[/dim]")
    ] = None,
    max_active: Annotated[int, typer.Option(help="So many chunks at once.", min=1)] = 1,
    run_backwards: Annotated[
        bool, typer.Option("--run-backwards", help="The newest chunk first.")
    ] = False,
    plot: Plot = None,
    yes: Yes = False,
    master: Master = None,
    conf: Conf = None,
    home: Home = None,
    bootstrap_servers: Servers = None,
    timezone: Zone = None,
    output: Output = Format.table,
) -> None:
    """Run a pipeline's logic over an archived range of event time.

    The stream goes on meanwhile. Without --execute a plan is shown and
    nothing is written.
    """
    from ebbtide.reprocess.ranges import Span
    from ebbtide.systems.jobs import find_pipeline

    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers, timezone=timezone)
    zone = settings.timezone
    asked = Span(parse_time(event_time_start, zone), parse_time(event_time_end, zone))
    length = None if chunk is None else parse_duration(chunk)
    if length is not None and not length:
        raise UsageError(f"--chunk {chunk} is no length.", "Write it as PT1H.")
    _check_plot(plot)
    found = find_pipeline(pipeline)
    from ebbtide.reprocess.shape import require_range

    require_range(found)
    note(f"{found.name}: event time from {echo(asked.start, zone)}")
    note(f"{'':{len(found.name)}}  to, not including, {echo(asked.end, zone)}")
    with _logic(found, settings, None, master, conf) as logic:
        from ebbtide.reprocess.events import say_begun
        from ebbtide.reprocess.journal import create_run
        from ebbtide.reprocess.plan import Request, plan_reprocess
        from ebbtide.reprocess.run import execute as run_chunks

        request = Request(
            *(pipeline, asked, length, only_changed, max_active, run_backwards),
            servers=settings.bootstrap_servers,
        )
        plan = plan_reprocess(logic, request)
        if output is Format.table:
            _show_plan(plan)
        comparing = (compare or plot is not None) and not execute
        if not execute and not comparing:
            if output is Format.json:
                show_json(plan.to_dict())
            _say_next(plan)
            return
        plan.require()
        if execute and sys.stdin.isatty():
            ask(f"Write {len(plan.chunks)} chunks to {plan.output}?", yes=yes)
        run = plan.begin()
        if execute:
            create_run(logic.settings, run)
            note(say_begun(run.id))
        with _progress(len(run.chunks)) as on_chunk, _interruptible(run.id if execute else None):
            summary = run_chunks(logic, run, write=execute, on_chunk=on_chunk)
    _finish(summary, output, plot, zone, written=execute, plan=plan)


def retry(
    run: Annotated[str, typer.Argument(help="The run's name, as reprocess said it, or last.")],
    plot: Plot = None,
    yes: Yes = False,
    master: Master = None,
    conf: Conf = None,
    home: Home = None,
    bootstrap_servers: Servers = None,
    output: Output = Format.table,
) -> None:
    """Run the chunks of a reprocess that failed or were not reached.

    Range, chunks and the archive's version are those of the first time.
    """
    from ebbtide.systems.jobs import find_pipeline

    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers)
    _check_plot(plot)
    from ebbtide.reprocess.events import say_done_before
    from ebbtide.reprocess.journal import DONE, load_reports, load_run

    found = load_run(settings, run)
    if settings.bootstrap_servers not in (None, found.servers):
        raise UsageError(
            f"Run {found.id} wrote to {found.servers or 'the embedded broker of its home'}, "
            f"not to {settings.bootstrap_servers}.",
            "Leave out --bootstrap-servers, or start a new reprocess.",
        )
    settings = replace(settings, timezone=found.zone, bootstrap_servers=found.servers)
    done = [r for r in load_reports(settings, found).values() if r.status == DONE]
    what = f"{found.asked}, archive version {found.archive_version}"
    note(say_done_before(found.id, what, len(done), len(found.chunks)))
    if sys.stdin.isatty() and len(done) < len(found.chunks):
        ask(f"Run the other {len(found.chunks) - len(done)} chunks?", yes=yes)
    pipeline = find_pipeline(found.reference)
    with _logic(pipeline, settings, found.archive_version, master, conf) as logic:
        from ebbtide.reprocess.run import execute as run_chunks

        if logic.shape.describe() != found.shape:
            raise EbbtideError(
                f"Pipeline {found.pipeline} had {found.shape} when the run began, "
                f"and has {logic.shape.describe()} now.",
                "Start a new reprocess.",
            )
        with (
            _progress(len(found.chunks), len(done)) as on_chunk,
            _interruptible(found.id),
        ):
            summary = run_chunks(logic, found, on_chunk=on_chunk)
    _finish(summary, output, plot, found.zone, written=True)


def _check_plot(plot: Path | None) -> None:
    if plot is not None:
        from ebbtide.plotting import check_plot_file

        check_plot_file(plot)


@contextmanager
def _logic(
    pipeline: Pipeline,
    settings: Settings,
    version: int | None,
    master: str | None,
    conf: list[str] | None,
) -> Iterator[Logic]:
    """The pipeline over its archive, in a session that leaves the live stream the first turn."""
    from ebbtide.archive.facts import read_archive
    from ebbtide.runtime.session import open_session, parse_conf

    given = parse_conf(conf or [])
    make_folder(settings.home, "--home")
    archive = read_archive(pipeline, settings, version)
    if pipeline.topics:
        settings = with_broker(settings)
        from ebbtide.connectors.kafka import require_broker

        require_broker(settings.kafka)
    from ebbtide.connectors import connector_of

    # an output that is not there is refused before Spark is started
    connector_of(pipeline.sink).sink.position(pipeline, settings)
    ensure_jars()
    if master is None or master.startswith("local"):
        _be_polite()
    note("Starting Spark …")
    name = f"{pipeline.name}-reprocess"
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with open_session(name, settings, master=master, conf=given, wanted=pipeline.conf) as spark:
        try:
            from ebbtide.reprocess.logic import Logic

            yield Logic.of(spark, pipeline, settings, archive)
        except (PySparkException, Py4JError) as error:
            raise EbbtideError(
                f"Spark cannot run {pipeline.name} over the archive: {_first_line(error)}",
                f"Details: {settings.logs / f'{name}.log'}",
            ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") + "."


def _be_polite() -> None:
    """Give others the first turn, above all the live stream on this machine."""
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(priority, _POLITE))


@contextmanager
def _interruptible(run: str | None) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if run is None:
            raise
        raise EbbtideError("Interrupted.", f"To go on: ebbtide retry {run}") from None


@contextmanager
def _progress(chunks: int, done: int = 0) -> Iterator[OnChunk]:
    """A bar with chunk, records and the time that is left; plain lines where it cannot be drawn."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from ebbtide.reprocess.events import say_chunk

    console = stderr()
    columns = (
        TextColumn("chunk {task.completed:.0f} of {task.total:.0f}"),
        BarColumn(),
        TextColumn("{task.fields[records]:,} records"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=chunks, completed=done, records=0)
        records = 0

        def advance(report: Any, finished: int, total: int) -> None:
            nonlocal records
            records += report.records
            bar.update(task, completed=finished, records=records)
            if report.error:
                note(say_chunk(report, total), style="red")
            elif not console.is_terminal:
                note(say_chunk(report, total))

        yield advance


def _show_plan(plan: Plan) -> None:
    archive, cost = plan.archive, plan.cost
    share = f"{cost.files:,} of {archive.files:,} files, {say_bytes(cost.bytes)}"
    show_table(
        ("what", "plan"),
        [
            ("results", f"{plan.owned}, {plan.shape.describe()}"),
            ("reads", f"{plan.reads}"),
            ("archive", f"{archive.path}, version {archive.version}"),
            ("cost", f"{plan.records:,} records in {share} of {say_bytes(archive.bytes)}"),
            ("chunks", f"{len(plan.chunks)}, {plan.request.max_active} at a time"),
            ("output", plan.output),
        ],
        folds="plan",
    )
    show_table(
        ("check", "verdict", "detail"),
        [(c.name, str(c.verdict), c.advice) for c in plan.checks],
        folds="detail",
    )


def _say_next(plan: Plan) -> None:
    from ebbtide.reprocess.events import REFUSED

    if (check := plan.refusal) is not None:
        note(f"{REFUSED}{check.detail}. {check.next}", style="bold red")
        raise typer.Exit(1)
    note("Nothing has been written. To see what would change: add --compare. To write: --execute")


def _finish(
    summary: Summary,
    output: Format,
    plot: Path | None,
    zone: str,
    *,
    written: bool,
    plan: Plan | None = None,
) -> None:
    """Step 7: what was done and what differs; the retry line if a chunk failed."""
    diff, run = summary.diff, summary.run
    if output is Format.json:
        show_json(summary.to_dict(written=written, plan=None if plan is None else plan.to_dict()))
    else:
        _show_diff(diff)
    if plot is not None:
        _draw(diff, plot, f"{run.pipeline}: {run.owned}", zone)
        note(f"Drawn: {plot}")
    broken = sum(report.broken for report in summary.reports)
    if broken:
        note(f"{broken:,} broken records of the range were left out, as the stream left them out.")
    count = sum(report.written for report in summary.reports)
    did = f"{count:,} results {'computed' if summary.failed else 'written'}"
    did = did if written else "nothing written"
    chunks = f"{len(summary.reports) - len(summary.failed)} of {len(run.chunks)} chunks"
    note(f"{summary.status.capitalize()}: {chunks}, {did}.")
    if summary.failed:
        if written:
            note(f"To run what is missing: ebbtide retry {run.id}", style="bold")
        raise typer.Exit(1)


def _show_diff(diff: Diff) -> None:
    rows = [
        (change.start or "", change.verdict, change.describe())
        for change in diff.changes[:_SHOWN_CHANGES]
    ]
    if rows:
        show_table(("starts", "verdict", "was → is"), rows, folds="was → is")
    if (more := len(diff.changes) - len(rows)) > 0:
        note(f"and {more} more; all with -o json")
    show_table(
        ("unchanged", "changed", "new", "gone"),
        [[f"{diff.counts.get(v, 0):,}" for v in ("unchanged", "changed", "new", "gone")]],
    )


def _draw(diff: Diff, file: Path, title: str, zone: str) -> None:
    from ebbtide.reprocess.plot import Point, draw

    points = [Point(parse_time(start), old, new) for start, old, new in diff.points]
    draw(points, file, title=title, measure=diff.measure or "rows", zone=zone)
