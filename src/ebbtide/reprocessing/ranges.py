"""Ranges of event time: widened to whole results, and cut into chunks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal

from ebbtide.errors import UsageError
from ebbtide.pipeline import Pipeline
from ebbtide.times import EPOCH, in_utc

_MOST_CHUNKS = 24
_CHUNK_LENGTHS = [timedelta(hours=h) for h in (1, 2, 3, 6, 12, 24)] + [timedelta(days=7)]
_TOO_MANY_CHUNKS = 10_000


@dataclass(frozen=True)
class EventTimeRange:
    """A half-open range of time, `[start, end)`.

    >>> at = datetime(2025, 9, 4, 7, tzinfo=timezone.utc)
    >>> str(EventTimeRange(at, at + timedelta(minutes=10)))
    '[2025-09-04T07:00:00.000Z, 2025-09-04T07:10:00.000Z)'
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        # in a zone whose clocks change, Python adds hours to the clock, not to the time
        object.__setattr__(self, "start", self.start.astimezone(timezone.utc))
        object.__setattr__(self, "end", self.end.astimezone(timezone.utc))
        if self.start >= self.end:
            raise UsageError(
                f"The range starts at {in_utc(self.start)} and ends at {in_utc(self.end)}.",
                "Its start must be before its end, which is not part of it.",
            )

    def __str__(self) -> str:
        return f"[{in_utc(self.start)}, {in_utc(self.end)})"

    @property
    def length(self) -> timedelta:
        """From start to end."""
        return self.end - self.start

    def grown(self, back: timedelta, ahead: timedelta) -> EventTimeRange:
        """The range with some time before and after it."""
        return EventTimeRange(self.start - back, self.end + ahead)


@dataclass(frozen=True)
class Shape:
    """How a transform's results depend on event time, as its query plan shows."""

    kind: Literal["stateless", "windowed", "session"]
    size: timedelta = timedelta()
    """Of a window; of a session, the gap that ends it."""
    slide: timedelta = timedelta()
    """From one window's start to the next."""
    offset: timedelta = timedelta()
    """Of every window's start, counted from 1970."""
    start: str | None = None
    """The SQL expression for when a result row begins; None if the row does not tell."""
    end: str | None = None
    identity: tuple[str, ...] = ()
    """The result columns that name a row, so that two results can be compared."""

    def describe(self) -> str:
        """A description for people.

        >>> Shape("windowed", timedelta(minutes=10), timedelta(minutes=10)).describe()
        'windows of 10 min'
        """
        if self.kind == "stateless":
            return "row by row"
        if self.kind == "session":
            return f"sessions that a gap of {format_length(self.size)} ends"
        every = "" if self.size == self.slide else f" every {format_length(self.slide)}"
        return f"windows of {format_length(self.size)}{every}"


@dataclass(frozen=True)
class Chunk:
    """A part of the range: the results that begin in `owns`; the first also owns older ones."""

    number: int
    owns: EventTimeRange
    reads: EventTimeRange
    """The event times that these results need; for sessions, where the search begins."""


def format_length(length: timedelta) -> str:
    """A length in the largest unit that leaves no remainder.

    >>> [format_length(timedelta(minutes=minutes)) for minutes in (90, 2880, 0)]
    ['90 min', '2 days', '0 s']
    """
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        count, rest = divmod(length, timedelta(seconds=size))
        if count and not rest:
            return f"{count} day" if (count, unit) == (1, "days") else f"{count} {unit}"
    return f"{length.total_seconds():g} s"


def require_range(pipeline: Pipeline) -> None:
    """Refuse a pipeline that cannot be run over a range, as far as shows without its plan."""
    if (why := pipeline.why_no_range) is not None:
        raise refuse_range(pipeline, why)


def refuse_range(pipeline: Pipeline, why: str) -> UsageError:
    """The error that says why a pipeline cannot be run over a range."""
    return UsageError(
        f"Pipeline {pipeline.name} cannot be run over a range: it {why}.",
        "Rewind it instead: ebbtide rewind --help",
    )


def whole_results(asked: EventTimeRange, shape: Shape) -> EventTimeRange:
    """The range widened so that no window is cut: starts of the windows that overlap it.

    >>> at = datetime(2025, 9, 4, 7, 5, tzinfo=timezone.utc)
    >>> ten = timedelta(minutes=10)
    >>> str(whole_results(EventTimeRange(at, at + ten), Shape("windowed", ten, ten)))
    '[2025-09-04T07:00:00.000Z, 2025-09-04T07:20:00.000Z)'
    """
    if shape.kind != "windowed":
        return asked
    origin = EPOCH + shape.offset
    first = (asked.start - origin - shape.size) // shape.slide + 1
    last = -((origin - asked.end) // shape.slide)
    return EventTimeRange(origin + shape.slide * first, origin + shape.slide * last)


def needed_input(owns: EventTimeRange, shape: Shape) -> EventTimeRange:
    """The event times that the results which begin in `owns` are computed from.

    For sessions this is where the search begins: twice the gap on either side.
    """
    if shape.kind == "windowed":
        return EventTimeRange(owns.start, owns.end - shape.slide + shape.size)
    if shape.kind == "session":
        return owns.grown(shape.size * 2, shape.size * 2)
    return owns


def cut(owned: EventTimeRange, shape: Shape, length: timedelta | None = None) -> list[Chunk]:
    """Chunks of equal length, none of which cuts a window; by default at most 24, if possible.

    >>> at = datetime(2025, 9, 4, tzinfo=timezone.utc)
    >>> len(cut(EventTimeRange(at, at + timedelta(days=3)), Shape("stateless")))
    24
    """
    lengths = (each for each in _CHUNK_LENGTHS if owned.length <= each * _MOST_CHUNKS)
    length = length or next(lengths, _CHUNK_LENGTHS[-1])
    if shape.kind == "windowed":
        length = shape.slide * -(-length // shape.slide)
    count = -(-owned.length // length)
    if count > _TOO_MANY_CHUNKS:
        raise UsageError(
            f"A chunk of {format_length(length)} cuts the range into {count:,} chunks.",
            "Choose a longer --chunk.",
        )
    starts = [owned.start + length * n for n in range(count)]
    owns = [EventTimeRange(start, min(start + length, owned.end)) for start in starts]
    return [Chunk(n, each, needed_input(each, shape)) for n, each in enumerate(owns, 1)]
