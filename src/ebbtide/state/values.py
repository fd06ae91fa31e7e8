"""Format keys and values of the state for people."""

from __future__ import annotations

import json
import re
from typing import Any

_WHOLE_MINUTE = re.compile(r"(T\d\d:\d\d):00(?=(Z|[+-]\d\d:\d\d)?$)")
_WHOLE_SECOND = re.compile(r"(T\d\d:\d\d:\d\d)\.000000(?=(Z|[+-]\d\d:\d\d)?$)")


def to_short_json(value: object) -> str:
    """A value as JSON without spaces.

    >>> to_short_json({"page": "café", "count": 3})
    '{"page":"café","count":3}'
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def abbreviate(value: Any) -> Any:
    """A value that is easier to read: a window as one word, times without a zero fraction.

    >>> at = "2025-09-04T07:{}:00.000000Z"
    >>> abbreviate({"window": {"start": at.format("00"), "end": at.format("10")}, "page": "a"})
    {'window': '2025-09-04T07:00Z/07:10Z', 'page': 'a'}
    """
    match value:
        case {"start": str(start), "end": str(end), **others} if not others:
            start, end = (_WHOLE_MINUTE.sub(r"\1", abbreviate(time)) for time in (start, end))
            return f"{start}/{end[11:] if end[:11] == start[:11] else end}"
        case dict():
            return {name: abbreviate(field) for name, field in value.items()}
        case list():
            return [abbreviate(item) for item in value]
        case str():
            return _WHOLE_SECOND.sub(r"\1", value)
    return value
