"""Write the frozen values of a reprocess as JSON and read them back, exactly."""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from datetime import datetime, timedelta, timezone
from enum import EnumMeta
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ebbtide.times import in_utc, parse_time

_MICROSECOND = timedelta(microseconds=1)


def encode(value: Any, **options: Any) -> str:
    """A value as JSON: a dataclass by its fields, a duration in microseconds.

    >>> encode({0: timedelta(seconds=1), "at": (parse_time("2025-09-04T07:00"), None)})
    '{"0": 1000000, "at": ["2025-09-04T07:00:00.000Z", null]}'
    """
    return json.dumps(value, default=_to_plain, **options)


def _to_plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return exact_time(value)
    return value // _MICROSECOND if isinstance(value, timedelta) else vars(value)


def exact_time(at: datetime) -> str:
    """A time in UTC, to the microsecond where it has one.

    >>> exact_time(parse_time("2025-09-04T07:00:00.000001"))
    '2025-09-04T07:00:00.000001+00:00'
    """
    exact = at.astimezone(timezone.utc).isoformat(timespec="microseconds")
    return exact if at.microsecond % 1000 else in_utc(at)


def decode(kind: Any, data: Any) -> Any:
    """The value of a type from the parsed JSON of `encode`.

    >>> decode(dict[int, timedelta] | None, {"0": 1000000})
    {0: datetime.timedelta(seconds=1)}
    """
    if data is None:
        return None
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]  # the other is None
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: decode(hints[name], each) for name, each in data.items()})  # type: ignore[operator]
    match get_origin(kind), get_args(kind):
        case _, (each_kind, end) if end is ...:
            return tuple(decode(each_kind, each) for each in data)
        case origin, kinds if origin is tuple:
            return tuple(map(decode, kinds, data))
        case origin, (key, each_kind) if origin is dict:
            return {decode(key, name): decode(each_kind, each) for name, each in data.items()}
    if kind is datetime:
        return parse_time(data)
    if kind is timedelta:
        return data * _MICROSECOND
    return kind(data) if kind is int or isinstance(kind, EnumMeta) else data
