"""Read what an archive holds, from the log of its table alone; no JVM."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from ebbtide.archive.layout import (
    CHECKPOINT_PROPERTY,
    DAY,
    EVENT_TIME_PROPERTY,
    HOUR,
    TOPIC_PROPERTY,
    ZONE_PROPERTY,
    Hour,
    archive_of,
    check_table,
    hours_of,
)
from ebbtide.checkpoint import log_files
from ebbtide.config import Settings
from ebbtide.errors import ArchiveError, EbbtideError
from ebbtide.pipeline import Pipeline
from ebbtide.storage import open_folder

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ROUNDED = timedelta(milliseconds=1)
"""The log keeps event times to the millisecond, cut off."""
_FILE_COLUMNS = ("size_bytes", "num_records", "min.event_time", "max.event_time")


@dataclass(frozen=True)
class DataFile:
    """One file of the table as its log describes it."""

    hour: Hour | None
    """None: its records have no event time."""
    bytes: int
    records: int
    earliest: datetime | None
    latest: datetime | None

    def may_hold(self, start: datetime, end: datetime) -> bool:
        """Whether a record of a half-open range of event time can be in it."""
        first, last = hours_of(start, end)
        if self.hour is None or not first <= self.hour <= last:
            return False
        if self.earliest is None or self.latest is None:
            return True
        return self.earliest < end and self.latest > start - _ROUNDED


@dataclass(frozen=True)
class ArchiveCost:
    """What reading a range of event time takes."""

    files: int
    bytes: int
    records: int
    """At most: a file at the edge of the range also holds others."""


@dataclass(frozen=True)
class Archive:
    """What an archive holds at one version of its table."""

    path: str
    version: int
    topic: str
    event_time: str
    """The field of the record that it was read from."""
    timezone: str
    """The zone in which times without one were read."""
    records: int
    unreadable: int
    """Those of the records whose event time does not parse."""
    files: int
    bytes: int
    earliest: datetime | None
    latest: datetime | None
    """Of the event times, to the millisecond."""
    offsets: dict[int, int]
    """By partition of the topic, the next offset to archive."""
    checkpoint: str = ""
    """Where the query that fills it keeps its place."""
    batch: int | None = None
    """The last batch of that query whose records are in this version."""
    contents: tuple[DataFile, ...] = field(default=(), repr=False)
    day_column: ClassVar = DAY
    """The partition column with the day of the event time, in UTC."""

    def cost(self, start: datetime, end: datetime) -> ArchiveCost:
        """What reading a half-open range of event time takes, as the log tells."""
        files = [file for file in self.contents if file.may_hold(start, end)]
        return ArchiveCost(len(files), sum(f.bytes for f in files), sum(f.records for f in files))


def read_archive(pipeline: Pipeline, settings: Settings, version: int | None = None) -> Archive:
    """What a pipeline's archive holds, now or at a version; refused if it is not the right one."""
    archive = find_archive(pipeline, settings, version)
    if archive is None:
        path = settings.table(archive_of(pipeline)[1].path)
        raise ArchiveError(
            f"There is no archive of pipeline {pipeline.name} at {path}.",
            f"Type: ebbtide archive {pipeline.name}",
        )
    return archive


