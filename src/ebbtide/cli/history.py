"""`ebbtide history`: what each batch did."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli.output import (
    CheckpointArgument,
    Format,
    Home,
    Output,
    Servers,
    Zone,
    example,
    note,
    progress_bar,
    show_json,
    show_table,
    with_broker,
)
from ebbtide.config import Settings, load_settings
from ebbtide.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from ebbtide.checkpoint.journal import Timeline
    from ebbtide.checkpoint.reader import Checkpoint
    from ebbtide.connectors.kafka import KafkaConnection
    from ebbtide.history.store import Entry

_CKPT = ".ebbtide/checkpoints/visits-counter"


def register(root: typer.Typer) -> None:
    """Add the command to the root."""
    root.command(
        epilog=example(
            f"ebbtide history {_CKPT} --last 20",
            f"ebbtide history {_CKPT} --plot history.png",
            f"ebbtide history {_CKPT} --rebuild --event-time-field event_time",
        )
    )(history)


def history(
    checkpoint: CheckpointArgument,
    last: Annotated[int | None, typer.Option(help="Only so many batches.", min=1)] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Read from Kafka what batches without history did.")
    ] = False,
    event_time_field: Annotated[
        str | None,
        typer.Option(help="For --rebuild: the JSON field that holds the event time."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw it into this .png, too.", show_default=False),
    ] = None,
    home: Home = None,
    bootstrap_servers: Servers = None,
    timezone: Zone = None,
    output: Output = Format.table,
) -> None:
    """Show what each batch did: rows, event times, watermark, time taken, output.

    A query that `ebbtide run` started keeps it in the checkpoint, about
    10,000 batches back, and --to-event-time of rewind uses it. Of a batch
    that was not recorded, only what the logs say is shown. --rebuild adds
    rows and event times from Kafka and keeps them. --plot draws rows, time
    taken, event times, lag and state, and which batches can run again.
    """
    from ebbtide.checkpoint.journal import read_timeline
    from ebbtide.checkpoint.reader import read_checkpoint
    from ebbtide.history.store import kept_entries, read_history
    from ebbtide.report.overview import tell_run

    if plot is not None:
        from ebbtide.plotting import check_plot_file

        check_plot_file(plot)
    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers, timezone=timezone)
    found = read_checkpoint(checkpoint)
    if rebuild:
        _rebuild(found, event_time_field, with_broker(settings).kafka, settings.timezone)
    entries, logged = kept_entries(found), found.logs.by_id
    ids = sorted({*entries, *logged})[-(last or 0) :]
    timeline = read_timeline(found.folder)
    if plot is not None:
        _draw(found, [entries[id_] for id_ in ids if id_ in entries], timeline, settings, plot)
    rows = [tell_run(found, entries.get(id_), logged.get(id_)) for id_ in ids]
    if output is Format.json:
        parts = [{"name": n, "first_batch": first, "mode": mode} for n, first, mode in timeline]
        show_json({"query_id": found.logs.query_id, "timeline": parts, "batches": rows})
    else:
        _show(rows, {first for _, first, _ in timeline[1:]})
    for name, first, mode in timeline[1:]:
        how = "which kept its records" if mode == "exact" else "planned anew"
        note(f"> From batch {first} on, {how}: since a rewind ({name}).")
    for path in read_history(found.folder).strange:
        note(f"Warning: {found.folder.path(path)} is cut or not ours; it is left out.")
    lacking = [row["id"] for row in rows if row["started"] is None and row["committed"]]
    if lacking and any(logged[id_].positions for id_ in lacking):
        note(
            f"{len(lacking)} of {len(rows)} batches have no history. To read theirs from Kafka: "
            f"ebbtide history {quote(checkpoint)} --rebuild"
        )


def _draw(
    found: Checkpoint, entries: list[Entry], timeline: Timeline, settings: Settings, file: Path
) -> None:
    from ebbtide.cli.checkpoint import connection_to_ask
    from ebbtide.history.plot import draw_history
    from ebbtide.retention.limits import read_windows
    from ebbtide.rewind.plan import OWNER

    if not entries:
        raise CheckpointError(
            f"{found.location} has no history to draw.",
            f"ebbtide run keeps one; to read it from Kafka: ebbtide history "
            f"{quote(found.location)} --rebuild",
        )
    owner = found.folder.read_note(OWNER) or {}
    windows = read_windows(found, owner, connection_to_ask(settings, found))
    draw_history(
        entries,
        file,
        title=f"{owner.get('pipeline') or found.location}: "
        f"batches {entries[0].batch:,} to {entries[-1].batch:,}",
        again=[batch for batch, window in windows.by_batch.items() if window.open],
        marks={first: f"rewind to batch {first:,}" for _, first, _ in timeline[1:]},
    )
    note(f"Drawn: {file}")


def _rebuild(found: Checkpoint, field: str | None, connection: KafkaConnection, zone: str) -> None:
    from ebbtide.history.event_times import rebuild_entries
    from ebbtide.history.store import write_rebuilt
    from ebbtide.rewind.plan import OWNER

    field = field or (found.folder.read_note(OWNER) or {}).get("event_time")
    if field is None:
        raise UsageError(
            "--rebuild needs the name of the field that holds the event time.",
            "Add --event-time-field NAME.",
        )
    with progress_bar("Reading event times", unit="records") as seen:
        entries, lacking = rebuild_entries(
            found,
            field=field,
            connection=connection,
            zone=zone,
            on_read=lambda records: seen(records, None),
        )
    if entries:
        write_rebuilt(found.folder, entries)
    records = sum(entry.rows for entry in entries)
    note(f"Rebuilt {len(entries)} batches from {records:,} records; times read in {zone}.")
    if lacking:
        note(f"Kafka no longer holds all records of {len(lacking)} batches, up to {lacking[-1]}.")


def _show(rows: list[dict[str, Any]], rewound: set[int]) -> None:
    """One line a batch; a time has its date unless that stands above the column."""
    ran, ran_on = _times([[row["started"] or row["planned"]] for row in rows])
    seen, seen_on = _times([list(row["event_times"] or ()) for row in rows])
    marks, marks_on = _times([[row["watermark"]] for row in rows])
    show_table(
        (
            "batch",
            f"ran\n{ran_on}",
            "rows",
            "broken",
            f"event times\n{seen_on}",
            f"watermark\n{marks_on}",
            "took",
            "out",
            "digest",
        ),
        [
            (
                f"{'>' if row['id'] in rewound else ''}{row['id']}",
                ran[at],
                _number(row["rows"]),
                _number(row.get("broken")),
                seen[at],
                marks[at],
                _took(row.get("durations")),
                _number((row["output"] or {}).get("rows")),
                (row["output"] or {}).get("digest", "-")[:6],
            )
            for at, row in enumerate(rows)
        ],
        folds=f"event times\n{seen_on}",
    )


def _times(cells: list[list[str | None]]) -> tuple[list[str], str]:
    """Times as they are shown, and the date that all of them have; without one, what they lack.

    >>> _times([["2025-09-04T07:00:00.000Z"], [None]])
    (['07:00:00', '-'], '2025-09-04')
    >>> _times([["2025-09-04T07:00:00.000Z"], ["2025-09-05T07:00:00.000Z"]])
    (['2025-09-04 07:00:00', '2025-09-05 07:00:00'], '(UTC)')
    """
    dates = {time[:10] for cell in cells for time in cell if time}
    start = 11 if len(dates) == 1 else 0
    shown = [" ".join(time[start:19].replace("T", " ") for time in cell if time) for cell in cells]
    return [text or "-" for text in shown], dates.pop() if start else "(UTC)"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _took(durations: dict[str, int] | None) -> str:
    return f"{durations['triggerExecution'] / 1000:.1f} s" if durations else "-"
