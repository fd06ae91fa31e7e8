"""The command `ebbtide replay`, which runs recorded batches again and compares the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING

import typer

from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import (
    log_line,
    prepare_run,
    prepare_spark,
    progress_bar,
    rows_apart,
    show_json,
    show_table,
    show_text,
)
from ebbtide.formatting import format_count
from ebbtide.pipeline import Pipeline

if TYPE_CHECKING:
    from ebbtide.replaying import ReplayResult, ReplayVerdict


@dataclass(frozen=True)
class ScratchOptions:
    """Which batches a replay to a folder of its own runs, and where."""

    panel = "With --to-scratch"

    from_batch: int | None = option("--from-batch N", "First batch (default: that of the rewind).")
    to_batch: int | None = option("--to-batch N", "Last batch (default: the last one planned).")
    scratch: str | None = option("--scratch DIR", "Folder to write to (default: one in --home).")


@command(
    "ebbtide rewind .ebbtide/checkpoints/visits-counter --shift-by -2 --execute",
    "ebbtide replay visits-counter",
    "ebbtide replay visits-counter --to-scratch --from-batch 1",
    "ebbtide replay job.py:build --checkpoint /data/ckpt --to-scratch --from-batch 1",
)
def replay(
    scratch: ScratchOptions,
    spark: options.SparkOptions,
    environment: options.Environment,
    query: str = options.QUERY,
    checkpoint: str | None = options.QUERY_CHECKPOINT,
    to_scratch: bool = option(
        "--to-scratch", "Change nothing: run a fork that writes to a folder of its own."
    ),
    rows: int = option(
        "--rows N", "Maximum number of differing rows shown per batch, each way.", 5, min=0
    ),
    all_rows: bool = option("--all-rows", "Show all rows that differ."),
    assume_stopped: bool = options.RARE_ASSUME_STOPPED,
    output: options.Output = options.OUTPUT,
) -> None:
    """Run rewound batches again, exactly as they were planned the first time.

    Each gets the same records, watermark and time, and is compared with what
    its first run wrote: identical, differs (with the rows), or not compared,
    and why. An interrupted replay continues where it stopped. With
    --to-scratch nothing is changed: see what new code would have written.

    QUERY is a pipeline, or a function of the Spark session that returns a
    streaming DataFrame or a writer, before .start(). For a function, name the
    checkpoint with --checkpoint.

    Exit 1 if a batch differs.
    """
    from ebbtide.checkpoint import read_logs
    from ebbtide.storage import open_folder
    from ebbtide.systems import find_code

    chosen = find_code(query)
    from ebbtide.replaying import DIFFERS, ReplayOptions, replay_function, replay_pipeline

    replay_options = ReplayOptions(
        checkpoint=checkpoint,
        to_scratch=to_scratch,
        **asdict(scratch),
        assume_stopped=assume_stopped,
        rows=None if all_rows else rows,
        **spark.to_flags(),
    )
    name, settings = query, environment.settings
    if isinstance(chosen, Pipeline):
        name = chosen.name
        # before a broker is started for nothing
        read_logs(open_folder(checkpoint or settings.location("checkpoints", name)))
        settings = prepare_run(settings, chosen, replay_options, broker=chosen.needs_broker)
        start: Callable[..., ReplayResult] = partial(replay_pipeline, chosen)
    else:
        prepare_spark(settings)
        start = partial(replay_function, chosen)
    log_line(f"{name}: replaying recorded batches, time zone {settings.timezone}.")
    bar = progress_bar("Replaying batches")
    with rows_apart(output), bar as advance:
        result = start(settings, replay_options, on_batch=advance, say=log_line)
    if output == "json":
        show_json({**asdict(result), "finished": result.finished})
    else:
        _show(result)
    _log_next(result, query, is_function=not isinstance(chosen, Pipeline))
    if result.count(DIFFERS):
        raise typer.Exit(1)


def _show(result: ReplayResult) -> None:
    show_table(
        ("batch", "verdict", "first", "now", "why"),
        [
            (v.batch, v.verdict, format_count(v.old_rows), format_count(v.new_rows), _explain(v))
            for v in result.verdicts
        ],
        folds="why",
    )
    for verdict in result.verdicts:
        if verdict.new or verdict.old:
            show_text("\n".join(_diff(verdict)))


def _explain(verdict: ReplayVerdict) -> str:
    if verdict.added is None or verdict.removed is None:
        return verdict.reason
    return verdict.reason or f"{verdict.added:,} new, {verdict.removed:,} gone"


def _diff(verdict: ReplayVerdict) -> list[str]:
    """The rows that only one of the two runs wrote."""
    left = (verdict.added or 0) + (verdict.removed or 0) - len(verdict.new) - len(verdict.old)
    more = [f"  and {left:,} more: --rows N, or --all-rows"] if left else []
    return [
        f"batch {verdict.batch}",
        *(f"- {row}" for row in verdict.old),
        *(f"+ {row}" for row in verdict.new),
        *more,
    ]


def _log_next(result: ReplayResult, query: str, *, is_function: bool) -> None:
    from ebbtide.replaying import DIFFERS, IDENTICAL, NOT_COMPARED

    names = {IDENTICAL: "identical", DIFFERS: "different", NOT_COMPARED: "not compared"}
    counts = [f"{n:,} {name}" for verdict, name in names.items() if (n := result.count(verdict))]
    summary = f"Batches {result.first_batch} to {result.last_batch}: {', '.join(counts) or 'none'}."
    log_line(summary, style="bold")
    where = f" --checkpoint {quote(result.checkpoint)}"
    if result.scratch is not None:
        log_line(f"{result.checkpoint} is as it was; the new rows are in {result.scratch}/rows.")
    elif not result.finished:
        log_line(f"It was told to stop. To go on: ebbtide replay {quote(query)}{where}")
    elif is_function:
        log_line("The query goes on after them: start your job again, with the same checkpoint.")
    else:
        log_line(f"The query goes on after them: ebbtide run {quote(query)}{where}")
