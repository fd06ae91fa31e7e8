"""Limits in, a window out: until when a batch can run again, and what closes that first.

What a batch needs is kept by the checkpoint, by Kafka and by Delta tables, each for as long as it
is told to. A limit is the moment from which its keeper may let go, not one at which it will.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from ebbtide.connectors import Limit

CHECKPOINT = "checkpoint"
"""The keeper that is no connector."""
_LAST = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Window:
    """Until when a batch can run again, as far as is known."""

    until: datetime | None = None
    """At least until then; None if no end is in sight, or if it is over."""
    closes_first: str | None = None
    """The keeper that closes it; None if none does."""
    estimate: bool = False
    gone: str | None = None
    """Why it is over."""

    @property
    def open(self) -> bool:
        """Whether the batch can run again."""
        return self.gone is None


def combine(limits: Iterable[Limit]) -> Window:
    """The window that some limits leave together: the first of them closes it.

    >>> noon, later = (datetime(2026, 1, 5, hour, tzinfo=timezone.utc) for hour in (12, 13))
    >>> window = combine([Limit("checkpoint", later, estimate=True), Limit("kafka", noon)])
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
    # of two that end together, the one that is known goes before the estimate
    first = min(ends, key=lambda limit: (limit.until or _LAST, limit.estimate))
    return Window(first.until, first.keeper, first.estimate)
