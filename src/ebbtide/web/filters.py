"""Values in, the words that the page's templates show for them out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone

from ebbtide.errors import UsageError, mask
from ebbtide.formatting import say_bytes
from ebbtide.times import in_utc, parse_time, say_age

NOTHING = "-"
"""Where nothing is known."""

Moment = datetime | str | int | None
"""A time as the core has it: aware, as ISO-8601, or in milliseconds since 1970."""

_VERDICTS = {"ok": "ok", "warn": "warning", "refuse": "refused"}


def say_number(value: float | None) -> str:
    """A number with its thousands apart.

    >>> say_number(1204), say_number(None)
    ('1,204', '-')
    """
    return NOTHING if value is None else f"{value:,}"


def say_count(value: int, one: str, many: str | None = None) -> str:
    """A number and what is counted.

    >>> say_count(1, "batch", "batches"), say_count(1204, "row")
    ('1 batch', '1,204 rows')
    """
    return f"{value:,} {one if value == 1 else many or f'{one}s'}"


def say_size(size: float | None) -> str:
    """A number of bytes in few characters.

    >>> say_size(1536), say_size(None)
    ('1.5 KiB', '-')
    """
    return NOTHING if size is None else say_bytes(size)


def say_duration(milliseconds: float | None) -> str:
    """How long something took.

    >>> [say_duration(ms) for ms in (87, 1234, 200_000, 7_800_000, None)]
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
    """A time as ISO-8601 in UTC, for the attribute of `<time>`; empty if it is none.

    >>> to_iso(1_756_969_200_000), to_iso("2025-09-04T09:00:00+02:00"), to_iso("soon")
    ('2025-09-04T07:00:00.000Z', '2025-09-04T07:00:00.000Z', '')
    """
    found = _parse(at)
    return "" if found is None else in_utc(found)


def say_moment(at: Moment) -> str:
    """A time in UTC, to the second, as the CLI's tables have it.

    >>> say_moment(1_756_969_200_000), say_moment("2025-09-04T07:00:00.123456Z"), say_moment(None)
    ('2025-09-04 07:00:00', '2025-09-04 07:00:00', '-')
    """
    if at is None or at == "":
        return NOTHING
    return to_iso(at)[:19].replace("T", " ") or str(at)


def say_ago(at: Moment, now: float | None = None) -> str:
    """How long ago a time is, or how far ahead.

    >>> say_ago(1_000, now=191), say_ago(200_000, now=100)
    ('3 min ago', 'in 100 s')
    """
    found = _parse(at)
    if found is None:
        return NOTHING
    age = (time.time() if now is None else now) - found.timestamp()
    return f"{say_age(age)} ago" if age >= 0 else f"in {say_age(-age)}"


def say_verdict(verdict: str) -> str:
    """A check's verdict in a word.

    >>> say_verdict("refuse")
    'refused'
    """
    return _VERDICTS.get(verdict, verdict)


def _parse(at: Moment) -> datetime | None:
    """An aware time; None if it lies beyond the calendar or is none."""
    try:
        if isinstance(at, int):
            return datetime.fromtimestamp(at / 1000, timezone.utc)
        return parse_time(at) if isinstance(at, str) else at
    except (OverflowError, ValueError, OSError, UsageError):
        return None


FILTERS: Mapping[str, Callable[..., str]] = {
    "number": say_number,
    "count_of": say_count,
    "size": say_size,
    "duration": say_duration,
    "iso": to_iso,
    "moment": say_moment,
    "ago": say_ago,
    "verdict_word": say_verdict,
    "masked": mask,
}
"""By the name under which templates use them: `{{ rows | number }}`."""
