"""Entries of a history in, out: the event times of each batch as they are best drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import median

from ebbtide.history.metrics import to_seconds
from ebbtide.history.store import Entry
from ebbtide.times import EPOCH

_FLAT = 12
"""A line that is so many times as high as the band around it hides the band."""
_FEW = 10
"""At most one value in so many is left out."""
_FIRST, _LAST = (
    (datetime(year, month, day, tzinfo=timezone.utc) - EPOCH).total_seconds()
    for year, month, day in ((1, 1, 1), (9999, 12, 31))
)
"""Beyond these there are no dates to write at the axis."""


@dataclass(frozen=True)
class AxisSpan:
    """The event times of one batch, in seconds."""

    earliest: float | None
    latest: float | None
    watermark: float | None

    @property
    def known(self) -> list[float]:
        """As many as there are."""
        return [t for t in (self.earliest, self.latest, self.watermark) if t is not None]


@dataclass(frozen=True)
class TimeAxis:
    """Those of all batches, since 1970 or, if that shows more, since the end of each batch."""

    by_batch: dict[int, AxisSpan]
    behind: bool
    """Whether they count from the end of their batch: below zero, so far behind the clock."""
    low: float
    high: float
    """Between which to draw them."""
    beyond: int
    """How many lie so far out that they would hide all others: a wrong clock does that."""


def fit_time_axis(entries: Sequence[Entry]) -> TimeAxis | None:
    """How to draw the event times and watermarks of some batches; None if none are known."""
    times = {entry.batch: _read(entry, 0.0) for entry in entries}
    height = _height(times)
    if height is None:
        return None
    behind = False
    if height > _FLAT:
        since = {entry.batch: _read(entry, to_seconds(entry.ended)) for entry in entries}
        # of old records, read as fast as can be, the clock says nothing
        behind = (_height(since) or height) < height / 2
        times = since if behind else times
    known = [time for found in times.values() for time in found.known]
    low, high, beyond = _limit(known)
    if not behind:
        low, high = max(low, _FIRST), min(high, _LAST)
    return TimeAxis(times, behind, low, high, beyond)


def _read(entry: Entry, since: float | None) -> AxisSpan:
    def count(time: str | None) -> float | None:
        seconds = to_seconds(time)
        return None if seconds is None or since is None else seconds - since

    earliest, latest = entry.event_times or (None, None)
    return AxisSpan(count(earliest), count(latest), count(entry.watermark))


def _height(times: Mapping[int, AxisSpan]) -> float | None:
    """How many times as high as the span of one batch all of them are together.

    >>> _height({0: AxisSpan(0, 60, None), 1: AxisSpan(60, 120, None)})
    1.0
    """
    known = [span.known for span in times.values() if span.known]
    if not known:
        return None
    ends = _near([max(found) for found in known])
    usual = median(max(found) - min(found) for found in known)
    return (max(ends) - min(ends)) / (usual or 1.0)


def _limit(values: Sequence[float]) -> tuple[float, float, int]:
    """Between which values to draw, and how many lie beyond.

    >>> _limit([0.0, 100.0])
    (-7.000000000000001, 107.0, 0)
    >>> _limit([*range(20), -1e9])[2]
    1
    """
    near = _near(values)
    low, high = min(near), max(near)
    margin = (high - low) * 0.07 or 1.0
    return low - margin, high + margin, len(values) - len(near)


def _near(values: Sequence[float]) -> list[float]:
    """Without the few that lie so far out that the others would be a flat line.

    >>> _near([1, 2, 3, 4, 5, 6, 7, 8, 9, 1000])
    [1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    middle = median(values)
    usual = sorted(values, key=lambda value: abs(value - middle))
    usual = usual[: len(values) - len(values) // _FEW]
    low, high = min(usual), max(usual)
    far = _FLAT * ((high - low) or 1.0)
    return [value for value in values if low - far <= value <= high + far]