def find_archive(
    pipeline: Pipeline, settings: Settings, version: int | None = None
) -> Archive | None:
    """What a pipeline's archive holds; None if there is no table yet.

    Steps: **1** open the table; **2** see that it is this pipeline's archive; **3** its files;
    **4** up to where it holds the topic.
    """
    # 1
    path = settings.table(archive_of(pipeline)[1].path)
    if (table := _open(path, version)) is None:
        return None
    # 2
    metadata = table.metadata()
    marks = metadata.configuration
    check_table(pipeline, settings, marks, _types(table), metadata.partition_columns)
    # 3
    files = _files(table)
    dated = [file for file in files if file.hour is not None]
    # 4
    batch, offsets = _progress(table, marks[CHECKPOINT_PROPERTY], marks[TOPIC_PROPERTY])
    return Archive(
        path=path,
        version=table.version(),
        topic=marks[TOPIC_PROPERTY],
        event_time=marks[EVENT_TIME_PROPERTY],
        timezone=marks[ZONE_PROPERTY],
        records=sum(file.records for file in files),
        unreadable=sum(file.records for file in files if file.hour is None),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        earliest=min((file.earliest for file in dated if file.earliest), default=None),
        latest=max((file.latest for file in dated if file.latest), default=None),
        offsets=offsets,
        checkpoint=marks[CHECKPOINT_PROPERTY],
        batch=batch,
        contents=tuple(files),
    )


def last_batch_and_offsets(archive: Archive, query_id: str) -> tuple[int | None, dict[int, int]]:
    """The last batch of a query in the table, None if it never wrote to it; and by partition of
    the topic the next offset to archive, from the records themselves.
    """
    from deltalake import DeltaTable

    table = DeltaTable(archive.path, version=archive.version)
    return table.transaction_version(query_id), _offsets_in(table)


def _open(path: str, version: int | None) -> DeltaTable | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        why = str(error).strip().splitlines()[0].rstrip(".")
        raise ArchiveError(
            f"The Delta table at {path} cannot be read: {why}.",
            "Check the address and your credentials.",
        ) from None
    if version is None or version == table.version():
        return table
    try:
        return DeltaTable(path, version=version)
    except (DeltaError, OSError, OverflowError):
        raise ArchiveError(
            f"Version {version} of the archive at {path} is gone or never was; "
            f"the newest is {table.version()}.",
            "Plan again, without a version.",
        ) from None


def _types(table: DeltaTable) -> dict[str, str]:
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    kinds = {field["name"]: field["type"] for field in fields}
    return {name: kind["type"] if isinstance(kind, dict) else kind for name, kind in kinds.items()}


def _files(table: DeltaTable) -> list[DataFile]:
    actions = table.get_add_actions(flatten=True)
    there = set(actions.schema.names)
    names = (f"partition.{DAY}", f"partition.{HOUR}", *_FILE_COLUMNS)
    # a table without records has no statistics either
    nothing = [None] * actions.num_rows
    columns = [actions.column(name).to_pylist() if name in there else nothing for name in names]
    return [
        DataFile(None if None in (day, hour) else Hour(day, hour), size, records or 0, first, last)
        for day, hour, size, records, first, last in zip(*columns, strict=True)
    ]


def _progress(table: DeltaTable, checkpoint: str, topic: str) -> tuple[int | None, dict[int, int]]:
    """The last batch in the table and the offsets at its end.

    The table notes the batch, and the query's checkpoint what that batch read. Without the
    checkpoint, or after Spark has purged the entry, the records themselves tell.
    """
    batch = None
    try:
        folder = open_folder(checkpoint)
        if (metadata := folder.read("metadata")) is not None:
            batch = table.transaction_version(json.loads(metadata)["id"])
        text = None if batch is None else folder.read("offsets", str(batch))
        if text is not None:
            (source,) = log_files.parse_offsets(text, f"{checkpoint}/offsets/{batch}").sources
            return batch, log_files.parse_kafka_offset(source or "{}").get(topic, {})
    except (EbbtideError, ValueError, KeyError):
        pass  # not whole, or out of reach
    return batch, _offsets_in(table)


def _offsets_in(table: DeltaTable) -> dict[int, int]:
    from deltalake import QueryBuilder

    if not table.file_uris():
        return {}
    query = 'SELECT "partition", max("offset") + 1 AS upto FROM archive GROUP BY "partition"'
    rows = QueryBuilder().register("archive", table).execute(query).read_all()
    return dict(zip(rows["partition"].to_pylist(), rows["upto"].to_pylist(), strict=True))
