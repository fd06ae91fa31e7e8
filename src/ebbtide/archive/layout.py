"""The name, columns and properties of the table of an archive."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from typing import NamedTuple

from ebbtide.config import Settings
from ebbtide.errors import ArchiveError
from ebbtide.pipeline import Delta, Kafka, Pipeline

COLUMNS = {
    "event_time": "TIMESTAMP",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
"""The event time, null if it does not parse, and the record as it was in Kafka."""
DAY, HOUR = "event_day", "event_hour"
PARTITION_COLUMNS = {DAY: "DATE", HOUR: "INT"}
"""The hour of the event time in UTC, whatever the session's zone; null without an event time."""

RAW = {
    "event_time": "BIGINT",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "key": "BINARY",
    "value": "BINARY",
    "header_keys": "ARRAY<STRING>",
    "header_values": "ARRAY<BINARY>",
}
"""What `HourSteps.split` takes: a record without its topic, its event time in microseconds or
null, and its headers as two lists, which are empty without headers: Spark asks Arrow for the size
of the batch after each row, which takes as long as the rest of the row for a list of structs."""
PACKED = {"hour": "BIGINT", "chunk": "BINARY", "added": "STRING"}
"""What it returns: hours since 1970, or null for rows without event time, and rows of that hour as
an Arrow stream, or a file of them."""

LAYOUT = "1"
LAYOUT_PROPERTY = "ebbtide.layout"
TOPIC_PROPERTY = "ebbtide.topic"
EVENT_TIME_PROPERTY = "ebbtide.event-time"
ZONE_PROPERTY = "ebbtide.timezone"
CHECKPOINT_PROPERTY = "ebbtide.checkpoint"

_DELTA_TYPES = {"INT": "integer", "BIGINT": "long", COLUMNS["headers"]: "array"}
"""Types with other names in Delta's log; headers only have to be a list."""

WRITE_CONF = {
    # INT96, the default, has no minimum and maximum, and other readers overflow on it
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # a batch writes each hour as one file, or as several if it is large: uncompressed, in MiB
    "spark.databricks.delta.optimizeWrite.binSize": "64",
    # 20 files of an hour that are smaller than 16 MiB are merged
    "spark.databricks.delta.autoCompact.minNumFiles": "20",
    "spark.databricks.delta.autoCompact.minFileSize": str(16 * 1024 * 1024),
}
"""Spark settings for writing the archive."""
TABLE_PROPERTIES = {
    "delta.autoOptimize.autoCompact": "true",
    "delta.autoOptimize.optimizeWrite": "true",
    # the columns by which a reader skips files; raw bytes have no order that helps
    "delta.dataSkippingStatsColumns": "event_time,partition,offset,timestamp",
}


class Hour(NamedTuple):
    """One hour of event time in UTC: a partition of the table.

    >>> Hour.of(datetime(2025, 9, 4, 7, 59, tzinfo=timezone.utc))
    Hour(day=datetime.date(2025, 9, 4), hour=7)
    """

    day: date
    hour: int

    @classmethod
    def of(cls, at: datetime) -> Hour:
        """The hour of a time."""
        utc = at.astimezone(timezone.utc)
        return cls(utc.date(), utc.hour)


def hours_of(start: datetime, end: datetime) -> tuple[Hour, Hour]:
    """The first and the last hour that a half-open range touches.

    >>> at = datetime(2025, 9, 4, 7, tzinfo=timezone.utc)
    >>> first, last = hours_of(at, at + timedelta(hours=1))
    >>> first == last
    True
    """
    return Hour.of(start), Hour.of(end - timedelta(microseconds=1))


def archive_name(archive: Delta) -> str:
    """The name of the query that fills an archive, of its checkpoint and of its log.

    >>> archive_name(Delta("visits")), archive_name(Delta("s3://lake/raw/visits/"))
    ('visits-archive', 'visits-archive')
    """
    last = archive.path.rstrip("/").rpartition("/")[2]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', last).lstrip('._-') or 'table'}-archive"


