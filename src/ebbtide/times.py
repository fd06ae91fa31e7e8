"""Parse and format times and durations; the time zone is always shown."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ebbtide.errors import UsageError

_DURATION = re.compile(
    r"P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)

_LONGEST_ZONE = 100
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def find_zone(name: str) -> ZoneInfo:
    """The time zone of a name.

    >>> find_zone("America")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ebbtide.errors.UsageError: There is no time zone 'America'. Use a name such as ...
    """
    try:
        if len(name) <= _LONGEST_ZONE:
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a name may be that of a folder
        pass
    raise UsageError(
        f"There is no time zone {name[:_LONGEST_ZONE]!r}.",
        "Use a name such as UTC or Europe/Warsaw.",
    )


def parse_time(text: str, zone: str = "UTC") -> datetime:
    """Parse a time with or without `T`, seconds, `Z` or offset; `zone` applies if it names none.

    >>> parse_time("2026-01-05 10:00", "Europe/Warsaw").astimezone(timezone.utc).hour
    9
    >>> parse_time("2026-01-05T10:00:00.250Z").isoformat()
    '2026-01-05T10:00:00.250000+00:00'
    """
    cleaned = re.sub(r"[zZ]$", "+00:00", text.strip())
    # Python 3.10 reads only three or six digits of a second
    cleaned = re.sub(r"\.(\d{1,6})\d*", lambda found: f".{found[1]:0<6}", cleaned)
    try:
        found = datetime.fromisoformat(cleaned)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a time.", "Write it as 2026-01-05T10:00:00, with Z for UTC."
        ) from None
    found = found if found.tzinfo else found.replace(tzinfo=find_zone(zone))
    if not 1 < found.year < 9999:  # in another zone it might leave the calendar
        raise UsageError(f"{text!r} is out of range.", "Write a year between 2 and 9998.")
    return found


def parse_duration(text: str) -> timedelta:
    """Parse an ISO-8601 duration of weeks, days, hours, minutes and seconds.

    >>> parse_duration("PT2H30M"), parse_duration("P1D")
    (datetime.timedelta(seconds=9000), datetime.timedelta(days=1))
    """
    found = _DURATION.fullmatch(text.strip().upper())
    parts = (
        {name: float(value) for name, value in found.groupdict().items() if value} if found else {}
    )
    try:
        duration = timedelta(**parts)
    except OverflowError:
        duration = timedelta.max
    # longer than a century would leave the calendar
    if not parts or duration > timedelta(days=36_525):
        raise UsageError(f"{text!r} is not a duration.", "Write it as PT2H, PT30M, P1D or P1DT12H.")
    return duration


def in_utc(at: datetime | int) -> str:
    """Format a time, or milliseconds since 1970, as ISO-8601 in UTC.

    >>> in_utc(1_756_969_200_000)
    '2025-09-04T07:00:00.000Z'
    """
    if isinstance(at, int):
        try:
            at = datetime.fromtimestamp(at / 1000, timezone.utc)
        except (OverflowError, ValueError, OSError):
            return f"{at} ms"  # outside the calendar
    text = at.astimezone(timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def exact_time(at: datetime) -> str:
    """Format a time as ISO-8601 in UTC, to the microsecond where it has one.

    >>> exact_time(parse_time("2025-09-04T07:00:00.000001"))
    '2025-09-04T07:00:00.000001+00:00'
    """
    exact = at.astimezone(timezone.utc).isoformat(timespec="microseconds")
    return exact if at.microsecond % 1000 else in_utc(at)


def echo(at: datetime, zone: str) -> str:
    """Format a time in the session's zone, and in UTC if that is another one.

    >>> echo(parse_time("2026-01-05T10:00", "Europe/Warsaw"), "Europe/Warsaw")
    '2026-01-05 10:00:00 Europe/Warsaw = 2026-01-05T09:00:00.000Z'
    >>> echo(parse_time("2026-01-05T10:00"), "UTC")
    '2026-01-05T10:00:00.000Z'
    """
    if zone == "UTC":
        return in_utc(at)
    local = at.astimezone(find_zone(zone)).strftime("%Y-%m-%d %H:%M:%S")
    return f"{local} {zone} = {in_utc(at)}"


def format_age(seconds: float) -> str:
    """Format an age in seconds in its largest suitable unit.

    >>> format_age(12), format_age(190), format_age(90000)
    ('12 s', '3 min', '25 h')
    """
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
