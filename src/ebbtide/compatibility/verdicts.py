"""The result of a check: a verdict for each part, what Spark would do, and the ways out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ebbtide.checks import BREAKS, COMPATIBLE, SAME, PartVerdict

_ORDER = (SAME, COMPATIBLE, BREAKS)


@dataclass(frozen=True)
class CompatibilityReport:
    """Whether a new query can go on from a checkpoint, part by part.

    >>> part = PartVerdict("sources", SAME, "files /in")
    >>> CompatibilityReport("/ckpt", 7, "4.2.0", (part,)).can_go_on
    True
    """

    checkpoint: str
    next_batch: int
    """The batch with which the new query would begin."""
    spark: str
    """The version of Spark that planned the new query, and whose rules were applied."""
    parts: tuple[PartVerdict, ...]
    not_checked: tuple[str, ...] = ()
    """What neither Spark nor Ebbtide can see."""
    ways_out: tuple[str, ...] = ()
    """Lines to type where the query cannot go on."""

    @property
    def verdict(self) -> str:
        """The worst of all parts."""
        return max((part.verdict for part in self.parts), key=_ORDER.index, default=SAME)

    @property
    def can_go_on(self) -> bool:
        """Whether no part breaks."""
        return self.verdict != BREAKS

    @property
    def breaking(self) -> tuple[PartVerdict, ...]:
        """The parts that break."""
        return tuple(part for part in self.parts if part.verdict == BREAKS)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"verdict": self.verdict, "can_go_on": self.can_go_on, **asdict(self)}