def archive_of(pipeline: Pipeline) -> tuple[Kafka, Delta]:
    """The topic and the table of a pipeline's archive; refused if it has none."""
    if pipeline.archive is None:
        raise ArchiveError(
            f"Pipeline {pipeline.name} has no archive.",
            'Give it one: Pipeline(…, archive=Delta("NAME")).',
        )
    if not isinstance(pipeline.source, Kafka):
        raise ArchiveError(
            f"Pipeline {pipeline.name} reads {type(pipeline.source).__name__.lower()}, and only "
            "a Kafka topic is archived.",
            "Reprocess its source itself.",
        )
    return pipeline.source, pipeline.archive


def table_path(pipeline: Pipeline, settings: Settings) -> str:
    """The location of the table of a pipeline's archive."""
    return settings.table(archive_of(pipeline)[1].path)


def properties(pipeline: Pipeline, settings: Settings, checkpoint: str) -> dict[str, str]:
    """The properties of the table, by which `check_table` tells it from others."""
    topic, _ = archive_of(pipeline)
    return {
        **TABLE_PROPERTIES,
        LAYOUT_PROPERTY: LAYOUT,
        TOPIC_PROPERTY: topic.topic,
        EVENT_TIME_PROPERTY: pipeline.event_time,
        ZONE_PROPERTY: settings.timezone,
        CHECKPOINT_PROPERTY: checkpoint,
    }


def check_table(
    pipeline: Pipeline,
    settings: Settings,
    marks: Mapping[str, str],
    types: Mapping[str, str],
    partitioned_by: list[str],
) -> None:
    """Refuse a table that is not the archive of this pipeline, by its properties and columns."""
    topic, path = archive_of(pipeline)[0].topic, table_path(pipeline, settings)
    another = "Name another table: Pipeline(…, archive=Delta(…))."
    if LAYOUT_PROPERTY not in marks:
        raise ArchiveError(f"{path} is a Delta table, but no archive of Ebbtide.", another)
    if marks[LAYOUT_PROPERTY] != LAYOUT:
        raise ArchiveError(
            f"{path} has layout {marks[LAYOUT_PROPERTY]}; this Ebbtide knows layout {LAYOUT}.",
            "Use the Ebbtide that wrote it, or name another table.",
        )
    for what, name, wanted in (
        ("topic", TOPIC_PROPERTY, topic),
        ("event time", EVENT_TIME_PROPERTY, pipeline.event_time),
    ):
        if marks.get(name) != wanted:
            raise ArchiveError(
                f"{path} is an archive with {what} {marks.get(name)}; pipeline {pipeline.name} "
                f"has {what} {wanted}.",
                another,
            )
    _check_columns(path, types, partitioned_by, another)
    if (zone := marks.get(ZONE_PROPERTY, "UTC")) != settings.timezone:
        raise ArchiveError(
            f"The archive at {path} read times without a zone in {zone}, "
            f"and {settings.timezone} is set.",
            f"Add --timezone {zone}",
        )


def _check_columns(
    path: str, types: Mapping[str, str], partitioned_by: list[str], another: str
) -> None:
    columns = (COLUMNS | PARTITION_COLUMNS).items()
    wanted = {name: _DELTA_TYPES.get(kind, kind.lower()) for name, kind in columns}
    for name in [*wanted, *types]:
        if types.get(name) != wanted.get(name):
            raise ArchiveError(
                f"{path} has column {name} as {types.get(name, 'none')}; "
                f"an archive has it as {wanted.get(name, 'none')}.",
                another,
            )
    if partitioned_by != list(PARTITION_COLUMNS):
        raise ArchiveError(
            f"{path} is partitioned by {', '.join(partitioned_by) or 'nothing'}; "
            f"an archive is by {', '.join(PARTITION_COLUMNS)}.",
            another,
        )
