"""`ebbtide jobs` and `run`: what can be run, and running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli.output import (
    Format,
    Home,
    Output,
    Servers,
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
    from ebbtide.runners.stream import BatchReport


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
    from ebbtide.jobs import READY, find_pipeline

    found = [(name, find_pipeline(name)) for name in READY]
    rows = [
        {
            "name": name,
            "source": _end(pipeline.source),
            "sink": _end(pipeline.sink),
            "watermark": pipeline.watermark,
            "output_mode": pipeline.output_mode,
        }
        for name, pipeline in found
    ]
    if output is Format.json:
        show_json(rows)
    else:
        show_table(
            ("job", "reads", "writes", "watermark", "mode"), [list(row.values()) for row in rows]
        )


def run(
    pipeline: Annotated[str, typer.Argument(help="A ready job, module:attr or path.py:attr.")],
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process what is there, then end.")
    ] = False,
    trigger: Annotated[
        str | None, typer.Option(help='Time between batches, such as "20 seconds".')
    ] = None,
    max_offsets_per_trigger: Annotated[
        int | None, typer.Option(help="At most so many records a batch.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Default: checkpoints/<name> in the home.")
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Spark master. [dim]local[*] if none is named[/dim]")
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(help="A Spark setting, name=value.")] = None,
    home: Home = None,
    bootstrap_servers: Servers = None,
    timezone: Zone = None,
    output: Output = Format.table,
) -> None:
    """Run a pipeline as a stream until Ctrl-C or SIGTERM, which let the running batch finish."""
    from ebbtide.jobs import find_pipeline
    from ebbtide.spark import parse_conf

    found = find_pipeline(pipeline)
    from ebbtide.runners.stream import StreamOptions, run_stream

    options = StreamOptions(
        checkpoint,
        available_now,
        trigger,
        max_offsets_per_trigger,
        master,
        parse_conf(conf or []),
    )
    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers, timezone=timezone)
    make_folder(settings.home, "--home")
    ensure_jars()
    if found.topics:
        settings = with_broker(settings, start=True)
    note(
        f"{found.name}: {_end(found.source)} to {_end(found.sink)}, time zone {settings.timezone}. "
        "Ctrl-C stops it after the running batch. Starting Spark …"
    )
    result = run_stream(found, settings, options, on_batch=_show_batch(output), say=note)
    if output is Format.json:
        show_json(asdict(result))
    last = "no batch" if result.last_batch is None else f"batch {result.last_batch}"
    note(f"Stopped after {last}: {result.rows:,} rows, {result.broken:,} broken.")


def _show_batch(output: Format) -> Callable[[BatchReport], None]:
    def show(report: BatchReport) -> None:
        if output is Format.json:
            note(json.dumps(asdict(report)))
            return
        note(
            f"batch {report.id} · {report.rows:,} rows · {report.broken:,} broken"
            f"{_watermark(report.watermark)} · {report.duration_ms / 1000:.1f} s"
        )

    return show


def _watermark(watermark: str | None) -> str:
    if watermark is None or watermark.startswith("1970-01-01T00:00:00"):
        return ""
    return f" · watermark {watermark}"


def _end(end: object) -> str:
    from ebbtide.pipeline import Console, Delta, Files, Kafka

    match end:
        case Kafka(topic=topic):
            return f"topic {topic}"
        case Delta(path=path):
            return f"Delta {path}"
        case Files(path=path, format=kind):
            return f"{kind} files {path}"
        case Console():
            return "console"
    raise AssertionError(end)
