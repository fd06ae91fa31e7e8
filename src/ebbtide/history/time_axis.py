"""Fit the event times of batches to an axis that shows them well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import median

from ebbtide.history.metrics import to_seconds
from ebbtide.history.store import Entry
from ebbtide.times import EPOCH

_FLAT = 12
"""How many times as high as a usual batch an axis may be before it looks flat."""
_FEW = 10
"""At most one value in this many is left out."""
_FIRST, _LAST = (
    (datetime(year, month, day, tzinfo=timezone.utc) - EPOCH).total_seconds()
    for year, month, day in ((1, 1, 1), (9999, 12, 31))
)
"""The range of dates that the axis can label."""


@dataclass(frozen=True)
class AxisSpan:
    """The event times of one batch, in seconds."""

    earliest: float | None
    latest: float | None
    watermark: float | None

    @property
    def times(self) -> list[float]:
        """Those that are known."""
        return [t for t in (self.earliest, self.latest, self.watermark) if t is not None]


@dataclass(frozen=True)
class TimeAxis:
    """The event times of all batches since 1970 or, if that shows more, since their batch's end."""

    by_batch: dict[int, AxisSpan]
    behind: bool
    """Whether they count from the end of their batch; below zero is behind the clock."""
    low: float
    high: float
    """The limits of the axis are `low` and `high`."""
    beyond: int
    """How many outliers, such as those of a wrong clock, are off the axis."""


def fit_time_axis(entries: Sequence[Entry]) -> TimeAxis | None:
    """The axis for the event times and watermarks of some batches; None if none are known."""
    times = {entry.batch: _read(entry, 0.0) for entry in entries}
    height = _height(times)
    if height is None:
        return None
    behind = False
    if height > _FLAT:
        since = {entry.batch: _read(entry, to_seconds(entry.ended)) for entry in entries}
        # for old records, read as fast as possible, the clock is meaningless
        behind = (_height(since) or height) < height / 2
        times = since if behind else times
    low, high, beyond = _limit([time for span in times.values() for time in span.times])
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
    """The height of all batches as a multiple of the height of a usual one.

    >>> _height({0: AxisSpan(0, 60, None), 1: AxisSpan(60, 120, None)})
    1.0
    """
    spans = [span.times for span in times.values() if span.times]
    if not spans:
        return None
    ends = _near([max(span) for span in spans])
    usual = median(max(span) - min(span) for span in spans)
    return (max(ends) - min(ends)) / (usual or 1.0)


def _limit(values: Sequence[float]) -> tuple[float, float, int]:
    """The limits of the axis, and the number of values beyond.

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
    """The values without the few outliers that would make the others a flat line.

    >>> _near([1, 2, 3, 4, 5, 6, 7, 8, 9, 1000])
    [1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    middle = median(values)
    usual = sorted(values, key=lambda value: abs(value - middle))
    usual = usual[: len(values) - len(values) // _FEW]
    low, high = min(usual), max(usual)
    far = _FLAT * ((high - low) or 1.0)
    return [value for value in values if low - far <= value <= high + far]
