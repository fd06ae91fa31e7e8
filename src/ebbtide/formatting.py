"""Format values for people."""

from __future__ import annotations


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
