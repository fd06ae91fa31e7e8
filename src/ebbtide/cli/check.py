"""The command `ebbtide check`, which tells before a deploy whether new code can go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import (
    log_line,
    prepare_spark,
    progress_bar,
    show_json,
    show_table,
    show_text,
)
from ebbtide.config import SparkFlags

if TYPE_CHECKING:
    from ebbtide.compatibility import CompatibilityReport

_CKPT = ".ebbtide/checkpoints/visits-counter"


@command(f"ebbtide check {_CKPT} job.py:build", f"ebbtide check {_CKPT} visits-counter")
def check(
    environment: options.Environment,
    spark: options.SparkOptions,
    checkpoint: str = options.CHECKPOINT,
    query: str = options.QUERY,
    allow_missing: bool = option(
        "--allow-missing", "Exit 0 if there is no checkpoint yet, as before the first deploy."
    ),
    output: options.Output = options.OUTPUT,
) -> None:
    """Check whether new code can go on from a checkpoint, before you deploy it.

    Spark plans the query without running it. The sources, the stateful
    operators with their keys and values, settings, watermark, output mode and
    sink are compared with the checkpoint. For each: same, compatible or
    breaks, and what Spark would do. The function returns a streaming DataFrame
    or a writer, before .start().

    Exit 1 if the query cannot go on, or if there is no checkpoint: the path may
    be wrong. For the first deploy, --allow-missing.
    """
    from ebbtide.compatibility import find_missing, read_demands
    from ebbtide.systems import find_query, require_reference

    require_reference(query)
    missing = find_missing(checkpoint) if allow_missing else None
    if missing is None:
        read_demands(checkpoint)
    from ebbtide.compatibility import check_query

    prepare_spark(environment.settings)
    log_line("Planning the query with Spark; nothing is run or changed …")
    flags = SparkFlags(**spark.to_flags())
    with progress_bar("Checking"):
        report = check_query(
            checkpoint,
            lambda: find_query(query),
            environment.settings,
            flags,
            allow_missing=allow_missing,
        )
    if output == "json":
        show_json(report.to_dict())
    else:
        _show(report)
    _log_result(report, missing)
    if not report.can_go_on:
        raise typer.Exit(1)


def _show(report: CompatibilityReport) -> None:
    rows = [
        (part.part, part.verdict, part.spark, f"{part.detail}. {part.next}".rstrip(" ."))
        for part in report.parts
    ]
    show_table(("part", "verdict", "Spark", "why"), rows, folds="why")
    lines = ["Not checked:", *(f"  {each}" for each in report.not_checked)]
    if report.ways_out:
        lines += ["Ways out:", *(f"  {each}" for each in report.ways_out)]
    show_text("\n".join(lines))


def _log_result(report: CompatibilityReport, missing: str | None) -> None:
    batch, version = report.next_batch, report.spark
    if missing is not None and report.can_go_on:
        log_line(f"{missing} yet. Spark {version} starts with batch 0.", style="bold")
    elif report.can_go_on:
        log_line(f"Spark {version} goes on with batch {batch}.", style="bold")
    else:
        names = ", ".join(part.part for part in report.breaking)
        line = f"The query cannot go on with batch {batch} (Spark {version}): {names}."
        log_line(line, style="bold red")
