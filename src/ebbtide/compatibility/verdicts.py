"""The result of a check: a verdict for each part, what Spark would do, and the ways out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ebbtide.checks import BREAKS, COMPATIBLE, SAME, PartVerdict
from ebbtide.errors import mask

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

    def mask(self) -> CompatibilityReport:
        """The same without credentials: the URL of a source or a sink may hold some."""
        parts = (
            replace(part, detail=mask(part.detail), next=mask(part.next)) for part in self.parts
        )
        return replace(
            self,
            checkpoint=mask(self.checkpoint),
            parts=tuple(parts),
            not_checked=tuple(map(mask, self.not_checked)),
            ways_out=tuple(map(mask, self.ways_out)),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"verdict": self.verdict, "can_go_on": self.can_go_on, **asdict(self)}
