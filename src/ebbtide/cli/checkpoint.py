"""The commands `ebbtide inspect` and `ebbtide verify`."""

from __future__ import annotations

from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import log_line, progress_bar, show_json, show_table
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError
from ebbtide.formatting import say_bytes

if TYPE_CHECKING:
    from ebbtide.checkpoint import Checkpoint, verification
    from ebbtide.connectors.kafka import KafkaConnection
    from ebbtide.retention import Windows


@command("ebbtide inspect .ebbtide/checkpoints/visits-windows-counter")
def inspect(
    checkpoint: options.CheckpointPath,
    environment: options.KafkaOptions,
    output: options.Output = "table",
) -> None:
    """Show batches and state, which batches can run again, and for how long.

    Batches are judged by their log entries and the names of the state files,
    which is quick; verify reads every file. How long a batch can run again
    follows from the retention of the checkpoint, Kafka and Delta: at least
    until the time shown, or, marked with ~, if the query keeps its pace.
    """
    from ebbtide.checkpoint import Owner, read_checkpoint
    from ebbtide.report import overview
    from ebbtide.retention import read_windows

    contents = read_checkpoint(checkpoint)
    owner = Owner.read(contents.folder)
    windows = read_windows(contents, owner, connection_to_ask(environment.settings, contents))
    batches = [
        overview.summarize_batch(contents, batch, windows) for batch in contents.logs.batches
    ]
    operators = [overview.summarize_operator(contents, operator) for operator in contents.operators]
    if output == "json":
        show_json(
            {
                "query_id": contents.logs.query_id,
                "latest_batch": batches[-1]["id"] if batches else None,
                "oldest_restorable": contents.oldest_restorable,
                "oldest_replayable": windows.oldest,
                "batches": batches,
                "operators": operators,
                "unknown_files": contents.unknown,
                "interrupted": contents.interrupted.action if contents.interrupted else None,
                "remarks": windows.remarks,
            }
        )
        return
    log_line(f"Query {contents.logs.query_id}. Times are UTC.")
    _show_batches(batches)
    _show_operators(operators)
    _show_windows(windows)
    _log_remarks(contents, windows, checkpoint)


@command("ebbtide verify .ebbtide/checkpoints/visits-windows-counter")
def verify(
    checkpoint: options.CheckpointPath,
    min_batches_to_retain: Annotated[
        int | None,
        option(
            "--min-batches-to-retain N",
            "minBatchesToRetain of the query (default: as the logs show, at most 100).",
            panel="Retention",
            min=1,
        ),
    ] = None,
    output: options.Output = "table",
) -> None:
    """Prove that every retained batch can run again.

    It reads every file and compares every checksum. Exit 1 if a batch that
    Spark should have kept cannot run again, or if the query could not go on.
    Batches that Spark has cleaned up, as it may, are only listed as gone.
    """
    from ebbtide.checkpoint import verification

    with progress_bar("Verifying batches") as advance:
        report = verification.verify_checkpoint(
            checkpoint, retained=min_batches_to_retain, on_batch=advance
        )
    _show_report(report, output)
    log_line(
        f"{len(report.good)} of {len(report.proofs)} batches can run again; "
        f"{report.files:,} files read, {say_bytes(report.bytes)}."
    )
    if report.broken:
        first = report.broken[0]
        raise CheckpointError(
            f"Batch {first.batch} of {checkpoint} cannot run again: {first.reason}.",
            f"To go back to one that can: ebbtide rewind {quote(checkpoint)} --to-latest-good",
        )


def _show_report(report: verification.VerificationReport, output: options.Output) -> None:
    if output == "json":
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
        return
    rows = [(str(p.batch), p.verdict, p.reason or "") for p in report.proofs]
    if (after := report.next) is not None:
        rows.append((f"{after.batch} (next)", after.verdict, after.reason or ""))
    show_table(("batch", "verdict", "why"), rows, folds="why")


def _show_batches(batches: list[dict[str, Any]]) -> None:
    from ebbtide.report import overview

    show_table(
        ("batch", "planned", "watermark", "records", "again", "up to"),
        [
            (
                batch["id"],
                _format_time(batch["timestamp"]),
                _format_time(batch["watermark"]),
                "-" if batch["records"] is None else f"{batch['records']:,}",
                "yes" if batch["replayable"] else "no",
                " ".join(overview.format_source(source) for source in batch["sources"]),
            )
            for batch in batches
        ],
        folds="up to",
    )
    reasons: dict[str, list[int]] = {}
    for batch in batches:
        if not batch["committed"]:
            log_line(f"Batch {batch['id']} is planned, but not committed.")
        if why := batch["reason"] or batch["closed"]:
            reasons.setdefault(why, []).append(batch["id"])
    for reason, ids in reasons.items():
        which = f"Batch {ids[0]}" if len(ids) == 1 else f"Batches {ids[0]} to {ids[-1]}"
        log_line(f"{which} cannot run again: {reason}.")


def _show_operators(operators: list[dict[str, Any]]) -> None:
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


def _show_windows(windows: Windows) -> None:
    """One line for consecutive batches whose window the same keeper closes."""
    from ebbtide.report import overview

    groups: list[tuple[str, list[int]]] = []
    for batch, window in windows.by_batch.items():
        if window.open and window.closes_first is not None:
            if groups and groups[-1][0] == window.closes_first and groups[-1][1][-1] == batch - 1:
                groups[-1][1].append(batch)
            else:
                groups.append((window.closes_first, [batch]))
    rows = []
    for keeper, ids in groups:
        ends = dict.fromkeys((ids[0], ids[-1]))
        until = dict.fromkeys(_format_until(windows, batch) for batch in ends)
        rows.append(
            (" to ".join(map(str, ends)), " to ".join(until), overview.format_keeper(keeper))
        )
    if rows:
        show_table(("batches", "can run again until", "closed first by"), rows)


def _log_remarks(contents: Checkpoint, windows: Windows, checkpoint: str) -> None:
    from ebbtide.report import overview

    for remark in windows.remarks:
        log_line(remark)
    if (oldest := windows.oldest) is None:
        log_line("No batch can run again.")
    else:
        log_line(
            f"The oldest batch that can run again is {oldest}; "
            f"{overview.format_end(windows.by_batch[oldest])}. "
            f"To go back: ebbtide rewind {quote(checkpoint)} --to-batch {oldest}"
        )
    for path in contents.unknown:
        log_line(f"Not written by Spark 3.5 to 4.2: {path}")
    try:
        contents.require_finished()
    except CheckpointError as error:
        log_line(f"Warning: {error}", style="bold yellow")


def _format_until(windows: Windows, batch: int) -> str:
    from ebbtide.times import in_utc

    window = windows.by_batch[batch]
    time = _format_time(in_utc(window.until) if window.until else None)[:16]
    return f"~{time}" if window.estimate else time


def _format_time(time: str | None) -> str:
    return "-" if time is None else time[:19].replace("T", " ")


def connection_to_ask(settings: Settings, contents: Checkpoint) -> KafkaConnection | None:
    """The connection to ask about what a checkpoint reads, if its broker answers at once."""
    if not contents.logs.reads_kafka:
        return None
    from ebbtide.connectors import kafka
    from ebbtide.local import find_connection

    connection = find_connection(settings)
    if connection is not None and not kafka.answers(connection):
        log_line(f"Warning: No Kafka broker answers at {connection}.", style="bold yellow")
        return None
    return connection
