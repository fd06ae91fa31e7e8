"""Read and write our own files in a checkpoint, all of them in its folder `.ebbtide`."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from enum import Enum, EnumMeta
from functools import cache, partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from ebbtide.errors import CheckpointError
from ebbtide.parsing import parse_json, require_count, require_finite, require_inside, require_name
from ebbtide.storage import NOTES, Folder, WritableFolder
from ebbtide.times import exact_time, parse_time

Parsed = TypeVar("Parsed")
INVALID = (KeyError, TypeError, ValueError, AttributeError)
"""What `decode` raises for a value of another type."""
_MODE = "mode.json"
_MICROSECOND = timedelta(microseconds=1)
Name = Annotated[str, require_name]
"""The name of a file or folder, such as a backup's id: no path."""
PathInside = Annotated[str, require_inside]
"""A path that stays in its folder."""
Count = Annotated[int, require_count]
"""A number that is not negative, such as a batch."""
Seconds = Annotated[float, require_finite]
"""A time or a duration."""


def note_path(name: str) -> str:
    """The path of a note in a checkpoint; refuse one outside of our own folder.

    >>> note_path("lease.json")
    '.ebbtide/lease.json'
    >>> note_path("../offsets/5")
    Traceback (most recent call last):
    ValueError: '../offsets/5' leads out of its folder
    """
    if not name:
        raise ValueError(f"{name} is not in {NOTES}")
    return f"{NOTES}/{require_inside(name)}"


def read_note(folder: Folder, name: str) -> dict[str, Any] | None:
    """A note; None if it was never written. Refuse one that is damaged."""
    return parse_note(folder, name, lambda note: note)


def parse_note(
    folder: Folder,
    name: str,
    parse: Callable[[dict[str, Any]], Parsed],
    advice: str = "Restore it from a copy of the checkpoint.",
) -> Parsed | None:
    """What a note holds; None if it was never written. Refuse one that `parse` cannot read."""
    path = note_path(name)
    text = folder.read(path)
    if text is None:
        return None
    try:
        note = parse_json(text)
        if not isinstance(note, dict):
            raise TypeError(name)
        return parse(note)
    except INVALID:
        raise CheckpointError(f"{folder.path(path)} is damaged.", advice) from None


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


def decode(kind: type[Parsed], value: Any, *, ignore_unknown: bool = False) -> Parsed:
    """A value parsed from JSON as a dataclass, a tuple, or whichever type is annotated.

    Numbers are limited to 64 bits, as in Java; an `Annotated` type adds a check of its own.

    >>> decode(tuple[int | None, ...], [1, None])
    (1, None)
    >>> decode(dict[int, timedelta], {"0": 1000000})
    {0: datetime.timedelta(seconds=1)}
    >>> decode(dict[str, int], {"a": "1"})
    Traceback (most recent call last):
    TypeError: '1' is no int
    """
    decoded: Parsed = _decoder(cast(Hashable, kind), ignore_unknown)(value)
    return decoded


@cache
def _decoder(kind: Any, ignore_unknown: bool = False) -> Callable[[Any], Any]:
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return _field_decoder(kind, ignore_unknown)
    if isinstance(kind, EnumMeta):
        return partial(kind)
    if kind in _FROM_JSON:
        return _FROM_JSON[kind]
    container, of = get_origin(kind), get_args(kind)
    if container is Literal:
        return dict(zip(of, of, strict=True)).__getitem__
    if container is Annotated:
        return _checked_decoder(*of)
    parts = [_decoder(one) for one in of if one is not ...]
    if container in (Union, UnionType):
        return partial(_decode_either, parts)
    if container is tuple:
        return lambda value: tuple(
            part(item)
            for part, item in zip(
                parts * len(value) if ... in of else parts, _require_items(value), strict=True
            )
        )
    if container in (dict, Mapping):
        return lambda value: {of[0](key): parts[1](item) for key, item in value.items()}
    return partial(_require, kind)


def _checked_decoder(kind: Any, check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    decode_value = _decoder(kind)
    return lambda value: check(decode_value(value))


def _field_decoder(kind: Any, ignore_unknown: bool) -> Callable[[Any], Any]:
    hints = get_type_hints(kind, include_extras=True)
    decoders = {name: _decoder(one) for name, one in hints.items()}

    def decode_fields(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, list):  # of a named tuple
            value = dict(zip(kind._fields, value, strict=True))
        names = value.keys() & decoders if ignore_unknown else value.keys()
        return kind(**{name: decoders[name](value[name]) for name in names})

    return decode_fields


def _decode_either(parts: list[Callable[[Any], Any]], value: Any) -> Any:
    for part in parts[:-1]:
        with suppress(*INVALID):
            return part(value)
    return parts[-1](value)


def _require_items(value: Any) -> Any:
    if not isinstance(value, list | tuple):  # JSON has no tuples, but `asdict` does
        raise TypeError(f"{value!r} is no list")
    return value


def _require(kind: Any, value: Any) -> Any:
    if type(value) is int and kind in (int, float) and not abs(value) >> 63:
        return kind(value)
    if type(value) is not kind or kind is int:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


_FROM_JSON: dict[Any, Callable[[Any], Any]] = {
    Any: lambda value: value,
    datetime: parse_time,
    timedelta: lambda value: _require(int, value) * _MICROSECOND,
}


def read_lines(folder: Folder, name: str) -> tuple[Mapping[str, Any], ...]:
    """The objects of a note with one object per line, oldest first."""
    return tuple(parse_lines(folder.read(note_path(name)) or ""))


def parse_lines(text: str) -> Iterator[Mapping[str, Any]]:
    r"""The objects of a log with one object per line; a truncated line is left out.

    >>> list(parse_lines('{"at": 1}\n{"at"'))
    [{'at': 1}]
    """
    for line in text.splitlines():
        with suppress(ValueError):
            if isinstance(value := parse_json(line), dict):
                yield value


def write_note(folder: Folder, name: str, note: Mapping[str, Any]) -> None:
    """Write a note as JSON, atomically."""
    write_text(folder, name, json.dumps(note))


def write_text(folder: Folder, name: str, text: str) -> None:
    """Write a note as it is, atomically."""
    _writable(folder).write(note_path(name), text)


def remove_note(folder: Folder, name: str) -> None:
    """Remove a note, if it is there."""
    with suppress(FileNotFoundError):
        _writable(folder).remove(note_path(name))


def _writable(folder: Folder) -> WritableFolder:
    if isinstance(folder, WritableFolder):
        return folder
    return WritableFolder(folder.url, folder.filesystem, folder.root, folder.made)


class RunMode(str, Enum):
    """How Spark runs a query's batches."""

    BATCHES = "batches"
    ASYNC = "asynchronous progress"
    REAL_TIME = "real-time"


class LastMode(NamedTuple):
    """The mode of the last run of a pipeline, as a note in the checkpoint has it."""

    mode: RunMode
    first_batch: Count
    """The first that it could run."""

    @classmethod
    def read(cls, folder: Folder) -> LastMode | None:
        """The note; None if no run left one."""
        advice = "Delete it: the times of the log files then tell the mode of the last run."
        return parse_note(folder, _MODE, lambda note: decode(cls, note), advice)

    def write(self, folder: Folder) -> None:
        """Note it in a checkpoint."""
        write_note(folder, _MODE, self._asdict())
