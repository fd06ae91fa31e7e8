"""Count archived records and find their event times, from as few columns and files as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from ebbtide.archive import Archive
from ebbtide.storage import delta_location
from ebbtide.times import EPOCH

_MOST_CHECKED = 2_000_000
"""Telling late records from others takes half a second per million."""

Offsets = Mapping[int, int]


@dataclass(frozen=True)
class WatermarkStart:
    """A watermark, and the offset of a partition from which it applies."""

    offset: int
    watermark_ms: int


@dataclass(frozen=True)
class RecordFilter:
    """Which records to look at: all that a rewind reads again, or all from a time on."""

    ends: Offsets | None = None
    """By partition, the first offset that the stream has not read; None if unknown."""
    starts: Offsets | None = None
    kafka_time: datetime | None = None
    event_time: datetime | None = None
    watermarks: Mapping[int, Sequence[WatermarkStart]] = field(default_factory=dict)

    @property
    def expected(self) -> int | None:
        """How many records there must be; None if only the archive can tell."""
        if self.starts is None or self.ends is None:
            return None
        return sum(max(0, end - self.starts.get(p, 0)) for p, end in self.ends.items())


@dataclass(frozen=True)
class ArchivedRecords:
    """What the archive holds of the records that a filter selects."""

    records: int
    earliest: datetime | None
    latest: datetime | None
    late: int | None = None
    """Records that arrived behind the watermark, so that the stream may have dropped them."""
    earliest_on_time: datetime | None = None
    first_offsets: Offsets = field(default_factory=dict)
    """By partition."""


NO_RECORDS = ArchivedRecords(0, None, None)


def find_records(archive: Archive, wanted: RecordFilter) -> ArchivedRecords:
    """Count the wanted records of an archive, and find their event times."""
    if not archive.records:
        return NO_RECORDS
    count = archive.records if wanted.expected is None else wanted.expected
    checked = bool(wanted.watermarks) and count <= _MOST_CHECKED
    watermark = _watermark(wanted.watermarks) if checked else "CAST(NULL AS TIMESTAMP)"
    rows = _query(
        archive,
        f"""
        SELECT part, min(position) AS first, count(*) AS records,
               min(event_time) AS earliest, max(event_time) AS latest,
               count(CASE WHEN event_time < watermark THEN 1 END) AS late,
               min(CASE WHEN event_time >= watermark THEN event_time END) AS on_time
        FROM (SELECT "partition" AS part, "offset" AS position, event_time,
                     {watermark} AS watermark
              FROM archive WHERE {_where(wanted)})
        GROUP BY part
        """,
    )

    def values(name: str) -> list[Any]:
        return [row[name] for row in rows if row[name] is not None]

    return ArchivedRecords(
        records=sum(values("records")),
        earliest=min(values("earliest"), default=None),
        latest=max(values("latest"), default=None),
        late=sum(values("late")) if checked else None,
        earliest_on_time=min(values("on_time"), default=None),
        first_offsets={row["part"]: row["first"] for row in rows},
    )


def holds_before(archive: Archive, partition: int, offset: int) -> bool:
    """Whether the archive holds a record of a partition from before an offset."""
    if not archive.records or not offset:
        return False
    condition = _where(RecordFilter(ends={partition: offset}))
    return bool(_query(archive, f'SELECT "offset" FROM archive WHERE {condition} LIMIT 1'))


def _query(archive: Archive, query: str) -> list[dict[str, Any]]:
    uri, options = delta_location(archive.path)
    table = DeltaTable(uri, archive.version, options or None)
    result = QueryBuilder().register("archive", table).execute(query).read_all()
    return list(result.to_struct_array().to_pylist())


def _where(wanted: RecordFilter) -> str:
    clauses = ["TRUE"]
    if wanted.ends is not None:
        starts = wanted.starts or {}
        ranges = [
            f'("partition" = {p} AND "offset" >= {starts.get(p, 0)} AND "offset" < {end})'
            for p, end in wanted.ends.items()
        ]
        clauses.append(f"({' OR '.join(ranges) or 'FALSE'})")
    if wanted.kafka_time is not None:
        clauses.append(f'"timestamp" >= {_literal(wanted.kafka_time)}')
    if wanted.event_time is not None:
        day = wanted.event_time.astimezone(timezone.utc).date()
        clauses.append(
            f"event_time >= {_literal(wanted.event_time)} AND {Archive.day_column} >= DATE '{day}'"
        )
    return " AND ".join(clauses)


def _watermark(starts: Mapping[int, Sequence[WatermarkStart]]) -> str:
    cases = " ".join(f"WHEN {p} THEN {_search(each)}" for p, each in starts.items() if each)
    return f'CASE "partition" {cases} END'


def _search(starts: Sequence[WatermarkStart]) -> str:
    """The watermark at an offset as SQL, by binary search: there may be hundreds."""
    if len(starts) == 1:
        return _literal(EPOCH + timedelta(milliseconds=starts[0].watermark_ms))
    middle = len(starts) // 2
    below, above = _search(starts[:middle]), _search(starts[middle:])
    return f'CASE WHEN "offset" < {starts[middle].offset} THEN {below} ELSE {above} END'


def _literal(at: datetime) -> str:
    return f"""arrow_cast({(at - EPOCH) // timedelta(microseconds=1)},
        'Timestamp(Microsecond, Some("UTC"))')"""
