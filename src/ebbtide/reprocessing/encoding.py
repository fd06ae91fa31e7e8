"""Encode the frozen values of a reprocess as JSON and decode them again, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ebbtide.times import in_utc, parse_time

_MICROSECOND = timedelta(microseconds=1)


def encode(value: Any) -> Any:
    """A value as dicts, lists, texts and numbers; a duration as microseconds.

    >>> encode({0: timedelta(seconds=1), "at": (parse_time("2025-09-04T07:00"), None)})
    {0: 1000000, 'at': ['2025-09-04T07:00:00.000Z', None]}
    """
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    match value:
        case Enum():
            return value.value
        case datetime():
            return exact_time(value)
        case timedelta():
            return value // _MICROSECOND
        case Mapping():
            return {name: encode(each) for name, each in value.items()}
        case list() | tuple():
            return [encode(each) for each in value]
    return value


def exact_time(at: datetime) -> str:
    """A time in UTC, to the microsecond where it has one.

    >>> exact_time(parse_time("2025-09-04T07:00:00.000001"))
    '2025-09-04T07:00:00.000001+00:00'
    """
    exact = at.astimezone(timezone.utc).isoformat(timespec="microseconds")
    return exact if at.microsecond % 1000 else in_utc(at)


def decode(kind: Any, data: Any) -> Any:
    """The value of a type from what `encode` made of it.

    >>> decode(dict[int, timedelta] | None, {"0": 1000000})
    {0: datetime.timedelta(seconds=1)}
    """
    if data is None:
        return None
    if isinstance(kind, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
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
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind is datetime:
        return parse_time(data)
    if kind is timedelta:
        return data * _MICROSECOND
    return int(data) if kind is int else data
