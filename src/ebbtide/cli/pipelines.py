"""`ebbtide jobs` and `run`: what can be run, and running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from ebbtide.cli.output import (
    AvailableNow,
    Conf,
    Format,
    Home,
    Master,
    MaxOffsets,
    MetricsHost,
    MetricsPort,
    Output,
    PipelineArgument,
    QueryCheckpoint,
    Servers,
    Trigger,
    Zone,
    ensure_jars,
    example,
    note,
    show_json,
    show_table,
    with_broker,
)
from ebbtide.config import load_settings, make_folder

if TYPE_CHECKING:
    from ebbtide.pipeline import Pipeline
    from ebbtide.runtime.stream import BatchReport, StreamResult


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.command(epilog=example("ebbtide jobs"))(jobs)
    root.command(
        epilog=example(
            "ebbtide run visits-windows-counter",
            "ebbtide run my_pipelines.py:clicks --available-now",
        )
    )(run)


def jobs(output: Output = Format.table) -> None:
    """List the ready jobs."""
    from ebbtide.systems.jobs import READY, find_pipeline

    found = [(name, find_pipeline(name)) for name in READY]
    if output is Format.json:
        show_json([_describe(name, pipeline) for name, pipeline in found])
    else:
        show_table(
            ("job", "reads", "writes", "watermark", "mode"),
            [_line(name, pipeline) for name, pipeline in found],
            folds="writes",
        )


def _describe(name: str, pipeline: Pipeline) -> dict[str, object]:
    return {
        "name": name,
        "source": str(pipeline.source),
        "sink": str(pipeline.sink),
        "watermark": pipeline.watermark,
        "output_mode": pipeline.output_mode,
        "scope": pipeline.scope,
    }


def _line(name: str, pipeline: Pipeline) -> list[str]:
    # almost all ends are topics, and the names of two fill a line
    ends = [str(end).removeprefix("topic ") for end in (pipeline.source, pipeline.sink)]
    mode = pipeline.output_mode if pipeline.scope == "stream" else "batch"
    return [name, *ends, pipeline.watermark or "", mode]


def run(
    pipeline: PipelineArgument,
    available_now: AvailableNow = False,
    trigger: Trigger = None,
    max_offsets_per_trigger: MaxOffsets = None,
    checkpoint: QueryCheckpoint = None,
    master: Master = None,
    conf: Conf = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    home: Home = None,
    bootstrap_servers: Servers = None,
    timezone: Zone = None,
    output: Output = Format.table,
) -> None:
    """Run a pipeline as a stream until Ctrl-C or SIGTERM, which let the running batch finish."""
    from ebbtide.runtime.session import parse_conf
    from ebbtide.systems.jobs import find_pipeline

    found = find_pipeline(pipeline)
    from ebbtide.runtime.stream import StreamOptions, run_stream

    options = StreamOptions(
        checkpoint,
        available_now,
        trigger,
        max_offsets_per_trigger,
        master,
        parse_conf(conf or []),
        metrics_port,
        metrics_host,
    )
    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers, timezone=timezone)
    make_folder(settings.home, "--home")
    ensure_jars()
    if found.topics:
        settings = with_broker(settings, start=True)
    note(
        f"{found.name}: {found.source} to {found.sink}, time zone "
        f"{settings.timezone}. Ctrl-C stops it after the running batch. Starting Spark …"
    )
    result = run_stream(found, settings, options, on_batch=show_batch(output), say=note)
    show_end(result, output)


def show_batch(
    output: Format, rows: str = "rows", broken: str = "broken"
) -> Callable[[BatchReport], None]:
    """A function that says what each batch did: a line, or a line of JSON."""

    def show(report: BatchReport) -> None:
        if output is Format.json:
            note(json.dumps(asdict(report)))
            return
        note(
            f"batch {report.id} · {report.rows:,} {rows} · {report.broken:,} {broken}"
            f"{_watermark(report.watermark)} · {report.duration_ms / 1000:.1f} s"
        )

    return show


def show_end(
    result: StreamResult, output: Format, rows: str = "rows", broken: str = "broken"
) -> None:
    """What a run did, once it has stopped."""
    if output is Format.json:
        show_json(asdict(result))
    last = "no batch" if result.last_batch is None else f"batch {result.last_batch}"
    note(f"Stopped after {last}: {result.rows:,} {rows}, {result.broken:,} {broken}.")


def _watermark(watermark: str | None) -> str:
    if watermark is None or watermark.startswith("1970-01-01T00:00:00"):
        return ""
    return f" · watermark {watermark}"
