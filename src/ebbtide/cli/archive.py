"""`ebbtide archive`: a pipeline's topic into its Delta table, and how far that is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

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
    say_bytes,
    show_json,
    show_table,
    with_broker,
)
from ebbtide.cli.pipelines import show_batch, show_end
from ebbtide.config import Settings, load_settings, make_folder
from ebbtide.errors import BrokerError, UsageError

if TYPE_CHECKING:
    from ebbtide.archive.facts import Archive
    from ebbtide.archive.status import Lag
    from ebbtide.pipeline import Pipeline

_WORDS = ("records", "without event time")


def register(root: typer.Typer) -> None:
    """Add the command to the root."""
    root.command(
        epilog=example(
            "ebbtide archive visits-counter",
            "ebbtide archive visits-counter --status",
        )
    )(archive)


def archive(
    pipeline: PipelineArgument,
    status: Annotated[
        bool, typer.Option("--status", help="Show how far the archive is; start nothing.")
    ] = False,
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
    """Copy every raw record of a pipeline's topic into its Delta archive, each once.

    It runs until Ctrl-C or SIGTERM, which let the running batch finish.
    Started again, it goes on where it was.
    """
    from ebbtide.systems.jobs import find_pipeline

    found = find_pipeline(pipeline)
    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers, timezone=timezone)
    if status:
        named = (trigger, max_offsets_per_trigger, checkpoint, master, conf, metrics_host)
        if available_now or any(named) or metrics_port is not None:
            raise UsageError("--status starts nothing.", "Leave out the flags of a run.")
        _show_status(found, settings, output)
        return
    from ebbtide.archive.layout import archive_name, archive_of
    from ebbtide.archive.runner import run_archive
    from ebbtide.runtime.session import parse_conf
    from ebbtide.runtime.stream import StreamOptions

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
    topic, table = archive_of(found)
    make_folder(settings.home, "--home")
    ensure_jars()
    settings = with_broker(settings, start=True)
    note(
        f"{archive_name(table)}: {topic} to {table}, time zone "
        f"{settings.timezone}. Ctrl-C stops it after the running batch. Starting Spark …"
    )
    result = run_archive(found, settings, options, on_batch=show_batch(output, *_WORDS), say=note)
    show_end(result, output, *_WORDS)


def _show_status(pipeline: Pipeline, settings: Settings, output: Format) -> None:
    from ebbtide.archive.facts import read_archive
    from ebbtide.archive.status import find_lags, who_fills

    found = read_archive(pipeline, settings)
    retained = _retained(settings, found.topic)
    lags = find_lags(found.offsets, retained)
    holder = who_fills(found.checkpoint)
    behind = None if retained is None else sum(lag.behind or 0 for lag in lags)
    if output is Format.json:
        show_json(
            {
                "pipeline": pipeline.name,
                **_facts(found),
                "running": holder is not None,
                "behind": behind,
                "partitions": [asdict(lag) for lag in lags],
            }
        )
        return
    _show_lags(lags)
    show_table(("archive", ""), _rows(found, holder, behind), folds="")


def _retained(settings: Settings, topic: str) -> dict[int, tuple[int, int]] | None:
    from ebbtide.connectors import kafka

    try:
        if found := kafka.retained_offsets(connection := with_broker(settings).kafka, topic):
            return found
        why = f"There is no topic {topic} at {connection}."
    except BrokerError as error:
        why = str(error)
    note(f"How far behind it is cannot be said: {why}", style="bold yellow")
    return None


def _facts(found: Archive) -> dict[str, Any]:
    from ebbtide.times import in_utc

    return {
        "path": found.path,
        "version": found.version,
        "topic": found.topic,
        "event_time": found.event_time,
        "timezone": found.timezone,
        "checkpoint": found.checkpoint,
        "records": found.records,
        "unreadable": found.unreadable,
        "files": found.files,
        "bytes": found.bytes,
        "earliest": found.earliest and in_utc(found.earliest),
        "latest": found.latest and in_utc(found.latest),
    }


def _show_lags(lags: list[Lag]) -> None:
    show_table(
        ("partition", "archived up to", "topic's end", "behind"),
        [(lag.partition, *map(_count, (lag.archived, lag.end, lag.behind))) for lag in lags],
    )
    for lag in lags:
        if lag.lost:
            note(
                f"{lag.lost:,} records of partition {lag.partition} left Kafka before they were "
                "archived.",
                style="bold yellow",
            )


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _rows(found: Archive, holder: str | None, behind: int | None) -> list[tuple[str, str]]:
    facts = _facts(found)
    return [
        ("table", found.path),
        ("version", str(found.version)),
        ("running", f"yes ({holder})" if holder else "no"),
        ("behind", "unknown" if behind is None else f"{behind:,} records"),
        ("records", f"{found.records:,}"),
        ("without event time", f"{found.unreadable:,}"),
        ("files", f"{found.files:,}, {say_bytes(found.bytes)}"),
        ("event times", f"{facts['earliest']} to {facts['latest']}" if found.latest else "-"),
        ("time zone", found.timezone),
    ]
