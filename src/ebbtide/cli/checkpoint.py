"""`ebbtide inspect`: what a checkpoint holds."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli.output import Format, Output, example, show_json, show_table

if TYPE_CHECKING:
    from ebbtide.checkpoint.reader import Batch


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.command(epilog=example("ebbtide inspect .ebbtide/checkpoints/visits-windows-counter"))(
        inspect
    )


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="A path or any fsspec URL.")],
    output: Output = Format.table,
) -> None:
    """Show the batches of a checkpoint: when, up to which offsets, watermark, done or not."""
    from ebbtide.checkpoint.reader import read_checkpoint
    from ebbtide.cli.output import note

    found = read_checkpoint(checkpoint)
    rows = [_row(batch) for batch in found.batches]
    latest = found.batches[-1].id if found.batches else None
    if output is Format.json:
        show_json({"query_id": found.query_id, "latest_batch": latest, "batches": rows})
        return
    note(f"Query {found.query_id}. Times are UTC.")
    show_table(
        ("batch", "planned", "watermark", "done", "up to"),
        [
            (
                row["id"],
                _short(row["timestamp"]),
                _short(row["watermark"]),
                "yes" if row["committed"] else "no",
                " ".join(_position(source) for source in row["sources"]),
            )
            for row in rows
        ],
    )


def _row(batch: Batch) -> dict[str, Any]:
    return {
        "id": batch.id,
        "committed": batch.committed,
        "timestamp": _utc(batch.offsets.timestamp_ms),
        "watermark": _utc(batch.offsets.watermark_ms) if batch.offsets.watermark_ms else None,
        "sources": [_source(text) for text in batch.offsets.sources],
    }


def _source(offset: str | None) -> Any:
    """A source's offset as JSON where it is JSON, else as it stands."""
    try:
        return None if offset is None else json.loads(offset)
    except ValueError:
        return offset


def _position(source: Any) -> str:
    """A source's offset in few characters: `visits 0:17 1:3`."""
    if isinstance(source, dict) and all(isinstance(value, dict) for value in source.values()):
        return " ".join(
            f"{topic} " + " ".join(f"{p}:{offset}" for p, offset in partitions.items())
            for topic, partitions in source.items()
        )
    return json.dumps(source, separators=(",", ":"))


def _utc(milliseconds: int) -> str:
    at = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(time: str | None) -> str:
    return "-" if time is None else time[:19].replace("T", " ")
