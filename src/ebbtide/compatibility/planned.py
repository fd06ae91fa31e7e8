"""What a new query would do, as Spark planned it: plain values, without Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide.compatibility.operators import OperatorState
from ebbtide.connectors import SinkPlace, streams

_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_START = re.compile(r"- (-?\d+)L?\) % (\d+)L?\)")
_END = re.compile(r"\+ (\d+)L?\), LongType, Timestamp")
_GAP = re.compile(r"\+ (?:cast\()?(?:INTERVAL '?)?(\d[^,()']*?)'?(?: as interval\)?)?(?: as|,|\))")


@dataclass(frozen=True)
class TimeWindow:
    """A window of event time in the plan, in microseconds.

    >>> str(TimeWindow("window", 600_000_000, 600_000_000))
    '10 minutes'
    """

    kind: str
    """`window` or `session`."""
    length: int
    """Of a session, the gap."""
    slide: int = 0
    offset: int = 0

    def __str__(self) -> str:
        text = format_micros(self.length)
        return f"{text} every {format_micros(self.slide)}" if self.slides else text

    @property
    def slides(self) -> bool:
        """Whether windows overlap."""
        return self.kind == "window" and self.slide not in (0, self.length)


@dataclass(frozen=True)
class Column:
    """A column in a key or a value of state, and the column of a source that it is, if it is one.

    `origin` is None where the plan computes it.
    """

    name: str
    origin: str | None = None
    made_of: frozenset[str] = frozenset()
    """The names of all columns from which the plan makes it; empty if that is not known."""


@dataclass(frozen=True)
class PlannedOperator:
    """A stateful operator of the plan."""

    state: OperatorState
    columns: tuple[Column, ...] = ()
    """Where the columns of its key, and of its rows in a join, come from."""
    windows: tuple[TimeWindow, ...] = ()

    def origin_of(self, name: str) -> str | None:
        """The column of a source that a column of the state is; None if it is computed."""
        return next((column.origin for column in self.columns if column.name == name), None)

    def is_made_without(self, name: str, other: str) -> bool:
        """Whether a column of the state has nothing to do with another column."""
        made_of = next((each.made_of for each in self.columns if each.name == name), frozenset())
        return bool(made_of) and other not in made_of


@dataclass(frozen=True)
class PlannedQuery:
    """A query that has not been started."""

    spark: str
    """The version of Spark."""
    sources: tuple[streams.StreamRead, ...]
    operators: tuple[PlannedOperator, ...]
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """The delay of each watermark in milliseconds, by column."""
    source_columns: frozenset[str] = frozenset()
    """The columns of all sources."""
    key_choices: frozenset[str] = frozenset()
    """The columns from which the keys of aggregations and the like were chosen."""
    output_mode: str | None = None
    """None if the function returned rows, not a writer."""
    sink: SinkPlace | None = None
    """None if the function returned rows, not a writer."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """The session's own values of the settings that the checkpoint pins."""
    partitions: int | None = None
    """The session's own value of spark.sql.shuffle.partitions."""
    format_version: int = 1
    """The session's checkpoint format version of state."""
    refusal: str | None = None
    """Why Spark does not start such a query at all, on any checkpoint."""
    own_check: str | None = None
    """What Spark's own check of the state's metadata said, if it refused."""
    is_pipeline: bool = False
    """Whether `ebbtide run` starts it, which prepares a new sink."""
    functions: tuple[str, ...] = ()
    """Code that a plan does not show: Python functions and processors."""


def format_micros(micros: int) -> str:
    """A duration in words.

    >>> format_micros(600_000_000), format_micros(90_000_000), format_micros(1_500)
    ('10 minutes', '90 seconds', '1500 microseconds')
    """
    for unit, size in reversed(_UNITS.items()):
        if unit != "week" and micros and micros % size == 0:
            count = micros // size
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{micros} microseconds"


def parse_window(expression: str) -> TimeWindow | None:
    """The window that an expression of a plan computes; None if it computes none.

    >>> start = "(precisetimestampconversion(at#5, TimestampType, LongType) - 0) % 300000000)"
    >>> text = f"named_struct(start, {start}, end, (x + 600000000), LongType, TimestampType)))"
    >>> str(parse_window(text))
    '10 minutes every 5 minutes'
    """
    if "named_struct(start," not in expression or "precisetimestampconversion" not in expression:
        return None
    start, ends = _START.search(expression), _END.findall(expression)
    if start and ends:
        return TimeWindow("window", int(ends[-1]), int(start[2]), int(start[1]))
    gaps = [parse_interval(text) for text in _GAP.findall(expression)]
    known = [gap for gap in gaps if gap is not None]
    return TimeWindow("session", known[-1]) if known and not start else None


def parse_interval(text: str) -> int | None:
    """An interval as Spark prints it, in microseconds; None if it is none.

    >>> parse_interval("1 hours 30 minutes"), parse_interval("x")
    (5400000000, None)
    """
    parts = re.findall(r"([\d.]+) ([a-z]+?)s?\b", text.lower())
    if not parts or any(unit not in _UNITS for _, unit in parts):
        return None
    return int(sum(float(count) * _UNITS[unit] for count, unit in parts))
