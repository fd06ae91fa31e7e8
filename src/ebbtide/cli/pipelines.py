"""The commands `ebbtide jobs` and `ebbtide run`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from ebbtide.cli import options
from ebbtide.cli.commands import command
from ebbtide.cli.output import ensure_jars, log_line, show_json, show_table, with_broker
from ebbtide.config import make_folder

if TYPE_CHECKING:
    from ebbtide.pipeline import Pipeline
    from ebbtide.runtime import BatchReport, StreamOptions, StreamResult


@command("ebbtide jobs")
def jobs(output: options.Output = "table") -> None:
    """List the built-in jobs."""
    from ebbtide.systems import READY, find_pipeline

    pipelines = {name: find_pipeline(name) for name in READY}
    if output == "json":
        show_json([_to_dict(name, pipeline) for name, pipeline in pipelines.items()])
    else:
        show_table(
            ("job", "reads", "writes", "watermark", "mode"),
            [_to_row(name, pipeline) for name, pipeline in pipelines.items()],
            folds="writes",
        )


def _to_dict(name: str, pipeline: Pipeline) -> dict[str, object]:
    return {
        "name": name,
        "source": str(pipeline.source),
        "sink": str(pipeline.sink),
        "watermark": pipeline.watermark,
        "output_mode": pipeline.output_mode,
        "scope": pipeline.scope,
    }


def _to_row(name: str, pipeline: Pipeline) -> list[str]:
    # almost all ends are topics, and the names of two fill a line
    ends = [str(end).removeprefix("topic ") for end in (pipeline.source, pipeline.sink)]
    mode = pipeline.output_mode if pipeline.scope == "stream" else "batch"
    return [name, *ends, pipeline.watermark or "", mode]


@command("ebbtide run visits-windows-counter", "ebbtide run my_pipelines.py:clicks --available-now")
def run(
    pipeline: options.PipelineName,
    query: options.QueryOptions,
    environment: options.Environment,
    output: options.Output = "table",
) -> None:
    """Run a pipeline as a stream until Ctrl-C or SIGTERM.

    Both let the running batch finish.
    """
    from ebbtide.systems import find_pipeline

    chosen = find_pipeline(pipeline)
    from ebbtide.runtime import run_stream

    stream_options = read_stream_options(query)
    settings = environment.settings
    make_folder(settings.home, "--home")
    ensure_jars()
    if chosen.topics:
        settings = with_broker(settings, start=True)
    log_start(chosen.name, chosen.source, chosen.sink, settings.timezone)
    result = run_stream(chosen, settings, stream_options, on_batch=log_batch(output), say=log_line)
    show_result(result, output)


def read_stream_options(query: options.QueryOptions) -> StreamOptions:
    """Check the options of a query."""
    from ebbtide.runtime import StreamOptions, parse_conf

    return StreamOptions(**{**asdict(query), "conf": parse_conf(query.conf or [])})


def log_start(name: str, source: object, sink: object, timezone: str) -> None:
    """Say what is about to run, and how to stop it."""
    log_line(
        f"{name}: {source} to {sink}, time zone {timezone}. "
        "Ctrl-C stops it after the running batch. Starting Spark …"
    )


def log_batch(
    output: options.Output, rows: str = "rows", broken: str = "broken"
) -> Callable[[BatchReport], None]:
    """A function that reports each batch in a line of text or JSON."""

    def log(report: BatchReport) -> None:
        if output == "json":
            log_line(json.dumps(asdict(report)))
            return
        log_line(
            f"batch {report.id} · {report.rows:,} {rows} · {report.broken:,} {broken}"
            f"{_format_watermark(report.watermark)} · {report.duration_ms / 1000:.1f} s"
        )

    return log


def show_result(
    result: StreamResult, output: options.Output, rows: str = "rows", broken: str = "broken"
) -> None:
    """Show what a run did once it has stopped."""
    if output == "json":
        show_json(asdict(result))
    last = "no batch" if result.last_batch is None else f"batch {result.last_batch}"
    log_line(f"Stopped after {last}: {result.rows:,} {rows}, {result.broken:,} {broken}.")


def _format_watermark(watermark: str | None) -> str:
    if watermark is None or watermark.startswith("1970-01-01T00:00:00"):
        return ""
    return f" · watermark {watermark}"
