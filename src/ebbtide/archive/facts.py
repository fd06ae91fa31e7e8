"""Read what an archive holds from the log of its table, without a JVM."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from ebbtide.archive import layout
from ebbtide.archive.layout import DAY, HOUR, Hour
from ebbtide.checkpoint import log_files
from ebbtide.config import Settings
from ebbtide.credentials import take_credentials
from ebbtide.errors import ArchiveError, EbbtideError, first_line
from ebbtide.locations import one_spelling
from ebbtide.pipeline import Pipeline
from ebbtide.storage import Folder, delta_location, open_folder

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ROUNDED = timedelta(milliseconds=1)
"""The log rounds event times down to the millisecond."""
_FILE_COLUMNS = (
    *(f"partition.{DAY}", f"partition.{HOUR}", "size_bytes", "num_records"),
    *("min.event_time", "max.event_time"),
)


@dataclass(frozen=True)
class DataFile:
    """One file of the table as its log describes it."""

    hour: Hour | None
    """None if its records have no event time."""
    bytes: int
    records: int
    earliest: datetime | None
    latest: datetime | None

    def may_hold(self, start: datetime, end: datetime) -> bool:
        """Whether it may hold a record of a half-open range of event time."""
        first, last = layout.hours_of(start, end)
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
    """An upper limit: a file at the edge of the range also holds other records."""


@dataclass(frozen=True)
class Archive:
    """What an archive holds at one version of its table."""

    path: str
    version: int
    topic: str
    event_time: str
    """The field of the record that holds it."""
    timezone: str
    """The zone of times that name none."""
    records: int
    unreadable: int
    """Records whose event time does not parse."""
    files: int
    bytes: int
    earliest: datetime | None
    latest: datetime | None
    """Event times, to the millisecond."""
    offsets: dict[int, int]
    """The next offset to archive, by partition of the topic."""
    checkpoint: str = ""
    """The checkpoint of the query that fills it."""
    batch: int | None = None
    """The last batch of that query whose records are in this version."""
    contents: tuple[DataFile, ...] = field(default=(), repr=False)
    day_column: ClassVar = DAY
    """The partition column with the day of the event time, in UTC."""

    def is_of(self, folder: Folder) -> bool:
        """Whether a checkpoint, however its URL is spelled, is that of the query that fills it."""
        return one_spelling(self.checkpoint) == one_spelling(folder.url)

    def cost(self, start: datetime, end: datetime) -> ArchiveCost:
        """What reading a half-open range of event time takes, according to the log."""
        files = [file for file in self.contents if file.may_hold(start, end)]
        return ArchiveCost(len(files), sum(f.bytes for f in files), sum(f.records for f in files))


def read_archive(pipeline: Pipeline, settings: Settings, version: int | None = None) -> Archive:
    """What a pipeline's archive holds, now or at a version; refused if it is another's."""
    archive = find_archive(pipeline, settings, version)
    if archive is None:
        path = layout.table_path(pipeline, settings)
        raise ArchiveError(
            f"There is no archive of pipeline {pipeline.name} at {path}.",
            f"Type: ebbtide archive {pipeline.name}",
        )
    return archive


def find_archive(
    pipeline: Pipeline, settings: Settings, version: int | None = None
) -> Archive | None:
    """What a pipeline's archive holds; None if there is no table yet.

    Steps: **1** open the table; **2** check that it is this pipeline's archive; **3** list its
    files; **4** find the next offsets to archive.
    """
    # 1
    path = layout.table_path(pipeline, settings)
    if (table := _open(path, version)) is None:
        return None
    # 2
    metadata = table.metadata()
    marks = metadata.configuration
    types = {field.name: field.type.type for field in table.schema().fields}
    layout.check_table(pipeline, settings, marks, types, metadata.partition_columns)
    topic = marks[layout.TOPIC_PROPERTY]
    checkpoint = take_credentials(marks[layout.CHECKPOINT_PROPERTY])
    # 3
    files = _files(table)
    dated = [file for file in files if file.hour is not None]
    # 4
    batch, offsets = _progress(table, checkpoint, topic)
    return Archive(
        path=path,
        version=table.version(),
        topic=topic,
        event_time=marks[layout.EVENT_TIME_PROPERTY],
        timezone=marks[layout.ZONE_PROPERTY],
        records=sum(file.records for file in files),
        unreadable=sum(file.records for file in files if file.hour is None),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        earliest=min((file.earliest for file in dated if file.earliest), default=None),
        latest=max((file.latest for file in dated if file.latest), default=None),
        offsets=offsets,
        checkpoint=checkpoint,
        batch=batch,
        contents=tuple(files),
    )


def last_batch_and_offsets(archive: Archive, query_id: str) -> tuple[int | None, dict[int, int]]:
    """A query's last batch in the table, if any, and the next offsets by the records themselves."""
    from deltalake import DeltaTable

    uri, options = delta_location(archive.path)
    table = DeltaTable(uri, archive.version, options or None)
    return table.transaction_version(query_id), _offsets_in(table)


def _open(path: str, version: int | None) -> DeltaTable | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    uri, options = delta_location(path)
    try:
        table = DeltaTable(uri, storage_options=options or None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        why = first_line(error)
        raise ArchiveError(
            f"The Delta table at {path} cannot be read: {why}.",
            "Check the address and your credentials.",
        ) from None
    if version is None or version == table.version():
        return table
    try:
        return DeltaTable(uri, version, options or None)
    except (DeltaError, OSError, OverflowError):
        raise ArchiveError(
            f"Version {version} of the archive at {path} is gone or never was; "
            f"the newest is {table.version()}.",
            "Plan again, without a version.",
        ) from None


def _files(table: DeltaTable) -> list[DataFile]:
    actions = table.get_add_actions(flatten=True)
    names = set(actions.schema.names)
    nothing = [None] * actions.num_rows  # a table without records has no statistics either
    columns = [
        actions.column(name).to_pylist() if name in names else nothing for name in _FILE_COLUMNS
    ]
    return [
        DataFile(None if None in (day, hour) else Hour(day, hour), size, records or 0, first, last)
        for day, hour, size, records, first, last in zip(*columns, strict=True)
    ]


def _progress(table: DeltaTable, checkpoint: str, topic: str) -> tuple[int | None, dict[int, int]]:
    """The last batch in the table and the offsets at its end.

    The table records the batch, and the query's checkpoint what the batch read. Without the
    checkpoint, or after Spark has purged the entry, the offsets come from the records.
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
        pass  # incomplete or unreachable
    return batch, _offsets_in(table)


def _offsets_in(table: DeltaTable) -> dict[int, int]:
    from deltalake import QueryBuilder

    if not table.file_uris():
        return {}
    query = 'SELECT "partition", max("offset") + 1 AS upto FROM archive GROUP BY "partition"'
    rows = QueryBuilder().register("archive", table).execute(query).read_all()
    return dict(zip(rows["partition"].to_pylist(), rows["upto"].to_pylist(), strict=True))
