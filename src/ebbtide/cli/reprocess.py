"""`ebbtide reprocess` and `retry`: run a range of event time again, beside the running stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
)
from ebbtide.config import load_settings
from ebbtide.errors import EbbtideError

if TYPE_CHECKING:
    from rich.progress import Progress

    from ebbtide.reprocess import ReprocessPlan
    from ebbtide.reprocess.diff import ResultDiff
    from ebbtide.reprocess.events import ReprocessEvent, RunFinished

_SHOWN_CHANGES = 20

Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="Draw old and new results into this .png.", show_default=False),
]
Events = Annotated[bool, typer.Option("--events", hidden=True)]
"""Every event as a line of JSON on stdout, errors included: for the web UI."""


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
    max_active: Annotated[int, typer.Option(help="Maximum number of chunks at once.", min=1)] = 1,
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
    events: Events = False,
) -> None:
    """Run a pipeline's logic over an archived range of event time.

    The stream goes on meanwhile. Without --execute a plan is shown and
    nothing is written.
    """
    with _open_view(output, plot, yes=yes, events=events) as show:
        from ebbtide import reprocess as core
        from ebbtide.runtime.session import parse_conf
        from ebbtide.systems.jobs import find_pipeline

        settings = load_settings(home=home, bootstrap_servers=bootstrap_servers, timezone=timezone)
        request = core.ReprocessRequest.parse(
            *(settings, pipeline, event_time_start, event_time_end),
            chunk=chunk,
            only_changed=only_changed,
            max_active=max_active,
            run_backwards=run_backwards,
            compare=compare or plot is not None,
            execute=execute,
        )
        spark = core.SparkOptions(master, parse_conf(conf or []), ensure_jars)
        core.follow(core.reprocess(request, settings, find_pipeline(pipeline), spark), show)


def retry(
    run: Annotated[str, typer.Argument(help="The run's name, as reprocess said it, or last.")],
    plot: Plot = None,
    yes: Yes = False,
    master: Master = None,
    conf: Conf = None,
    home: Home = None,
    bootstrap_servers: Servers = None,
    output: Output = Format.table,
    events: Events = False,
) -> None:
    """Run the chunks of a reprocess that failed or were not reached.

    Range, chunks and the archive's version are those of the first time.
    """
    with _open_view(output, plot, yes=yes, events=events) as show:
        from ebbtide import reprocess as core
        from ebbtide.runtime.session import parse_conf
        from ebbtide.systems.jobs import find_pipeline

        settings = load_settings(home=home, bootstrap_servers=bootstrap_servers)
        spark = core.SparkOptions(master, parse_conf(conf or []), ensure_jars)
        found = core.load_run(settings, run)
        pipeline = find_pipeline(found.reference)
        core.follow(core.retry(found, settings, pipeline, spark), show)


@contextmanager
def _open_view(
    output: Format, plot: Path | None, *, yes: bool, events: bool
) -> Iterator[Callable[[ReprocessEvent], None]]:
    """The function that shows an event; among JSON lines, the error that ends them is one, too."""
    if plot is not None:
        from ebbtide.plotting import check_plot_file

        check_plot_file(plot)
    if not events:
        with closing(_Terminal(output, plot, yes=yes)) as terminal:
            yield terminal.show
        return
    try:
        yield _write_line
    except EbbtideError as error:
        from ebbtide.reprocess.events import ErrorRaised

        _write_line(ErrorRaised(error.problem, error.next_step, error.exit_code))


def _write_line(event: ReprocessEvent) -> None:
    sys.stdout.write(f"{event.to_json()}\n")
    sys.stdout.flush()
    _end(event)


def _end(event: ReprocessEvent) -> None:
    if event.exit_code:
        raise typer.Exit(event.exit_code)


class _Terminal:
    """Shows events to a person: results on stdout, everything else on stderr."""

    def __init__(self, output: Format, plot: Path | None, *, yes: bool) -> None:
        self._json, self._plot, self._yes = output is Format.json, plot, yes
        self._plan: ReprocessPlan | None = None
        self._bar: Progress | None = None

    def show(self, event: ReprocessEvent) -> None:
        """Show one event, and ask before something is written."""
        from ebbtide.reprocess import events

        match event:
            case events.ReprocessPlanned(plan):
                self._show_plan(plan)
            case events.ChunkFinished(report, done):
                self._advance(report.records, done)
            case events.RunFinished():
                self.close()
                self._show_result(event)
        if not (isinstance(event, events.ChunkFinished) and self._bar and not event.report.error):
            for line in event.lines():
                note(line, style="bold red" if event.exit_code else "")
        if isinstance(event, events.RunStarted):
            missing = len(event.run.chunks) - event.done
            if event.resumed and missing and sys.stdin.isatty():
                ask(f"Run the other {missing} chunks?", yes=self._yes)
            self._start_bar(len(event.run.chunks), event.done)
        _end(event)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _start_bar(self, chunks: int, done: int = 0) -> None:
        """A bar with chunk, records and the time that is left; lines where it cannot be drawn."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        if not (console := stderr()).is_terminal:
            return
        columns = (
            TextColumn("chunk {task.completed:.0f} of {task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.fields[records]:,} records"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True)
        self._bar.add_task("", total=chunks, completed=done, records=0)
        self._bar.start()

    def _advance(self, records: int, done: int) -> None:
        if self._bar is not None:
            (task,) = self._bar.tasks
            self._bar.update(task.id, completed=done, records=task.fields["records"] + records)

    def _show_plan(self, plan: ReprocessPlan) -> None:
        self._plan, mode = plan, plan.request.mode
        if not self._json:
            _show_plan_tables(plan)
        elif mode == "plan":
            show_json(plan.to_dict())
        if plan.refusal is not None:
            return
        if mode == "plan":
            note("Nothing has been written. To compare: add --compare. To write: --execute")
        elif mode == "compare":
            self._start_bar(len(plan.chunks))
        elif sys.stdin.isatty():
            ask(f"Write {len(plan.chunks)} chunks to {plan.output}?", yes=self._yes)

    def _show_result(self, finished: RunFinished) -> None:
        summary = finished.summary
        if self._json:
            plan = None if self._plan is None else self._plan.to_dict()
            show_json(summary.to_dict(written=finished.executed, plan=plan))
        else:
            _show_diff(summary.diff)
        if self._plot is not None:
            from ebbtide.reprocess import draw_diff

            title = f"{summary.run.pipeline}: {summary.run.owned}"
            draw_diff(summary.diff, self._plot, title=title, zone=summary.run.zone)
            note(f"Drawn: {self._plot}")


def _show_plan_tables(plan: ReprocessPlan) -> None:
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
        [(c.name, c.verdict, f"{c.detail}. {c.next}".strip()) for c in plan.checks],
        folds="detail",
    )


def _show_diff(diff: ResultDiff) -> None:
    changes = diff.changes[:_SHOWN_CHANGES]
    if changes:
        rows = [(change.start or "", change.verdict, change.describe()) for change in changes]
        show_table(("starts", "verdict", "was → is"), rows, folds="was → is")
    if (more := len(diff.changes) - len(changes)) > 0:
        note(f"and {more} more; all with -o json")
    counted = ("unchanged", "changed", "new", "gone")
    show_table(counted, [[f"{diff.counts.get(verdict, 0):,}" for verdict in counted]])
