"""`ebbtide inspect` and `verify`: what a checkpoint holds, and whether it is whole."""

from __future__ import annotations

from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli.output import (
    AnyHome,
    AnyServers,
    CheckpointArgument,
    Format,
    Home,
    Output,
    Servers,
    example,
    note,
    progress_bar,
    say_bytes,
    show_json,
    show_table,
)
from ebbtide.config import Settings, load_settings
from ebbtide.errors import CheckpointError

if TYPE_CHECKING:
    from ebbtide.checkpoint.reader import Checkpoint
    from ebbtide.connectors.kafka import KafkaConnection
    from ebbtide.retention.limits import Windows

_EXAMPLE = ".ebbtide/checkpoints/visits-windows-counter"


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.command(epilog=example(f"ebbtide inspect {_EXAMPLE}"))(inspect)
    root.command(epilog=example(f"ebbtide verify {_EXAMPLE}"))(verify)


def inspect(
    checkpoint: CheckpointArgument,
    home: Home = None,
    bootstrap_servers: Servers = None,
    output: Output = Format.table,
) -> None:
    """Show the batches, the state, which batches can run again, and how long.

    Batches are judged by their log entries and by the names of the state's
    files, which takes a moment. To have every file read, use verify. How long
    a batch can run again is what the retention of checkpoint, Kafka and Delta
    leaves: at least until then, and with ~ if the query goes on at its pace.
    """
    from ebbtide.checkpoint.reader import read_checkpoint
    from ebbtide.report.overview import say_end, tell_batch, tell_operator
    from ebbtide.retention.limits import read_windows
    from ebbtide.rewind.plan import OWNER

    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers)
    found = read_checkpoint(checkpoint)
    owner = found.folder.read_note(OWNER) or {}
    windows = read_windows(found, owner, connection_to_ask(settings, found))
    rows = [tell_batch(found, batch, windows) for batch in found.logs.batches]
    operators = [tell_operator(found, operator) for operator in found.operators]
    latest = found.logs.batches[-1].id if found.logs.batches else None
    if output is Format.json:
        show_json(
            {
                "query_id": found.logs.query_id,
                "latest_batch": latest,
                "oldest_restorable": found.oldest_restorable,
                "oldest_replayable": windows.oldest,
                "batches": rows,
                "operators": operators,
                "unknown_files": found.unknown,
                "interrupted": found.interrupted.action if found.interrupted else None,
                "remarks": windows.remarks,
            }
        )
        return
    note(f"Query {found.logs.query_id}. Times are UTC.")
    _show_batches(rows)
    if operators:
        show_table(
            ("operator", "name", "partitions", "stores", "versions", "newest"),
            [
                (
                    operator["id"],
                    operator["name"] or "-",
                    operator["partitions"],
                    operator["stores"],
                    f"{operator['oldest_version']} to {operator['newest_version']}",
                    say_bytes(operator["bytes"]),
                )
                for operator in operators
            ],
        )
    _show_windows(windows)
    for remark in windows.remarks:
        note(remark)
    oldest = windows.oldest
    end = "" if oldest is None else say_end(windows.by_batch[oldest])
    note(
        "No batch can run again."
        if oldest is None
        else f"The oldest batch that can run again is {oldest}; {end}. "
        f"To go back: ebbtide rewind {quote(checkpoint)} --to-batch {oldest}"
    )
    for path in found.unknown:
        note(f"Not written by Spark 3.5 to 4.2: {path}")
    try:
        found.require_finished()
    except CheckpointError as error:
        note(f"Warning: {error}", style="bold yellow")


