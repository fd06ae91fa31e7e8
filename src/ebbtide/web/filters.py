"""The filters of the templates, which format values for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone

from ebbtide.errors import UsageError, mask
from ebbtide.formatting import format_bytes
from ebbtide.times import format_age, in_utc, parse_time

NOTHING = "-"
"""Shown for an unknown value."""

Moment = datetime | str | int | None
"""A time as the core has it: aware, as ISO-8601, or in milliseconds since 1970."""


def format_number(value: float | None) -> str:
    """A number with separated thousands.

    >>> format_number(1204), format_number(None)
    ('1,204', '-')
    """
    return NOTHING if value is None else f"{value:,}"


def format_count(value: int, one: str, many: str | None = None) -> str:
    """A number and what is counted.

    >>> format_count(1, "batch", "batches"), format_count(1204, "row")
    ('1 batch', '1,204 rows')
    """
    return f"{value:,} {one if value == 1 else many or f'{one}s'}"


def format_size(size: float | None) -> str:
    """A number of bytes.

    >>> format_size(1536), format_size(None)
    ('1.5 KiB', '-')
    """
    return NOTHING if size is None else format_bytes(size)


def format_duration(milliseconds: float | None) -> str:
    """How long something took.

    >>> [format_duration(ms) for ms in (87, 1234, 200_000, 7_800_000, None)]
    ['87 ms', '1.2 s', '3 min 20 s', '2 h 10 min', '-']
    """
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = round(milliseconds / 1000)
    if seconds < 60:
        return f"{milliseconds / 1000:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600:,} h {seconds % 3600 // 60} min"


def to_iso(at: Moment) -> str:
    """A time as ISO-8601 in UTC, for the attribute of `<time>`; empty if it is not a time.

    >>> to_iso(1_756_969_200_000), to_iso("2025-09-04T09:00:00+02:00"), to_iso("soon")
    ('2025-09-04T07:00:00.000Z', '2025-09-04T07:00:00.000Z', '')
    """
    moment = _parse(at)
    return "" if moment is None else in_utc(moment)


def format_time(at: Moment) -> str:
    """A time in UTC to the second, as in the tables of the command line.

    >>> format_time(1_756_969_200_000), format_time(None)
    ('2025-09-04 07:00:00', '-')
    """
    if at is None or at == "":
        return NOTHING
    return to_iso(at)[:19].replace("T", " ") or str(at)


def format_ago(at: Moment, now: float | None = None) -> str:
    """How long ago a time is, or how far ahead.

    >>> format_ago(1_000, now=191), format_ago(200_000, now=100)
    ('3 min ago', 'in 100 s')
    """
    moment = _parse(at)
    if moment is None:
        return NOTHING
    age = (time.time() if now is None else now) - moment.timestamp()
    return f"{format_age(age)} ago" if age >= 0 else f"in {format_age(-age)}"


def format_verdict(verdict: str) -> str:
    """The verdict of a check in a word.

    >>> format_verdict("refuse")
    'refused'
    """
    return {"warn": "warning", "refuse": "refused"}.get(verdict, verdict)


def _parse(at: Moment) -> datetime | None:
    """Parse a time; None if it is not one or out of range."""
    try:
        if isinstance(at, int):
            return datetime.fromtimestamp(at / 1000, timezone.utc)
        return parse_time(at) if isinstance(at, str) else at
    except (OverflowError, ValueError, OSError, UsageError):
        return None


FILTERS: Mapping[str, Callable[..., str]] = {
    "number": format_number,
    "count_of": format_count,
    "size": format_size,
    "duration": format_duration,
    "iso": to_iso,
    "moment": format_time,
    "ago": format_ago,
    "verdict_word": format_verdict,
    "masked": mask,
}
"""By the name that templates use: `{{ rows | number }}`."""
