"""The command `ebbtide archive`, which copies a pipeline's topic into its Delta table."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import log_line, prepare_run, show_json, show_table, with_broker
from ebbtide.cli.pipelines import log_start, read_stream_options, show_run
from ebbtide.config import Settings
from ebbtide.errors import BrokerError, UsageError
from ebbtide.formatting import format_bytes, format_count
from ebbtide.times import in_utc

if TYPE_CHECKING:
    from ebbtide.archive import Archive, ArchiveLag
    from ebbtide.pipeline import Kafka, Pipeline


@command("ebbtide archive visits-counter", "ebbtide archive visits-counter --status")
def archive(
    query: options.QueryOptions,
    environment: options.Environment,
    pipeline: str = options.PIPELINE,
    status: bool = option("--status", "Show how far the archive has come; start nothing."),
    output: options.Output = options.OUTPUT,
) -> None:
    """Copy each raw record of a pipeline's topic into its Delta archive exactly once.

    It runs until Ctrl-C or SIGTERM, which let the running batch finish, and
    continues from there when it is started again.
    """
    from ebbtide.systems import find_pipeline

    chosen = find_pipeline(pipeline)
    settings = environment.settings
    if status:
        if any(value is not None and value is not False for value in vars(query).values()):
            raise UsageError("--status starts nothing.", "Leave out the options of a run.")
        _show_status(chosen, settings, output)
        return
    from ebbtide.archive import archive_name, archive_of, run_archive

    stream_options = read_stream_options(query)
    topic, table = archive_of(chosen)
    settings = prepare_run(settings, chosen, stream_options, broker=topic.needs_broker)
    log_start(archive_name(table), topic, table, settings.timezone)
    run = partial(run_archive, chosen, settings, stream_options)
    show_run(run, output, "records", "without event time")


def _show_status(pipeline: Pipeline, settings: Settings, output: options.Output) -> None:
    from ebbtide.archive import archive_of, find_lags, read_archive, who_fills

    archived = read_archive(pipeline, settings)
    retained = _read_retained(settings, archive_of(pipeline)[0])
    lags = find_lags(archived.offsets, retained)
    holder = who_fills(archived.checkpoint)
    behind = None if retained is None else sum(lag.behind or 0 for lag in lags)
    if output == "json":
        show_json(
            {
                "pipeline": pipeline.name,
                **_to_dict(archived),
                "running": holder is not None,
                "behind": behind,
                "partitions": [asdict(lag) for lag in lags],
            }
        )
        return
    _show_lags(lags)
    show_table(("archive", ""), _to_rows(archived, holder, behind), folds="")


def _read_retained(settings: Settings, source: Kafka) -> dict[int, tuple[int, int]] | None:
    from ebbtide.connectors import kafka

    try:
        settings = with_broker(settings) if source.needs_broker else settings
        connection = settings.connect(source.connection)
        if retained := kafka.retained_offsets(connection, source.topic):
            return retained
        why = f"There is no topic {source.topic} at {connection}."
    except BrokerError as error:
        why = str(error)
    log_line(f"Cannot tell how far behind it is: {why}", style="bold yellow")
    return None


def _to_dict(archived: Archive) -> dict[str, Any]:
    names = ("path", "version", "topic", "event_time", "timezone", "checkpoint")
    counts = ("records", "unreadable", "files", "bytes")
    return {
        **{name: getattr(archived, name) for name in (*names, *counts)},
        "earliest": archived.earliest and in_utc(archived.earliest),
        "latest": archived.latest and in_utc(archived.latest),
    }


def _show_lags(lags: list[ArchiveLag]) -> None:
    show_table(
        ("partition", "archived up to", "topic's end", "behind"),
        [(lag.partition, *map(format_count, (lag.archived, lag.end, lag.behind))) for lag in lags],
    )
    for lag in lags:
        if lag.lost:
            lost = f"{lag.lost:,} records of partition {lag.partition}"
            log_line(f"{lost} left Kafka before they were archived.", style="bold yellow")


def _to_rows(archived: Archive, holder: str | None, behind: int | None) -> list[tuple[str, str]]:
    values = _to_dict(archived)
    return [
        ("table", archived.path),
        ("version", str(archived.version)),
        ("running", f"yes ({holder})" if holder else "no"),
        ("behind", "unknown" if behind is None else f"{behind:,} records"),
        ("records", f"{archived.records:,}"),
        ("without event time", f"{archived.unreadable:,}"),
        ("files", f"{archived.files:,}, {format_bytes(archived.bytes)}"),
        ("event times", f"{values['earliest']} to {values['latest']}" if archived.latest else "-"),
        ("time zone", archived.timezone),
    ]
