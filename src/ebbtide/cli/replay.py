"""`ebbtide replay`: recorded batches again, each compared with its first run."""

from __future__ import annotations

import sys
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import options
from ebbtide.cli.output import (
    ensure_jars,
    log_line,
    progress_bar,
    show_json,
    show_table,
    with_broker,
)
from ebbtide.config import load_settings, make_folder

if TYPE_CHECKING:
    from ebbtide.replay.run import ReplayResult
    from ebbtide.replay.verdicts import Verdict

_SHOWN_ROWS = 5


@options.examples(
    "ebbtide rewind .ebbtide/checkpoints/visits-windows-counter --shift-by -2 --execute",
    "ebbtide replay visits-windows-counter",
    "ebbtide replay visits-windows-counter --to-scratch --from-batch 1",
)
def replay(
    pipeline: options.PipelineName,
    checkpoint: options.QueryCheckpoint = None,
    to_scratch: Annotated[
        bool,
        typer.Option(
            "--to-scratch", help="Change nothing: run a fork, and write to a folder of its own."
        ),
    ] = False,
    from_batch: Annotated[
        int | None, typer.Option(help="To scratch: the first. [dim]that of the rewind[/dim]")
    ] = None,
    to_batch: Annotated[
        int | None, typer.Option(help="To scratch: the last. [dim]the last one planned[/dim]")
    ] = None,
    scratch: Annotated[
        str | None, typer.Option(help="To scratch: the folder. [dim]one in the home[/dim]")
    ] = None,
    rows: Annotated[
        int, typer.Option(help="So many differing rows of a batch, each way.", min=0)
    ] = _SHOWN_ROWS,
    all_rows: Annotated[bool, typer.Option("--all-rows", help="All rows that differ.")] = False,
    master: options.Master = None,
    conf: options.Conf = None,
    home: options.Home = None,
    bootstrap_servers: options.Servers = None,
    timezone: options.Zone = None,
    output: options.Output = "table",
) -> None:
    """Run rewound batches again, each just as it was planned the first time.

    Same records, watermark and time; then each is compared with what its
    first run wrote: identical, differs (with the rows), or not compared, and
    why. Interrupted, it goes on where it stopped. With --to-scratch nothing
    is changed: new code shows what it would have written instead.

    Exit 1 if a batch differs.
    """
    from ebbtide.runtime.session import parse_conf
    from ebbtide.systems.jobs import find_pipeline

    found = find_pipeline(pipeline)
    from ebbtide.replay.run import ReplayOptions, replay_pipeline
    from ebbtide.replay.verdicts import DIFFERS

    options = ReplayOptions(
        checkpoint=checkpoint,
        to_scratch=to_scratch,
        from_batch=from_batch,
        to_batch=to_batch,
        scratch=scratch,
        rows=None if all_rows else rows,
        master=master,
        conf=parse_conf(conf or []),
    )
    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers, timezone=timezone)
    make_folder(settings.home, "--home")
    ensure_jars()
    if found.topics:
        settings = with_broker(settings, start=True)
    log_line(f"{found.name}: recorded batches again, time zone {settings.timezone}.")
    with progress_bar("Replaying batch", unit="of {task.total}") as advance:
        result = replay_pipeline(found, settings, options, on_batch=advance, say=log_line)
    if output == "json":
        show_json({**asdict(result), "finished": result.finished})
    else:
        _show(result)
    _say_next(result, pipeline)
    if result.count(DIFFERS):
        raise typer.Exit(1)


def _show(result: ReplayResult) -> None:
    show_table(
        ("batch", "verdict", "first", "now", "why"),
        [
            (v.batch, v.verdict, _count(v.old_rows), _count(v.new_rows), _why(v))
            for v in result.verdicts
        ],
        folds="why",
    )
    for verdict in result.verdicts:
        if verdict.new or verdict.old:
            sys.stdout.write("".join(f"{line}\n" for line in _diff(verdict)))


def _count(rows: int | None) -> str:
    return "-" if rows is None else f"{rows:,}"


def _why(verdict: Verdict) -> str:
    if verdict.added is None or verdict.removed is None:
        return verdict.reason
    return verdict.reason or f"{verdict.added:,} new, {verdict.removed:,} gone"


def _diff(verdict: Verdict) -> list[str]:
    """The rows that only one of the two runs wrote."""
    left = (verdict.added or 0) + (verdict.removed or 0) - len(verdict.new) - len(verdict.old)
    more = [f"  and {left:,} more: --rows N, or --all-rows"] if left else []
    return [
        f"batch {verdict.batch}",
        *(f"- {row}" for row in verdict.old),
        *(f"+ {row}" for row in verdict.new),
        *more,
    ]


def _say_next(result: ReplayResult, pipeline: str) -> None:
    from ebbtide.replay.verdicts import DIFFERS, IDENTICAL, NOT_COMPARED

    names = {IDENTICAL: "identical", DIFFERS: "different", NOT_COMPARED: "not compared"}
    counts = [f"{n:,} {name}" for verdict, name in names.items() if (n := result.count(verdict))]
    said = f"Batches {result.first_batch} to {result.last_batch}: {', '.join(counts) or 'none'}."
    log_line(said, style="bold")
    where = f" --checkpoint {quote(result.checkpoint)}"
    if result.scratch is not None:
        log_line(f"{result.checkpoint} is as it was; the new rows are in {result.scratch}/rows.")
    elif result.finished:
        log_line(f"The query goes on after them: ebbtide run {quote(pipeline)}{where}")
    else:
        log_line(f"It was told to stop. To go on: ebbtide replay {quote(pipeline)}{where}")
