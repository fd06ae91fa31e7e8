"""A stream's checkpoint and its archive, made file by file: what `plan` looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable, write_deltalake

from ebbtide.archive.layout import PARTITION_COLUMNS, properties
from ebbtide.config import Settings
from ebbtide.pipeline import Delta, Kafka, Pipeline, Sink
from tests.trees import Shape, make

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
WINDOWED = b'v2 {"type":"struct","fields":[{"name":"window","metadata":{"spark.timeWindow":true}}]}'
"""What Spark notes about the key of a windowed aggregation's state."""


def minute(n: float) -> datetime:
    return EPOCH + timedelta(minutes=n)


def planned(batch: int) -> datetime:
    """When a batch of `tests.trees` was planned."""
    return EPOCH + timedelta(milliseconds=1_000 + batch)


@dataclass(frozen=True)
class Row:
    partition: int
    offset: int
    event_time: datetime | None
    kafka_time: datetime = EPOCH


def rows_of(batches: range, *, ahead: float = 10) -> list[Row]:
    """What batches of `tests.trees` read: one record of partition 0 and two of 1, each batch.

    The watermark of batch n is minute n, the event times are `ahead` of it.
    """
    return [
        Row(partition, offset, minute(n + ahead), planned(n))
        for n in batches
        if n > 0
        for partition, offset in ((0, n - 1), (1, 2 * n - 2), (1, 2 * n - 1))
    ]


def pipeline(sink: Sink | None = None, *, archive: str | None = "visits") -> Pipeline:
    return Pipeline(
        "visits-counter",
        source=Kafka("visits", schema="visit_id INT, event_time TIMESTAMP"),
        event_time="event_time",
        watermark="10 minutes",
        transform=lambda visits: visits,
        sink=sink or Kafka("visits_counter", key="window.start"),
        archive=Delta(archive) if archive else None,
    )


def make_checkpoint(settings: Settings, shape: Shape, *, windowed: bool = True) -> Path:
    """The stream's checkpoint; with `windowed`, its state is by windows."""
    folder = make(settings.checkpoint("visits-counter"), shape)
    if windowed and shape.layout != "none":
        for operator in range(shape.operators):
            (folder / f"state/{operator}/0/_metadata/schema").write_bytes(WINDOWED)
    return folder


def make_archive(settings: Settings, rows: Sequence[Row], checkpoint: str = "nowhere") -> str:
    """The archive as its stream writes it, one commit for the rows."""
    path = settings.table("visits")
    times = pa.timestamp("us", tz="UTC")
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "event_time": pa.array([row.event_time for row in rows], times),
        "topic": pa.array(["visits"] * len(rows), pa.string()),
        "partition": pa.array([row.partition for row in rows], pa.int32()),
        "offset": pa.array([row.offset for row in rows], pa.int64()),
        "timestamp": pa.array([row.kafka_time for row in rows], times),
        "key": pa.array([None] * len(rows), pa.binary()),
        "value": pa.array([b"{}"] * len(rows), pa.binary()),
        "headers": pa.array([None] * len(rows), headers),
        "event_day": pa.array(
            [row.event_time and row.event_time.date() for row in rows], pa.date32()
        ),
        "event_hour": pa.array(
            [row.event_time and row.event_time.hour for row in rows], pa.int32()
        ),
    }
    write_deltalake(path, pa.table(columns), partition_by=list(PARTITION_COLUMNS))
    marks = {
        name: value
        for name, value in properties(pipeline(), settings, checkpoint).items()
        if name.startswith("ebbtide.")
    }
    DeltaTable(path).alter.set_table_properties(marks, raise_if_not_exists=False)
    return path
