"""The commands `ebbtide inspect` and `verify`, which show and check a checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Any

from ebbtide import report
from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import log_line, progress_bar, show_json, show_table
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError
from ebbtide.formatting import format_bytes, format_count
from ebbtide.times import in_utc

if TYPE_CHECKING:
    from ebbtide.checkpoint import Checkpoint, verification
    from ebbtide.connections import KafkaConnection
    from ebbtide.retention import Window, Windows

_SHOWN = 20
"""Unknown files that are listed one by one."""


@command(
    "ebbtide inspect .ebbtide/checkpoints/visits-windows-counter",
    "ebbtide inspect s3a://bucket/checkpoints/visits-windows-counter",
)
def inspect(
    environment: options.KafkaOptions,
    checkpoint: str = options.CHECKPOINT,
    output: options.Output = options.OUTPUT,
) -> None:
    """Show batches and state, which batches can run again, and for how long.

    Batches are judged by their log entries and the names of the state files,
    which is quick; verify reads every file. How long a batch can run again
    follows from the retention of the checkpoint, Kafka and Delta: at least
    until the time shown, or, marked with ~, if the query keeps its pace. The
    checkpoint sets no time while the query is stopped.
    """
    from ebbtide.checkpoint import Owner, read_checkpoint

    contents = read_checkpoint(checkpoint)
    logs, windows = contents.logs, read_windows(contents, environment.settings)
    batches = [report.overview.summarize_batch(contents, batch, windows) for batch in logs.batches]
    operators = [report.overview.summarize_operator(contents, one) for one in contents.operators]
    if output == "json":
        show_json(
            {
                "query_id": logs.query_id,
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
    name = Owner.read(contents.folder).pipeline
    log_line(f"Query {f'{name}, ' if name else ''}{logs.query_id}. Times are UTC.")
    _show_batches(batches)
    _show_operators(operators)
    _show_windows(windows)
    _log_remarks(contents, windows, checkpoint)


@command("ebbtide verify .ebbtide/checkpoints/visits-windows-counter")
def verify(
    checkpoint: str = options.CHECKPOINT,
    min_batches_to_retain: int | None = option(
        "--min-batches-to-retain N",
        "minBatchesToRetain of the query (default: as the logs show, at most 100).",
        panel="Retention",
        min=1,
    ),
    output: options.Output = options.OUTPUT,
) -> None:
    """Prove that every retained batch can run again.

    It reads every file and compares every checksum. Exit 1 if a batch that
    Spark should have kept cannot run again, or if the query could not go on.
    Batches that Spark has cleaned up, as it may, are only listed as gone.
    """
    from ebbtide.checkpoint import verification

    with progress_bar("Verifying batches") as advance:
        verified = verification.verify_checkpoint(
            checkpoint, retained=min_batches_to_retain, on_batch=advance
        )
    _show_verified(verified, output)
    log_line(
        f"{len(verified.good)} of {len(verified.proofs)} batches can run again; "
        f"{verified.files:,} files read, {format_bytes(verified.bytes)}."
    )
    for first in verified.broken[:1]:
        raise CheckpointError(
            f"Batch {first.batch} of {checkpoint} cannot run again: {first.reason}.",
            f"To go back to one that can: ebbtide rewind {quote(checkpoint)} --to-latest-good",
        )


def _show_verified(verified: verification.VerificationReport, output: options.Output) -> None:
    proofs = {str(proof.batch): proof for proof in verified.proofs}
    if output == "json":
        show_json(
            {
                "query_id": verified.query_id,
                "whole": not verified.broken,
                "batches": [
                    {"id": p.batch, "verdict": p.verdict, "reason": p.reason}
                    for p in verified.proofs
                ],
                "next": verified.next and asdict(verified.next),
                "files": verified.files,
                "bytes": verified.bytes,
                "unknown_files": verified.unknown,
            }
        )
        return
    if verified.next is not None:
        proofs[f"{verified.next.batch} (next)"] = verified.next
    rows = [(batch, proof.verdict, proof.reason or "") for batch, proof in proofs.items()]
    show_table(("batch", "verdict", "why"), rows, folds="why")


def _show_batches(batches: list[dict[str, Any]]) -> None:
    show_table(
        ("batch", "planned", "watermark", "records", "again", "up to"),
        [
            (
                batch["id"],
                _format_time(batch["timestamp"]),
                _format_time(batch["watermark"]),
                format_count(batch["records"]),
                "yes" if batch["replayable"] else "no",
                ", ".join(map(report.overview.format_source, batch["sources"])),
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
                    format_bytes(operator["bytes"]),
                )
                for operator in operators
            ],
        )


def _show_windows(windows: Windows) -> None:
    """One line for consecutive batches whose window the same keeper closes."""
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
        until = dict.fromkeys(_format_until(windows.by_batch[batch]) for batch in ends)
        closed_by = report.overview.format_keeper(keeper)
        rows.append((" to ".join(map(str, ends)), " to ".join(until), closed_by))
    if rows:
        show_table(("batches", "can run again until", "closed first by"), rows)


def _log_remarks(contents: Checkpoint, windows: Windows, checkpoint: str) -> None:
    for remark in windows.remarks:
        log_line(remark)
    if (oldest := windows.oldest) is None:
        log_line("No batch can run again.")
    else:
        log_line(
            f"The oldest batch that can run again is {oldest}; "
            f"{report.overview.format_end(windows.by_batch[oldest])}. "
            f"To go back: ebbtide rewind {quote(checkpoint)} --to-batch {oldest}"
        )
    for path in contents.unknown[:_SHOWN]:
        log_line(f"Not written by Spark 3.5 to 4.3: {path}")
    if len(contents.unknown) > _SHOWN:
        log_line(f"and {len(contents.unknown) - _SHOWN:,} more; all are in the output of -o json.")
    try:
        contents.require_finished()
    except CheckpointError as error:
        log_line(f"Warning: {error}", style="bold yellow")


def _format_until(window: Window) -> str:
    time = _format_time(in_utc(window.until) if window.until else None)[:16]
    return f"~{time}" if window.estimate else time


def _format_time(time: str | None) -> str:
    return "-" if time is None else time[:19].replace("T", " ")


def read_windows(contents: Checkpoint, settings: Settings) -> Windows:
    """Until when each batch can run again; Kafka is asked if its broker answers at once."""
    from ebbtide.checkpoint import Owner
    from ebbtide.retention import read_windows
    from ebbtide.rewind import lease

    return read_windows(
        contents,
        Owner.read(contents.folder),
        ask_kafka(contents, settings),
        stopped=lease.is_idle(contents.folder, contents.logs),
    )


def ask_kafka(contents: Checkpoint, settings: Settings) -> KafkaConnection | None:
    """The Kafka that a query reads, if its broker answers at once."""
    from ebbtide.connectors import kafka
    from ebbtide.local import find_connection

    connection = find_connection(settings) if contents.logs.reads_kafka else None
    problem = connection and kafka.find_problem(connection, connection.glance_seconds)
    if problem:
        log_line(f"Warning: {problem}", style="bold yellow")
        return None
    return connection
