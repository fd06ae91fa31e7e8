"""Small archives as real Delta tables with a checkpoint beside them, written without a JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from ebbtide.archive.layout import PARTITION_COLUMNS, Hour, archive_name, properties
from ebbtide.config import Settings
from ebbtide.pipeline import Console, Delta, Kafka, Pipeline

PIPELINE = Pipeline(
    "visits-counter",
    source=Kafka("visits", schema="visit_id INT, event_time TIMESTAMP"),
    event_time="event_time",
    transform=lambda rows: rows,
    sink=Console(),
    archive=Delta("visits"),
)
QUERY = "6f1c"
_UTC = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("event_time", _UTC),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _UTC),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("event_day", pa.date32()),
        ("event_hour", pa.int32()),
    ]
)
Place = tuple[int, int, "str | None"]
"""Partition, offset and event time (hour and minute of one day) of a record."""


def at(clock: str) -> datetime:
    """A time of the day on which everything happens."""
    return datetime.fromisoformat(f"2025-09-04T{clock}:00").replace(tzinfo=timezone.utc)


def create(
    settings: Settings, changed: Mapping[str, str | None] | None = None, schema: pa.Schema = SCHEMA
) -> Path:
    """The empty table of an archive, some of its properties changed or (None) left out."""
    path = Path(settings.table("visits"))
    path.mkdir(parents=True, exist_ok=True)
    marks = properties(PIPELINE, settings, str(checkpoint(settings))) | dict(changed or {})
    DeltaTable.create(
        path,
        schema,
        partition_by=[name for name in PARTITION_COLUMNS if name in schema.names],
        configuration={name: value for name, value in marks.items() if value is not None},
        raise_if_key_not_exists=False,
    )
    return path


def append(settings: Settings, batch: int, *places: Place, query: str = QUERY) -> None:
    """What one batch of a query writes: a commit that names it."""
    write_deltalake(
        settings.table("visits"),
        pa.Table.from_pylist([_row(*place) for place in places], SCHEMA),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(query, batch)]),
    )


def visit(visit_id: int, clock: str) -> bytes:
    """A visit as it is in the topic."""
    return json.dumps({"visit_id": visit_id, "event_time": f"2025-09-04T{clock}:00"}).encode()


def _row(partition: int, offset: int, clock: str | None) -> dict[str, Any]:
    time = None if clock is None else at(clock)
    hour = None if time is None else Hour.of(time)
    return {
        "event_time": time,
        "topic": "visits",
        "partition": partition,
        "offset": offset,
        "timestamp": at("12:00"),
        "value": b"{}" if clock is None else visit(offset, clock),
        "event_day": hour and hour.day,
        "event_hour": hour and hour.hour,
    }


def checkpoint(settings: Settings) -> Path:
    """Where the archive's query keeps its place."""
    assert PIPELINE.archive is not None
    return settings.checkpoint(archive_name(PIPELINE.archive)).absolute()


def plan_batches(
    folder: Path, ends: Sequence[Mapping[int, int]], committed: int, query: str = QUERY
) -> None:
    """A checkpoint whose batches read up to the given offsets, so many of them committed."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    header = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'
    for batch, end in enumerate(ends):
        (folder / "offsets" / str(batch)).write_text(header + json.dumps({"visits": end}))
        if batch < committed:
            (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
