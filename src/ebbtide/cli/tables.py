"""Lay out tables for a terminal: words, paths and commands stay in one piece."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ebbtide.formatting import display_width, wrap

_GAP, _INDENT = 2, 4
_NARROW, _TALL = 24, 4
"""A cell that is so many lines tall in so narrow a column goes below its row."""

Lines = list[str]
"""Of one cell."""


def lay_out(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, folds: Collection[str] = ()
) -> Lines:
    r"""The lines of a table; if it is too wide, the columns named in `folds` give way.

    By default that is the widest column but the first. A cell with a word or a command that is too
    long for its column goes below its row.

    >>> rows = [("0", "good", ""), ("1", "broken", "state/0/1/2.delta is missing")]
    >>> print("\n".join(lay_out(("batch", "verdict", "why"), rows, 36)))
     batch  verdict  why
     ─────────────────────────────────
     0      good
     1      broken   state/0/1/2.delta
                     is missing
    >>> print("\n".join(lay_out(("batch", "verdict", "why"), rows, 32)))
     batch  verdict  why
     ───────────────────
     0      good
     1      broken
        state/0/1/2.delta is missing
    """
    heads = [column.split("\n") for column in columns]
    cells = [[[cell] for cell in row] for row in rows]
    widths = _measure([heads, *cells])
    if _sum(widths) > width:
        widths = _narrow(widths, width, _find_folds(columns, widths, folds))
        heads = [_wrap_head(head, size) for head, size in zip(heads, widths, strict=True)]
    below: list[Lines] = [[] for _ in rows]
    names = [f"{column}: " if len(folds) > 1 else "" for column in columns]
    for row, lines in zip(cells, below, strict=True):
        for at, ((cell,), size) in enumerate(zip(row, widths, strict=True)):
            if display_width(cell) > size:
                row[at] = wrap(cell, size)
                if _is_tight(row[at], size):
                    row[at] = [""]
                    whole = wrap(f"{names[at]}{cell}", width - _INDENT)
                    lines += [" " * _INDENT + line for line in whole]
    widths = _measure([heads, *cells])
    top = max(map(len, heads))
    head = _join([[""] * (top - len(one)) + one for one in heads], widths)
    table = [*head, f" {'─' * (_sum(widths) - 1)}"]
    for row, lines in zip(cells, below, strict=True):
        table += [*_join(row, widths), *lines]
    return table


def _measure(rows: Iterable[Sequence[Lines]]) -> list[int]:
    columns = zip(*rows, strict=True)
    return [max(display_width(line) for cell in column for line in cell) for column in columns]


def _sum(widths: Sequence[int]) -> int:
    return 1 + sum(widths) + _GAP * (len(widths) - 1)


def _find_folds(
    columns: Sequence[str], widths: Sequence[int], folds: Collection[str]
) -> dict[int, int]:
    """The widths of the columns that give way, narrow ones first."""
    chosen = [at for at, column in enumerate(columns) if column in folds]
    chosen = chosen or [max(range(1, len(columns)), key=widths.__getitem__, default=0)]
    return {at: widths[at] for at in sorted(chosen, key=widths.__getitem__)}


def _narrow(widths: Sequence[int], width: int, folds: dict[int, int]) -> list[int]:
    """The widths that are left if some columns share what the others leave.

    >>> _narrow([5, 40, 10], 40, {2: 10, 1: 40})
    [5, 20, 10]
    """
    narrowed = list(widths)
    room = width - _sum(widths) + sum(folds.values())
    for left, (at, size) in enumerate(folds.items()):
        narrowed[at] = max(1, min(size, room // (len(folds) - left)))
        room -= narrowed[at]
    return narrowed


def _wrap_head(head: Lines, size: int) -> Lines:
    return [line for text in head for line in (wrap(text, size) or [""])]


def _is_tight(lines: Lines, size: int) -> bool:
    """Whether a cell does not fit into its column, or only as a tall heap of words."""
    return max(map(display_width, lines)) > size or (size < _NARROW and len(lines) >= _TALL)


def _join(cells: Sequence[Lines], widths: Sequence[int]) -> Lines:
    """The lines of a row."""
    tall = max(map(len, cells))
    padded = [
        [line + " " * (size - display_width(line)) for line in (*cell, *[""] * (tall - len(cell)))]
        for cell, size in zip(cells, widths, strict=True)
    ]
    gap = " " * _GAP
    return [f" {gap.join(parts)}".rstrip() for parts in zip(*padded, strict=True)]
