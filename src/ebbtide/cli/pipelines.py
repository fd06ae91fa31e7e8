"""`ebbtide jobs` and `run`: what can be run, and running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from ebbtide.cli import options
from ebbtide.cli.output import ensure_jars, log_line, show_json, show_table, with_broker
from ebbtide.config import load_settings, make_folder

if TYPE_CHECKING:
    from ebbtide.pipeline import Pipeline
    from ebbtide.runtime.stream import BatchReport, StreamResult


@options.examples("ebbtide jobs")
def jobs(output: options.Output = "table") -> None:
    """List the ready jobs."""
    from ebbtide.systems.jobs import READY, find_pipeline

    found = [(name, find_pipeline(name)) for name in READY]
    if output == "json":
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
        "source": say_end(pipeline.source),
        "sink": say_end(pipeline.sink),
        "watermark": pipeline.watermark,
        "output_mode": pipeline.output_mode,
        "scope": pipeline.scope,
    }


def _line(name: str, pipeline: Pipeline) -> list[str]:
    # almost all ends are topics, and the names of two fill a line
    ends = [say_end(end).removeprefix("topic ") for end in (pipeline.source, pipeline.sink)]
    mode = pipeline.output_mode if pipeline.scope == "stream" else "batch"
    return [name, *ends, pipeline.watermark or "", mode]


@options.examples(
    "ebbtide run visits-windows-counter",
    "ebbtide run my_pipelines.py:clicks --available-now",
)
def run(
    pipeline: options.PipelineName,
    available_now: options.AvailableNow = False,
    trigger: options.Trigger = None,
    max_offsets_per_trigger: options.MaxOffsets = None,
    checkpoint: options.QueryCheckpoint = None,
    master: options.Master = None,
    conf: options.Conf = None,
    metrics_port: options.MetricsPort = None,
    metrics_host: options.MetricsHost = None,
    home: options.Home = None,
    bootstrap_servers: options.Servers = None,
    timezone: options.Zone = None,
    output: options.Output = "table",
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
    log_line(
        f"{found.name}: {say_end(found.source)} to {say_end(found.sink)}, time zone "
        f"{settings.timezone}. Ctrl-C stops it after the running batch. Starting Spark …"
    )
    result = run_stream(found, settings, options, on_batch=show_batch(output), say=log_line)
    show_end(result, output)


def show_batch(
    output: options.Output, rows: str = "rows", broken: str = "broken"
) -> Callable[[BatchReport], None]:
    """A function that says what each batch did: a line, or a line of JSON."""

    def show(report: BatchReport) -> None:
        if output == "json":
            log_line(json.dumps(asdict(report)))
            return
        log_line(
            f"batch {report.id} · {report.rows:,} {rows} · {report.broken:,} {broken}"
            f"{_watermark(report.watermark)} · {report.duration_ms / 1000:.1f} s"
        )

    return show


def show_end(
    result: StreamResult, output: options.Output, rows: str = "rows", broken: str = "broken"
) -> None:
    """What a run did, once it has stopped."""
    if output == "json":
        show_json(asdict(result))
    last = "no batch" if result.last_batch is None else f"batch {result.last_batch}"
    log_line(f"Stopped after {last}: {result.rows:,} {rows}, {result.broken:,} {broken}.")


def _watermark(watermark: str | None) -> str:
    if watermark is None or watermark.startswith("1970-01-01T00:00:00"):
        return ""
    return f" · watermark {watermark}"


def say_end(end: object) -> str:
    """A source or a sink in few words."""
    from ebbtide.pipeline import Console, Delta, Files, ForeachBatch, Kafka

    match end:
        case Kafka(topic=topic):
            return f"topic {topic}"
        case Delta(path=path):
            return f"Delta {path}"
        case Files(path=path, format=kind):
            return f"{kind} files {path}"
        case ForeachBatch():
            return "foreachBatch"
        case Console():
            return "console"
    raise AssertionError(end)
