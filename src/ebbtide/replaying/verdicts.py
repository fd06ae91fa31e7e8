"""Judge whether a replayed batch wrote the same as the first time."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.history import Entry

IDENTICAL, DIFFERS, NOT_COMPARED = "identical", "differs", "not compared"


@dataclass(frozen=True)
class ReplayVerdict:
    """One batch, and whether it wrote what it wrote the first time."""

    batch: int
    verdict: str
    old_rows: int | None = None
    new_rows: int | None = None
    reason: str = ""
    """Why it was not compared, or why rows that differ are not all shown."""
    added: int | None = None
    """The number of new rows, if the rows of both runs are available."""
    removed: int | None = None
    """The number of rows that are no longer written."""
    new: tuple[str, ...] = ()
    """The first of the new rows, as JSON."""
    old: tuple[str, ...] = ()
    """The first of those that are no longer written."""


def judge(batch: int, first: Entry | None, now: Entry | None) -> ReplayVerdict:
    """Compare two runs of a batch by the digests of what they wrote.

    >>> from ebbtide.history import Output
    >>> def ran(digest):
    ...     return Entry(3, "origin", "", "", (), rows=9, output=Output(2, digest))
    >>> judge(3, ran("a"), ran("a")).verdict, judge(3, ran("a"), ran("b")).verdict
    ('identical', 'differs')
    >>> judge(3, None, ran("b")).reason
    'the history has no first run of it'
    """
    old, new = (entry.output if entry else None for entry in (first, now))
    counts = (old.rows if old else None, new.rows if new else None)
    if old is not None and new is not None:
        return ReplayVerdict(batch, IDENTICAL if old == new else DIFFERS, *counts)
    if first is None:
        reason = "the history has no first run of it"
    elif now is None:
        reason = "it ran again earlier, and the history has nothing of that"
    elif old is None:
        reason = "what its first run wrote was not counted"
    else:
        reason = "what it writes now cannot be counted"
    return ReplayVerdict(batch, NOT_COMPARED, *counts, reason=reason)
