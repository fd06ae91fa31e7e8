"""Combine the limits of what a batch needs into the window in which it can run again.

A limit is the moment from which a keeper may drop something, not the moment when it will.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from ebbtide.connectors import base

CHECKPOINT = "checkpoint"
"""The keeper that is no connector."""
_LAST = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Window:
    """Until when a batch can run again, as far as known."""

    until: datetime | None = None
    """At least until then; None if there is no limit, or if it is closed."""
    closes_first: str | None = None
    """The keeper that closes it; None if none does."""
    estimate: bool = False
    gone: str | None = None
    """Why it is closed."""

    @property
    def open(self) -> bool:
        """Whether the batch can run again."""
        return self.gone is None


def combine(limits: Iterable[base.Limit]) -> Window:
    """The window that limits leave together; the earliest of them closes it.

    >>> noon, later = (datetime(2026, 1, 5, hour, tzinfo=timezone.utc) for hour in (12, 13))
    >>> estimated = base.Limit("checkpoint", later, estimate=True)
    >>> window = combine([estimated, base.Limit("kafka", noon)])
    >>> window.until.hour, window.closes_first, window.estimate
    (12, 'kafka', False)
    """
    limits = list(limits)
    for limit in limits:
        if limit.gone is not None:
            return Window(None, limit.keeper, limit.estimate, limit.gone)
    ends = [limit for limit in limits if limit.until is not None]
    if not ends:
        return Window()
    # of two that end together, the known one wins over the estimate
    first = min(ends, key=lambda limit: (limit.until or _LAST, limit.estimate))
    return Window(first.until, first.keeper, first.estimate)