def verify(
    checkpoint: CheckpointArgument,
    min_batches_to_retain: Annotated[
        int | None,
        typer.Option(
            help="The query's spark.sql.streaming.minBatchesToRetain. "
            "[dim]as the logs show, at most 100[/dim]",
            show_default=False,
            min=1,
        ),
    ] = None,
    home: AnyHome = None,
    bootstrap_servers: AnyServers = None,
    output: Output = Format.table,
) -> None:
    """Prove that every retained batch can run again: read every file, compare every checksum.

    Exit 1 if a batch that Spark should have kept cannot run again, or if the
    query could not go on. Batches that Spark has cleaned up, as it may, are
    just said to be gone.
    """
    from ebbtide.checkpoint.verify import GOOD, verify_checkpoint

    del home, bootstrap_servers
    with progress_bar("Verifying batches") as advance:
        report = verify_checkpoint(checkpoint, retained=min_batches_to_retain, on_batch=advance)
    good = [proof.batch for proof in report.proofs if proof.verdict == GOOD]
    if output is Format.json:
        show_json(
            {
                "query_id": report.query_id,
                "whole": not report.broken,
                "batches": [
                    {"id": p.batch, "verdict": p.verdict, "reason": p.reason} for p in report.proofs
                ],
                "next": report.next and asdict(report.next),
                "files": report.files,
                "bytes": report.bytes,
                "unknown_files": report.unknown,
            }
        )
    else:
        show_table(
            ("batch", "verdict", "why"),
            [(p.batch, p.verdict, p.reason or "") for p in report.proofs]
            + ([(f"{n.batch} (next)", n.verdict, n.reason or "")] if (n := report.next) else []),
            folds="why",
        )
    note(
        f"{len(good)} of {len(report.proofs)} batches can run again; "
        f"{report.files:,} files read, {say_bytes(report.bytes)}."
    )
    if report.broken:
        first = report.broken[0]
        raise CheckpointError(
            f"Batch {first.batch} of {checkpoint} cannot run again: {first.reason}.",
            f"To go back to one that can: ebbtide rewind {quote(checkpoint)} --to-latest-good",
        )


def _show_batches(rows: list[dict[str, Any]]) -> None:
    from ebbtide.report.overview import say_source

    show_table(
        ("batch", "planned", "watermark", "records", "again", "up to"),
        [
            (
                row["id"],
                _short(row["timestamp"]),
                _short(row["watermark"]),
                "-" if row["records"] is None else f"{row['records']:,}",
                "yes" if row["replayable"] else "no",
                " ".join(say_source(source) for source in row["sources"]),
            )
            for row in rows
        ],
        folds="up to",
    )
    for row in rows:
        if not row["committed"]:
            note(f"Batch {row['id']} is planned, but not committed.")
    reasons: dict[str, list[int]] = {}
    for row in rows:
        if why := row["reason"] or row["closed"]:
            reasons.setdefault(why, []).append(row["id"])
    for reason, ids in reasons.items():
        which = f"Batch {ids[0]}" if len(ids) == 1 else f"Batches {ids[0]} to {ids[-1]}"
        note(f"{which} cannot run again: {reason}.")


def _show_windows(windows: Windows) -> None:
    """One line for batches that follow each other and whose window the same keeper closes."""
    from ebbtide.report.overview import format_keeper

    groups: list[tuple[str, list[int]]] = []
    for batch, window in windows.by_batch.items():
        if window.open and window.closes_first is not None:
            if groups and groups[-1][0] == window.closes_first and groups[-1][1][-1] == batch - 1:
                groups[-1][1].append(batch)
            else:
                groups.append((window.closes_first, [batch]))
    if groups:
        show_table(
            ("batches", "can run again until", "closed first by"),
            [
                (
                    str(ids[0]) if len(ids) == 1 else f"{ids[0]} to {ids[-1]}",
                    " to ".join(
                        dict.fromkeys(_until(windows, batch) for batch in (ids[0], ids[-1]))
                    ),
                    format_keeper(keeper),
                )
                for keeper, ids in groups
            ],
        )


def _until(windows: Windows, batch: int) -> str:
    from ebbtide.times import in_utc

    window = windows.by_batch[batch]
    time = _short(in_utc(window.until) if window.until else None)[:16]
    return f"~{time}" if window.estimate else time


def connection_to_ask(settings: Settings, found: Checkpoint) -> KafkaConnection | None:
    """The connection to ask about what a checkpoint reads, if its broker answers at once."""
    if not found.logs.reads_kafka:
        return None
    from ebbtide.connectors import kafka
    from ebbtide.local.broker import find_connection

    connection = find_connection(settings)
    if connection is not None and not kafka.answers(connection):
        note(f"Warning: No Kafka broker answers at {connection}.", style="bold yellow")
        return None
    return connection


def _short(time: str | None) -> str:
    return "-" if time is None else time[:19].replace("T", " ")
