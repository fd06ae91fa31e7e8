"""Parse the usual forms of a timestamp, column by column, without a doubt about the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

Mask = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
Digits = npt.NDArray[np.uint8]

_SECONDS = 19
"""The length of `2025-09-04T07:00:00`, with which each form begins."""
_PUNCTUATION = {4: b"-", 7: b"-", 10: b"T ", 13: b":", 16: b":"}
_OFFSET = 6
"""The length of `+02:00`."""
_SECOND = 1_000_000


def parse_times(texts: Any, *, is_utc: bool) -> tuple[Any, Mask]:
    """Microseconds since 1970 as Spark reads them, and whether each row is in a usual form.

    `2025-09-04T07:00:00`, with `T` or a space, up to six digits of a fraction, and a zone: `Z`,
    `+02:00` or, if `is_utc`, none. Null stays null, and that is exact, too.

    >>> micros, exact = parse_times(pa.array(["1970-01-01T00:00:01.5Z", "1970", None]), is_utc=True)
    >>> micros.to_pylist(), exact.tolist()
    ([1500000, None, None], [True, False, True])
    """
    count = len(texts)
    _, ends, data = texts.buffers()
    valid = texts.is_valid().to_numpy(zero_copy_only=False)
    micros, exact = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    if count and data is not None:
        ends_ = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + count + 1]
        bytes_ = np.frombuffer(data, np.uint8)
        sizes = np.where(valid, np.diff(ends_), 0)
        for size in np.unique(sizes[sizes >= _SECONDS]):
            rows = np.flatnonzero(sizes == size)
            if size <= _SECONDS + 1 + 6 + _OFFSET:
                chars = _cut(bytes_, ends_[:-1][rows].astype(np.int64), int(size))
                micros[rows], exact[rows] = _parse(chars, is_utc=is_utc)
    return pa.array(micros, mask=~exact), exact | ~valid


def _cut(data: Digits, starts: Longs, size: int) -> Digits:
    """The texts of one length as a table: a row a character, a column a text."""
    if len(starts) and (np.diff(starts) == size).all():
        chars = data[starts[0] : starts[0] + len(starts) * size].reshape(-1, size)
    else:
        chars = data[starts[:, None] + np.arange(size)]
    return np.asarray(chars.T, np.uint8)


def _parse(chars: Digits, *, is_utc: bool) -> tuple[Longs, Mask]:
    """Texts of one length, by how they end: with Z, with an offset, or without a zone."""
    micros = np.zeros(chars.shape[1], np.int64)
    exact = np.zeros(chars.shape[1], np.bool_)
    is_z, sign = chars[-1] == ord("Z"), chars[-_OFFSET]
    has_offset = ~is_z & ((sign == ord("+")) | (sign == ord("-"))) & (chars[-3] == ord(":"))
    kinds = ((is_z, 1), (has_offset, _OFFSET), (~is_z & ~has_offset, 0))
    for chosen, length in kinds:
        if not chosen.any() or (not length and not is_utc) or len(chars) < _SECONDS + length:
            continue
        every = chosen.all()
        some = chars if every else chars[:, chosen]
        local, ok = _parse_local(some[: len(some) - length])
        if length == _OFFSET:
            shift, in_range = _parse_offset(some[-_OFFSET:])
            local, ok = local - shift, ok & in_range
        if every:
            return local, ok
        micros[chosen], exact[chosen] = local, ok
    return micros, exact


def _parse_local(chars: Digits) -> tuple[Longs, Mask]:
    """`2025-09-04T07:00:00` and a fraction, as if it were UTC."""
    year, month, day = _number(chars[:4]), _number(chars[5:7]), _number(chars[8:10])
    hour, minute, second = _number(chars[11:13]), _number(chars[14:16]), _number(chars[17:19])
    ok = (year > 0) & (hour >= 0) & (hour < 24) & (minute >= 0) & (minute < 60)
    ok &= (second >= 0) & (second < 60) & (month > 0) & (month < 13) & (day > 0)
    for place, allowed in _PUNCTUATION.items():
        ok &= np.isin(chars[place], list(allowed))
    fraction = np.zeros_like(year)
    if digits := len(chars) - _SECONDS:
        # a point alone is not a fraction
        ok &= (chars[_SECONDS] == ord(".")) & (digits > 1) & (digits < 8)
        if 1 < digits < 8:
            fraction = _number(chars[_SECONDS + 1 :]) * 10 ** (7 - digits)
            ok &= fraction >= 0
    # months since March, so that February is the last, whatever its length
    shifted = (month + 9) % 12
    years = year - (month < 3)
    month_days = (153 * shifted + 2) // 5
    days = 365 * years + years // 4 - years // 100 + years // 400 + month_days + day - 1 - 719_468
    ok &= day <= _days_in(year, month)
    seconds = days * 86_400 + hour * 3_600 + minute * 60 + second
    return seconds * _SECOND + fraction, ok


def _parse_offset(chars: Digits) -> tuple[Longs, Mask]:
    hours, minutes = _number(chars[1:3]), _number(chars[4:6])
    ok = (hours >= 0) & (hours < 18) & (minutes >= 0) & (minutes < 60)
    sign = np.where(chars[0] == ord("-"), -1, 1)
    return sign * (hours * 3_600 + minutes * 60) * _SECOND, ok


def _days_in(year: Longs, month: Longs) -> Longs:
    is_leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    lengths = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
    return np.asarray(lengths[np.clip(month, 0, 12)] + ((month == 2) & is_leap), np.int64)


def _number(chars: Digits) -> Longs:
    """The number that each column of digits is; negative if one of them is none."""
    total = np.zeros(chars.shape[1], np.int64)
    bad = np.zeros(chars.shape[1], np.bool_)
    for char in chars:
        digit = char - np.uint8(ord("0"))  # below it wraps to a large one
        bad |= digit > 9
        total = total * 10 + digit
    return np.where(bad, -1, total)
