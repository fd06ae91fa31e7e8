"""An archive and a choice of its records in, how many there are and of which event times out.

Only three columns are read, and of the files only those that can hold such a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from ebbtide.archive import DAY, Archive
from ebbtide.times import EPOCH

_MOST_JUDGED = 2_000_000
"""Telling late records from others takes half a second a million."""

Offsets = Mapping[int, int]


@dataclass(frozen=True)
class Mark:
    """From an offset of a partition on, records before this watermark came late."""

    offset: int
    watermark_ms: int


@dataclass(frozen=True)
class Choice:
    """Which records: all that a rewind reads again, or all from a time on."""

    ends: Offsets | None = None
    """By partition the first offset that the stream has not read; None if that is not known."""
    starts: Offsets | None = None
    kafka_time: datetime | None = None
    event_time: datetime | None = None
    marks: Mapping[int, Sequence[Mark]] = field(default_factory=dict)

    @property
    def expected(self) -> int | None:
        """How many there must be; None if only the records can tell."""
        if self.starts is None or self.ends is None:
            return None
        return sum(max(0, end - self.starts.get(p, 0)) for p, end in self.ends.items())


@dataclass(frozen=True)
class Found:
    """The records that the archive holds of a choice."""

    records: int
    earliest: datetime | None
    latest: datetime | None
    late: int | None = None
    """So many came behind the watermark, so that the stream may have dropped them."""
    earliest_on_time: datetime | None = None
    first_offsets: Offsets = field(default_factory=dict)
    """By partition."""


NOTHING = Found(0, None, None)


def find_records(archive: Archive, choice: Choice) -> Found:
    """What the archive holds of a choice of records."""
    if not archive.records:
        return NOTHING
    count = archive.records if choice.expected is None else choice.expected
    judged = bool(choice.marks) and count <= _MOST_JUDGED
    watermark = _watermark(choice.marks) if judged else "CAST(NULL AS TIMESTAMP)"
    rows = _ask(
        archive,
        f"""
        SELECT part, min(position) AS first, count(*) AS records,
               min(event_time) AS earliest, max(event_time) AS latest,
               count(CASE WHEN event_time < watermark THEN 1 END) AS late,
               min(CASE WHEN event_time >= watermark THEN event_time END) AS on_time
        FROM (SELECT "partition" AS part, "offset" AS position, event_time,
                     {watermark} AS watermark
              FROM archive WHERE {_where(choice)})
        GROUP BY part
        """,
    )

    def known(name: str) -> list[Any]:
        return [row[name] for row in rows if row[name] is not None]

    return Found(
        records=sum(known("records")),
        earliest=min(known("earliest"), default=None),
        latest=max(known("latest"), default=None),
        late=sum(known("late")) if judged else None,
        earliest_on_time=min(known("on_time"), default=None),
        first_offsets={row["part"]: row["first"] for row in rows},
    )


def holds_before(archive: Archive, partition: int, offset: int) -> bool:
    """Whether the archive holds a record of a partition from before an offset."""
    if not archive.records or not offset:
        return False
    chosen = _where(Choice(ends={partition: offset}))
    return bool(_ask(archive, f'SELECT "offset" FROM archive WHERE {chosen} LIMIT 1'))


def _ask(archive: Archive, query: str) -> list[dict[str, Any]]:
    table = DeltaTable(archive.path, version=archive.version)
    answer = QueryBuilder().register("archive", table).execute(query).read_all()
    columns = {name: answer[name].to_pylist() for name in answer.schema.names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _where(choice: Choice) -> str:
    clauses = ["TRUE"]
    if choice.ends is not None:
        starts = choice.starts or {}
        ranges = [
            f'("partition" = {p} AND "offset" >= {starts.get(p, 0)} AND "offset" < {end})'
            for p, end in choice.ends.items()
        ]
        clauses.append(f"({' OR '.join(ranges) or 'FALSE'})")
    if choice.kafka_time is not None:
        clauses.append(f'"timestamp" >= {_literal(choice.kafka_time)}')
    if choice.event_time is not None:
        day = choice.event_time.astimezone(timezone.utc).date()
        clauses.append(f"event_time >= {_literal(choice.event_time)} AND {DAY} >= DATE '{day}'")
    return " AND ".join(clauses)


def _watermark(marks: Mapping[int, Sequence[Mark]]) -> str:
    cases = " ".join(f"WHEN {p} THEN {_search(found)}" for p, found in marks.items() if found)
    return f'CASE "partition" {cases} END'


def _search(marks: Sequence[Mark]) -> str:
    """The watermark that holds at an offset, found by halves: there may be hundreds."""
    if len(marks) == 1:
        return _literal(EPOCH + timedelta(milliseconds=marks[0].watermark_ms))
    middle = len(marks) // 2
    below, above = _search(marks[:middle]), _search(marks[middle:])
    return f'CASE WHEN "offset" < {marks[middle].offset} THEN {below} ELSE {above} END'


def _literal(at: datetime) -> str:
    return f"""arrow_cast({(at - EPOCH) // timedelta(microseconds=1)},
        'Timestamp(Microsecond, Some("UTC"))')"""
