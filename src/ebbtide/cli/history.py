"""The command `ebbtide history`, which shows what each batch did."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import date
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from ebbtide import report
from ebbtide.cli import options
from ebbtide.cli.checkpoint import read_windows
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import log_line, progress_bar, show_json, show_table, with_broker
from ebbtide.cli.pipelines import describe_late
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.formatting import format_count

if TYPE_CHECKING:
    from ebbtide.checkpoint import Checkpoint, Timeline
    from ebbtide.history import Entry

_CKPT = ".ebbtide/checkpoints/visits-counter"
_MOST_DAYS = 300
"""Dates that lie further apart are shown with their years."""


@command(
    f"ebbtide history {_CKPT} --last 20",
    f"ebbtide history {_CKPT} --plot history.png",
    f"ebbtide history {_CKPT} --rebuild --event-time-field event_time",
)
def history(
    environment: options.Environment,
    checkpoint: str = options.CHECKPOINT,
    last: int | None = option("--last N", "Show only the last N batches.", min=1),
    rebuild: bool = option("--rebuild", "Read what is missing in the history from Kafka."),
    event_time_field: str | None = options.EVENT_TIME_FIELD,
    plot: Path | None = options.PLOT,
    output: options.Output = options.OUTPUT,
) -> None:
    """Show what each batch did: rows, event times, watermark, duration, output.

    A query that ebbtide run started keeps a history of about 10,000 batches in
    its checkpoint, which rewind --to-event-time uses. Of other batches, only
    what the logs hold is shown; --rebuild adds rows and event times from Kafka
    and keeps them. --plot draws rows, durations, event times, lag and state,
    and which batches can run again.
    """
    from ebbtide.checkpoint import Timeline, read_checkpoint
    from ebbtide.history import kept_entries

    settings = environment.settings
    contents = read_checkpoint(checkpoint)
    if rebuild:
        _rebuild(contents, event_time_field, settings)
    entries, logged = kept_entries(contents), contents.logs.by_id
    ids = sorted({*entries, *logged})[-(last or 0) :]
    timeline = Timeline.read(contents.folder)
    if plot is not None:
        _draw(contents, [entries[id_] for id_ in ids if id_ in entries], timeline, settings, plot)
    runs = [
        report.overview.summarize_run(contents, entries.get(id_), logged.get(id_)) for id_ in ids
    ]
    if output == "json":
        parts = [part._asdict() for part in timeline.parts]
        show_json({"query_id": contents.logs.query_id, "timeline": parts, "batches": runs})
    else:
        _show(runs, {first for _, first, _ in timeline.rewinds})
    _log_remarks(contents, timeline, runs, checkpoint)
    _log_late(contents, [entries[id_] for id_ in ids if id_ in entries], settings)


def _log_remarks(
    contents: Checkpoint, timeline: Timeline, runs: list[dict[str, Any]], checkpoint: str
) -> None:
    from ebbtide.history import read_history

    for name, first, mode in timeline.rewinds:
        how = "which kept its records" if mode == "exact" else "planned again"
        log_line(f"> From batch {first} on, {how}: since a rewind ({name}).")
    for path in read_history(contents.folder).strange:
        log_line(f"Warning: {contents.folder.path(path)} is cut or not ours; it is left out.")
    for line in report.gaps.explain_gaps(contents, runs, checkpoint):
        log_line(line)


def _log_late(contents: Checkpoint, entries: list[Entry], settings: Settings) -> None:
    from ebbtide.checkpoint import Owner
    from ebbtide.connectors import progress
    from ebbtide.systems import READY

    late = progress.LateRecords(0)
    for entry in entries:
        late = late.plus(entry.late)
    if late.records:
        # the checkpoint knows the pipeline's name, but not where a pipeline of one's own is defined
        name = Owner.read(contents.folder).pipeline
        log_line(describe_late(late, name if name in READY else "PIPELINE", None, settings))


def _draw(
    contents: Checkpoint, entries: list[Entry], timeline: Timeline, settings: Settings, file: Path
) -> None:
    from ebbtide.checkpoint import Owner
    from ebbtide.history import draw_history

    if not entries:
        raise CheckpointError(
            f"{contents.location} has no history to draw.",
            f"ebbtide run keeps one; to read it from Kafka: ebbtide history "
            f"{quote(contents.location)} --rebuild",
        )
    name = Owner.read(contents.folder).pipeline or contents.location
    windows = read_windows(contents, settings).by_batch
    draw_history(
        entries,
        file,
        title=f"{name}: batches {entries[0].batch} to {entries[-1].batch}",
        again=[batch for batch, window in windows.items() if window.open],
        marks={first: f"rewind to batch {first}" for _, first, _ in timeline.rewinds},
    )
    log_line(f"Drawn: {file}")


def _rebuild(contents: Checkpoint, field: str | None, settings: Settings) -> None:
    from ebbtide.checkpoint import Owner
    from ebbtide.history import rebuild_history

    if contents.logs.batches and not contents.logs.reads_kafka:
        raise CheckpointError(
            f"{contents.location} does not read Kafka, and only from there can rows and event "
            "times be read again.",
            "For later batches, ebbtide.attach keeps a history: docs/start/your-own-job.md",
        )
    field = field or Owner.read(contents.folder).event_time
    if field is None:
        raise UsageError(
            "--rebuild needs the name of the field that holds the event time.",
            "Add --event-time-field NAME.",
        )
    connection, zone = with_broker(settings).kafka, settings.timezone
    with progress_bar("Reading event times", unit="records") as advance:
        entries, lacking = rebuild_history(
            contents, field=field, connection=connection, zone=zone, on_read=advance
        )
    records = sum(entry.rows for entry in entries)
    log_line(f"Rebuilt {len(entries)} batches from {records:,} records; times read in {zone}.")
    if lacking:
        newest = lacking[-1]
        log_line(f"Kafka no longer holds all records of {len(lacking)} batches, up to {newest}.")


def _show(runs: list[dict[str, Any]], rewound: set[int]) -> None:
    """One line per batch; a time has its date unless that is in the head of the column."""
    started, started_on = _format_times([[run["started"] or run["planned"]] for run in runs])
    seen, seen_on = _format_times([list(run["event_times"] or ()) for run in runs])
    marks, marks_on = _format_times([[run["watermark"]] for run in runs])
    times = (f"ran\n{started_on}", f"event times\n{seen_on}", f"watermark\n{marks_on}")
    late = any((run.get("late") or {}).get("records") for run in runs)
    show_table(
        (
            "batch",
            times[0],
            "rows",
            "broken",
            *["late"][:late],
            *times[1:],
            "took",
            "out",
            *["digest"][: not late],
        ),
        [
            (
                f"{'>' if run['id'] in rewound else ''}{run['id']}",
                started[at],
                format_count(run["rows"]),
                format_count(run.get("broken")),
                *[_format_late(run.get("late"))][:late],
                seen[at],
                marks[at],
                _format_duration(run.get("durations")),
                format_count((run["output"] or {}).get("rows")),
                *[(run["output"] or {}).get("digest", "-")[:6]][: not late],
            )
            for at, run in enumerate(runs)
        ],
        folds=times[1],
    )


def _format_times(cells: list[list[str | None]]) -> tuple[list[str], str]:
    """Times as they are shown, and the date that all of them share, if they do.

    >>> _format_times([["2025-09-04T07:00:00.000Z"], [None]])
    (['07:00:00', '-'], '2025-09-04')
    >>> _format_times([["2025-12-31T07:00:00.000Z"], ["2026-01-01T07:00:00.000Z"]])
    (['12-31 07:00:00', '01-01 07:00:00'], 'month-day')
    >>> _format_times([["1970-01-01T00:00:00.000Z"], ["2025-09-05T07:00:00.000Z"]])
    (['1970-01-01 00:00:00', '2025-09-05 07:00:00'], '(UTC)')
    """
    dates = {time[:10] for cell in cells for time in cell if time}
    start = 11 if len(dates) == 1 else 5 if dates and _leave_out_year(dates) else 0
    shown = [" ".join(time[start:19].replace("T", " ") for time in cell if time) for cell in cells]
    head = {0: "(UTC)", 5: "month-day", 11: min(dates, default="")}[start]
    return [text or "-" for text in shown], head


def _leave_out_year(dates: Collection[str]) -> bool:
    """Whether month and day tell dates apart; not with one outside of the calendar."""
    with suppress(ValueError):
        newest, oldest = (date.fromisoformat(each) for each in (max(dates), min(dates)))
        return (newest - oldest).days < _MOST_DAYS
    return False


def _format_late(late: dict[str, Any] | None) -> str:
    return "-" if late is None else f"{'' if late['exact'] else '~'}{late['records']:,}"


def _format_duration(durations: dict[str, int] | None) -> str:
    return f"{durations['triggerExecution'] / 1000:.1f} s" if durations else "-"
