"""Fold the events of a batch into the open visits: pure functions over columns.

A visit ends when its timer fires. The timer is set to ten minutes after the watermark of the last
batch with events of the visit, or after the newest of them while there is no watermark yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]

GAP = timedelta(minutes=10)
_GAP_MS = GAP // timedelta(milliseconds=1)
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class OpenVisits:
    """Visits as columns, by ascending id.

    >>> one = OpenVisits.of({7: (3, 600_000)})
    >>> one.ids, one.pages, one.timers
    (array([7]), array([3]), array([600000]))
    """

    ids: Longs
    pages: Longs
    """The number of pages of each so far."""
    timers: Longs
    """When each ends if no event follows, in milliseconds of event time."""

    @classmethod
    def of(cls, visits: dict[int, tuple[int, int]]) -> OpenVisits:
        """From pages and timer by id."""
        columns = sorted((id_, *rest) for id_, rest in visits.items())
        ids, pages, timers = np.array(columns, np.int64).reshape(-1, 3).T
        return cls(ids, pages, timers)

    def by_id(self) -> dict[int, tuple[int, int]]:
        """Pages and timer by id."""
        rest = zip(self.pages.tolist(), self.timers.tolist(), strict=True)
        return dict(zip(self.ids.tolist(), rest, strict=True))

    def where(self, chosen: npt.NDArray[np.bool_]) -> OpenVisits:
        """Some of them."""
        return OpenVisits(self.ids[chosen], self.pages[chosen], self.timers[chosen])

    def __len__(self) -> int:
        return len(self.ids)


NO_VISITS = OpenVisits.of({})


def fold(
    visits: OpenVisits, ids: Longs, times_ms: Longs, watermark_ms: int = 0
) -> tuple[OpenVisits, OpenVisits]:
    """The open visits after a batch, and those that had events in it.

    >>> ids, times = np.array([7, 8, 7]), np.array([1_000, 2_000, 3_000])
    >>> now, touched = fold(NO_VISITS, ids, times)
    >>> now.by_id()
    {7: (2, 603000), 8: (1, 602000)}
    >>> now, touched = fold(now, np.array([8]), np.array([4_000]), watermark_ms=1_000)
    >>> now.by_id(), touched.by_id()
    ({7: (2, 603000), 8: (2, 601000)}, {8: (2, 601000)})
    """
    seen, counts, newest = _by_visit(ids, times_ms, with_newest=watermark_ms <= 0)
    at = np.searchsorted(visits.ids, seen)
    is_new = np.append(visits.ids, _NEVER)[at] != seen
    is_new[at == len(visits)] = True
    # where each is among all, once the new ones are between the others
    where = at + np.cumsum(is_new) - is_new
    every, pages, timers = (
        np.insert(column, at[is_new], values)
        for column, values in ((visits.ids, seen[is_new]), (visits.pages, 0), (visits.timers, 0))
    )
    pages[where] += counts
    timers[where] = (watermark_ms if newest is None else newest) + _GAP_MS
    return OpenVisits(every, pages, timers), OpenVisits(seen, pages[where], timers[where])


def _by_visit(
    ids: Longs, times_ms: Longs, *, with_newest: bool
) -> tuple[Longs, Longs, Longs | None]:
    """The visits of some events by ascending id, how many events and the newest time of each."""
    order = np.argsort(ids) if with_newest else None
    ids = np.sort(ids) if order is None else ids[order]
    begins = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])[: len(ids)])
    newest = None if order is None else np.maximum.reduceat(times_ms[order], begins)
    return ids[begins], np.diff(begins, append=len(ids)), newest


def expire(visits: OpenVisits, watermark_ms: int) -> tuple[OpenVisits, OpenVisits]:
    """The visits that are still open at a watermark, and those that have ended.

    >>> still, ended = expire(OpenVisits.of({7: (2, 603_000), 8: (1, 602_000)}), 602_000)
    >>> still.by_id(), ended.by_id()
    ({7: (2, 603000)}, {8: (1, 602000)})
    """
    over = visits.timers <= watermark_ms
    return visits.where(~over), visits.where(over)


def fold_range(ids: Longs, times_ms: Longs) -> OpenVisits:
    """Every visit of a complete range, ended: the same fold without a watermark.

    As the range is complete, a visit ends after ten minutes without an event of its own. If it
    then comes back, that is another visit with the same id.

    >>> minutes = np.array([0, 12, 1, 30]) * 60_000
    >>> ended = fold_range(np.array([7, 7, 7, 8]), minutes)
    >>> ended.ids, ended.pages
    (array([7, 7, 8]), array([2, 1, 1]))
    """
    order = np.lexsort((times_ms, ids))
    ids, times_ms = ids[order], times_ms[order]
    begins = np.ones(len(ids), np.bool_)
    begins[1:] = (np.diff(ids) != 0) | (np.diff(times_ms) >= _GAP_MS)
    numbers = np.cumsum(begins) - 1
    _, ended = expire(fold(NO_VISITS, numbers, times_ms)[0], _NEVER)
    return OpenVisits(ids[begins], ended.pages, ended.timers)
