"""The commands `ebbtide reprocess` and `retry`, which run a range of event time again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ebbtide.cli import options
from ebbtide.cli.commands import argument, command, option
from ebbtide.cli.output import ask, ensure_jars, log_line, show_json, show_table, stderr
from ebbtide.cli.rewind import show_checks
from ebbtide.errors import EbbtideError
from ebbtide.formatting import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

    from ebbtide.reprocessing import ReprocessPlan, SparkSetup, events
    from ebbtide.warm_jvm import WarmUse

_SHOWN_CHANGES = 20


@dataclass(frozen=True)
class ViewOptions:
    """How the events of a reprocess are shown."""

    plot: Path | None = options.PLOT
    yes: bool = options.YES
    output: options.Output = options.OUTPUT
    json_lines: bool = option("--events", "Write each event as a line of JSON.", hidden=True)
    """For the web UI: errors are events, too."""

    @contextmanager
    def open(self) -> Iterator[Callable[[events.ReprocessEvent], None]]:
        """Yields the function that shows an event."""
        if not self.json_lines:
            with closing(_Terminal(self)) as terminal:
                yield terminal.show
            return
        try:
            yield _write_line
        except EbbtideError as error:
            from ebbtide.reprocessing import events

            _write_line(events.ErrorRaised(error.problem, error.next_step, error.exit_code))


@dataclass(frozen=True)
class WarmOptions:
    """Whether a JVM is kept for the next command."""

    panel = "Spark"

    warm: bool = option(
        "--warm",
        "Keep Spark's JVM ten minutes for the next one (default: EBBTIDE_WARM or no).",
        envvar="EBBTIDE_WARM",
        show_envvar=False,
    )

    def read(self) -> WarmUse | None:
        """How a warm JVM may be used, if it may."""
        from ebbtide.warm_jvm import WarmUse

        return WarmUse(log_line) if self.warm else None


@command(
    "ebbtide reprocess visits-counter --event-time-start 2025-09-04T07:00 "
    "--event-time-end 2025-09-04T07:10",
)
def reprocess(
    view: ViewOptions,
    spark: options.SparkOptions,
    warm: WarmOptions,
    environment: options.Environment,
    pipeline: str = options.PIPELINE,
    event_time_start: str = option(
        "--event-time-start TIME", "First event time of the range.", ..., panel="Range"
    ),
    event_time_end: str = option(
        "--event-time-end TIME", "Event time before which the range ends.", ..., panel="Range"
    ),
    execute: bool = options.EXECUTE,
    compare: bool = option("--compare", "Compute and compare the results, but write nothing."),
    only_changed: bool = option("--only-changed", "Write only results that differ."),
    chunk: str | None = option(
        "--chunk TIME", "Length of a chunk, such as PT1H (default: at most 24 chunks)."
    ),
    max_active: int = option("--max-active N", "Maximum number of chunks at once.", 1, min=1),
    run_backwards: bool = option("--run-backwards", "Run the newest chunk first."),
) -> None:
    """Run a pipeline's logic over an archived range of event time.

    The stream continues to run. Without --execute a plan is shown and
    nothing is written.
    """
    with view.open() as show:
        from ebbtide.reprocessing import ReprocessRequest, follow, reprocess
        from ebbtide.systems import find_pipeline

        settings = environment.settings
        request = ReprocessRequest.parse(
            *(settings, pipeline, event_time_start, event_time_end),
            chunk=chunk,
            only_changed=only_changed,
            max_active=max_active,
            run_backwards=run_backwards,
            compare=compare or view.plot is not None,
            execute=execute,
        )
        setup = _read_setup(spark, warm)
        follow(reprocess(request, settings, find_pipeline(pipeline), setup), show)


@command("ebbtide retry last")
def retry(
    view: ViewOptions,
    spark: options.SparkOptions,
    warm: WarmOptions,
    environment: options.KafkaOptions,
    run: str = argument("RUN", "Name of the run, as reprocess shows it, or last."),
    assume_stopped: bool = options.RARE_ASSUME_STOPPED,
) -> None:
    """Run the chunks of a reprocess that failed or were not reached.

    Range, chunks and the archive's version are those of the first time.
    """
    with view.open() as show:
        from ebbtide.reprocessing import follow, load_run, retry
        from ebbtide.systems import find_pipeline

        settings, setup = environment.settings, _read_setup(spark, warm)
        begun = load_run(settings, run)
        begun.require_reference()
        pipeline = find_pipeline(begun.reference)
        follow(retry(begun, settings, pipeline, setup, assume_stopped=assume_stopped), show)


def _read_setup(spark: options.SparkOptions, warm: WarmOptions) -> SparkSetup:
    from ebbtide.reprocessing import SparkSetup

    fetch = partial(ensure_jars, "spark")
    return SparkSetup(**spark.to_flags(), fetch_jars=fetch, warm=warm.read())


def _write_line(event: events.ReprocessEvent) -> None:
    sys.stdout.write(f"{event.to_json()}\n")
    sys.stdout.flush()
    if event.exit_code:
        raise typer.Exit(event.exit_code)


class _Terminal:
    """Shows events to a person: results on stdout, everything else on stderr."""

    def __init__(self, view: ViewOptions) -> None:
        self._json, self._plot, self._yes = view.output == "json", view.plot, view.yes
        self._plan: ReprocessPlan | None = None
        self._bar: Progress | None = None

    def show(self, event: events.ReprocessEvent) -> None:
        """Show one event, and ask before something is written."""
        from ebbtide.reprocessing import events

        match event:
            case events.ReprocessPlanned(plan):
                self._show_plan(plan)
            case events.ChunkFinished(report, done):
                self._advance(report.records, done)
            case events.RunFinished():
                self.close()
                self._show_result(event)
        chunk = event.report if isinstance(event, events.ChunkFinished) else None
        failed = event.exit_code or (chunk and chunk.error)
        if failed or chunk is None or self._bar is None:
            for line in event.lines():
                log_line(line, style="bold red" if failed else "")
        if isinstance(event, events.RunStarted):
            missing = len(event.run.chunks) - event.done
            if event.resumed and missing and sys.stdin.isatty():
                ask(f"Run the other {missing} chunks?", yes=self._yes)
            self._start_bar(len(event.run.chunks), event.done)
        if event.exit_code:
            raise typer.Exit(event.exit_code)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _start_bar(self, chunks: int, done: int = 0) -> None:
        """A bar with chunks, records and the remaining time; only on a terminal."""
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
            log_line("Nothing has been written. To compare: add --compare. To write: --execute")
        elif mode == "compare":
            self._start_bar(len(plan.chunks))
        elif sys.stdin.isatty():
            ask(f"Write {len(plan.chunks)} chunks to {plan.output}?", yes=self._yes)

    def _show_result(self, finished: events.RunFinished) -> None:
        summary = finished.summary
        if self._json:
            plan = None if self._plan is None else self._plan.to_dict()
            show_json(summary.to_dict(written=finished.executed, plan=plan))
        else:
            _show_diff(finished)
        if self._plot is not None:
            from ebbtide.reprocessing import draw_diff

            title = f"{summary.run.pipeline}: {summary.run.owned}"
            draw_diff(summary.diff, self._plot, title=title, zone=summary.run.zone)
            log_line(f"Drawn: {self._plot}")


def _show_plan_tables(plan: ReprocessPlan) -> None:
    archive, cost = plan.archive, plan.cost
    share = f"{cost.files:,} of {archive.files:,} files, {format_bytes(cost.bytes)}"
    show_table(
        ("what", "plan"),
        [
            ("results", f"{plan.owned}, {plan.shape.describe()}"),
            ("reads", f"{plan.reads}"),
            ("archive", f"{archive.path}, version {archive.version}"),
            ("cost", f"{plan.records:,} records in {share} of {format_bytes(archive.bytes)}"),
            ("chunks", f"{len(plan.chunks)}, {plan.request.max_active} at a time"),
            ("output", plan.output),
        ],
        folds="plan",
    )
    show_checks(plan.checks)


def _show_diff(finished: events.RunFinished) -> None:
    diff = finished.summary.diff
    changes = diff.changes[:_SHOWN_CHANGES]
    if changes:
        rows = [(change.start or "", change.verdict, change.describe()) for change in changes]
        show_table(("starts", "verdict", "was → is"), rows, folds="was → is")
    if (more := len(diff.changes) - len(changes)) > 0:
        log_line(f"and {more} more; all with -o json")
    counted = ("unchanged", "changed", "new", "gone")
    show_table(counted, [[f"{diff.counts.get(verdict, 0):,}" for verdict in counted]])
