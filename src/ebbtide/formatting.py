"""Format values for people."""

from __future__ import annotations

from collections.abc import Sequence


def format_bytes(size: float) -> str:
    """Format a number of bytes.

    >>> format_bytes(512), format_bytes(1536), format_bytes(5 * 1024**3)
    ('512 B', '1.5 KiB', '5.0 GiB')
    """
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def format_count(number: int | None) -> str:
    """Format a number for a table; `-` if it is not known.

    >>> format_count(12345), format_count(None)
    ('12,345', '-')
    """
    return "-" if number is None else f"{number:,}"


def find_runs(places: Sequence[float], step: float = 1) -> list[tuple[float, float]]:
    """Neighbouring numbers as ranges.

    >>> find_runs([1, 2, 3, 7, 9, 10])
    [(1, 3), (7, 7), (9, 10)]
    """
    runs: list[tuple[float, float]] = []
    for place in places:
        if runs and place - runs[-1][1] <= 1.5 * step:
            runs[-1] = (runs[-1][0], place)
        else:
            runs.append((place, place))
    return runs
