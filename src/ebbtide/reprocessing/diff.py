"""The differences between new results and what an output holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

UNCHANGED, CHANGED, NEW, GONE = "unchanged", "changed", "new", "gone"
VERDICTS = (UNCHANGED, CHANGED, NEW, GONE)
MOST_CHANGES, MOST_POINTS = 1_000, 5_000


@dataclass(frozen=True)
class ResultChange:
    """One result that differs: as the output holds it, and as it was computed now."""

    verdict: str
    start: str | None
    old: dict[str, Any] | None
    new: dict[str, Any] | None

    def identify(self) -> str:
        """The values that did not change, by which one result is told from another.

        >>> ResultChange("changed", None, {"id": 1, "count": 3}, {"id": 1, "count": 5}).identify()
        'id 1'
        """
        old, new = self.old or {}, self.new or {}
        same = {n: v for n, v in new.items() if self.verdict == CHANGED and old.get(n) == v}
        return ", ".join(f"{n} {_format(v)}" for n, v in same.items() if not isinstance(v, dict))

    def describe(self) -> str:
        """A short text of what differs.

        >>> ResultChange("changed", None, {"id": 1, "count": 3}, {"id": 1, "count": 5}).describe()
        'count 3 → 5'
        >>> ResultChange("new", None, None, {"count": 5}).describe()
        'count 5'
        """
        old, new = self.old or {}, self.new or {}
        if self.verdict == CHANGED:
            names = [n for n in {**old, **new} if old.get(n) != new.get(n)]
            return ", ".join(f"{n} {_format(old.get(n))} → {_format(new.get(n))}" for n in names)
        values = (new or old).items()
        return ", ".join(f"{n} {_format(v)}" for n, v in values if not isinstance(v, dict))


@dataclass(frozen=True)
class ResultDiff:
    """The differences between the results of a chunk, or of a run, and what the output holds."""

    counts: dict[str, int] = field(default_factory=dict)
    changes: tuple[ResultChange, ...] = ()
    """The first thousand."""
    points: tuple[tuple[str, float | None, float | None], ...] = ()
    """For the plot: the sum of the measure, old and new, by start or bucket of time."""
    measure: str = ""

    def plus(self, other: ResultDiff) -> ResultDiff:
        """The sum of both."""
        return ResultDiff(
            {v: self.counts.get(v, 0) + other.counts.get(v, 0) for v in VERDICTS},
            (*self.changes, *other.changes)[:MOST_CHANGES],
            (*self.points, *other.points)[:MOST_POINTS],
            self.measure or other.measure,
        )

    @property
    def differing(self) -> int:
        """How many results differ."""
        return sum(self.counts.get(verdict, 0) for verdict in (CHANGED, NEW, GONE))

    @property
    def differs(self) -> bool:
        """Whether any result differs."""
        return self.differing > 0


def _format(value: object) -> str:
    if value is None:
        return "nothing"
    return f"{value:g}" if isinstance(value, float) else str(value)
