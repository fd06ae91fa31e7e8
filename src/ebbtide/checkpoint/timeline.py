"""Which run of the query wrote which batches: each rewind and each fork begins a new part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ebbtide.checkpoint.layout import EXACT, REPLAN, TIMELINE, Mode
from ebbtide.notes import Count, decode, parse_note
from ebbtide.storage import Folder


class TimelinePart(NamedTuple):
    """The batches from one on, up to the next part."""

    name: str
    first_batch: Count
    mode: Mode
    """Of the rewind that began it: `exact` or `replan`."""


@dataclass(frozen=True)
class Timeline:
    """The parts that a checkpoint consists of, in ascending order."""

    parts: tuple[TimelinePart, ...] = (TimelinePart("origin", 0, REPLAN),)

    @classmethod
    def read(cls, folder: Folder) -> Timeline:
        """The timeline that a checkpoint is on."""
        parts = parse_note(
            folder, TIMELINE, lambda note: decode(tuple[TimelinePart, ...], note["timeline"])
        )
        return cls(parts) if parts else cls()

    @property
    def name(self) -> str:
        """The name of the newest part."""
        return self.parts[-1].name

    @property
    def rewinds(self) -> tuple[TimelinePart, ...]:
        """The parts after the first one."""
        return self.parts[1:]

    def owner_of(self, batch: int) -> str | None:
        """The name of the part that ran a batch.

        >>> Timeline().branch(5, "exact", "b1").owner_of(5)
        'b1'
        """
        return next((p.name for p in reversed(self.parts) if p.first_batch <= batch), None)

    def below(self, batch: int, mode: str) -> Timeline:
        """What comes before a rewind; an exact one keeps the plan of its first batch.

        >>> both = Timeline().branch(5, "replan", "a").branch(9, "exact", "b")
        >>> both.below(9, "exact").name, both.below(5, "exact").name, both.below(5, "replan").name
        ('a', 'a', 'origin')
        """
        cut = (batch, mode == EXACT)
        return Timeline(tuple(p for p in self.parts if (p.first_batch, p.mode == EXACT) < cut))

    def branch(self, batch: int, mode: str, name: str) -> Timeline:
        """The timeline after a rewind: a new part begins with its first batch."""
        return Timeline((*self.below(batch, mode).parts, TimelinePart(name, batch, mode)))
