"""The windows of event time that the state holds, read with Spark's own state reader."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from ebbtide.compatibility.planned import TimeWindow, format_micros

ENOUGH_WINDOWS = 4
"""From so many different windows on, their distance shows by how much they slide."""


@dataclass(frozen=True)
class HeldWindows:
    """The windows in the state of one operator: start and end in microseconds, each once."""

    operator: int
    kind: str
    """`window` or `session`."""
    spans: tuple[tuple[int, int], ...]

    @property
    def lengths(self) -> list[int]:
        """Their lengths, each once, ascending."""
        return sorted({end - start for start, end in self.spans})

    @property
    def shows_slide(self) -> bool:
        """Whether there are enough of them to tell by how much they slide."""
        return len({start for start, _ in self.spans}) >= ENOUGH_WINDOWS

    def explain_misfit(self, new: TimeWindow) -> str | None:
        """Why windows of a new plan are not those in the state; None if they may be.

        >>> held = HeldWindows(0, "window", ((0, 600_000_000),))
        >>> held.explain_misfit(TimeWindow("window", 300_000_000, 300_000_000))
        'windows of 10 minutes become windows of 5 minutes'
        """
        if not self.spans:
            return None
        if self.kind == "session":
            shortest = self.lengths[0]
            if shortest >= new.length:
                return None
            return (
                f"the gap becomes {format_micros(new.length)}, and the state holds a session of "
                f"{format_micros(shortest)}"
            )
        if self.lengths != [new.length]:
            old = " and ".join(format_micros(length) for length in self.lengths)
            return f"windows of {old} become windows of {format_micros(new.length)}"
        slide = new.slide or new.length
        starts = sorted({start - new.offset for start, _ in self.spans})
        if any(start % slide for start in starts):
            return f"windows of the state do not begin where those of {new} do"
        step = gcd(*(start - starts[0] for start in starts))
        if new.slides and self.shows_slide and step > slide:
            return (
                f"windows every {format_micros(step)} become windows every {format_micros(slide)}"
            )
        return None

    def outlive(self, watermark_ms: int) -> bool:
        """Whether one is there that the watermark has passed: the batch before dropped none."""
        return self.kind == "window" and any(end <= watermark_ms * 1_000 for _, end in self.spans)
