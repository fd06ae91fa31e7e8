"""Schemas of state: read Spark's schema files, and compare two schemas by Spark's own rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from ebbtide.notes import INVALID
from ebbtide.parsing import parse_json

DEFAULT_FAMILY = "default"
WATERMARK_DELAY = "spark.watermarkDelayMs"
"""In the metadata of a field: it is the event time, or a window of it."""
_WINDOWS = {"spark.timeWindow": "window", "spark.sessionWindow": "session"}


@dataclass(frozen=True)
class StateSchema:
    """The key and the value of one store, or of one column family in it."""

    store: str
    key: Mapping[str, Any]
    """A struct, as Spark writes a data type as JSON."""
    value: Mapping[str, Any]
    family: str = DEFAULT_FAMILY
    """In transformWithState: the variable."""

    @property
    def label(self) -> str:
        """The store and the variable, where they are not the only ones."""
        names = (self.store, self.family)
        return " ".join(name for name in names if name != DEFAULT_FAMILY)


def read_schema_file(content: bytes, store: str) -> tuple[StateSchema, ...]:
    r"""Read a schema file, format v1 to v3.

    >>> struct = b'{"type":"struct","fields":[]}'
    >>> chunk = b"\0\0\0\1" + bytes([0, len(struct)]) + struct
    >>> read_schema_file(b"\0\2v2" + chunk + chunk, "default")[0].key
    {'type': 'struct', 'fields': []}
    """
    stream = BytesIO(content)
    version = _read_utf(stream)
    if version == "v1":
        return (StateSchema(store, _parse(_read_utf(stream)), _parse(_read_utf(stream))),)
    if version == "v2":
        return (StateSchema(store, _parse(_read_chunks(stream)), _parse(_read_chunks(stream))),)
    if version != "v3":
        raise ValueError(f"its first line is {version[:40]!r}, not v1, v2 or v3")
    return tuple(_read_family(stream, store) for _ in range(_read_number(stream, 4)))


def _read_family(stream: BytesIO, store: str) -> StateSchema:
    family = _read_utf(stream)
    _read_number(stream, 2)
    key = _parse(_read_chunks(stream))
    _read_number(stream, 2)
    value = _parse(_read_chunks(stream))
    for _ in ("how the key is encoded", "the key of a map"):
        _read_chunks(stream)
    return StateSchema(store, key, value, family)


def _read_number(stream: BytesIO, size: int) -> int:
    content = stream.read(size)
    if len(content) != size:
        raise ValueError("it ends too early")
    return int.from_bytes(content, "big")


def _read_utf(stream: BytesIO) -> str:
    """A text as Java's `writeUTF` writes it; in a schema it is plain UTF-8."""
    size = _read_number(stream, 2)
    content = stream.read(size)
    if len(content) != size:
        raise ValueError("it ends too early")
    return content.decode("utf-8", "replace")


def _read_chunks(stream: BytesIO) -> str:
    count = _read_number(stream, 4)
    if count > len(stream.getbuffer()):
        raise ValueError(f"it has {count} chunks")
    return "".join(_read_utf(stream) for _ in range(count))


def _parse(text: str) -> Mapping[str, Any]:
    schema = parse_json(text)
    if not isinstance(schema, dict) or schema.get("type") != "struct" or not _is_type(schema):
        raise ValueError("it holds no schema")
    return schema


def _is_type(kind: Any) -> bool:
    """Whether a value is a data type as Spark writes one; only what is compared is looked at."""
    if not isinstance(kind, dict):
        return isinstance(kind, str)
    match kind.get("type"):
        case "struct":
            fields = kind.get("fields")
            return isinstance(fields, list) and all(map(_is_field, fields))
        case "array":
            return _is_type(kind.get("elementType")) and isinstance(kind.get("containsNull"), bool)
        case "map":
            types = map(_is_type, (kind.get("keyType"), kind.get("valueType")))
            return all(types) and isinstance(kind.get("valueContainsNull"), bool)
    return isinstance(kind.get("type"), str)


def _is_field(field: Any) -> bool:
    if not isinstance(field, dict) or not isinstance(field.get("metadata", {}), dict):
        return False
    delay = field.get("metadata", {}).get(WATERMARK_DELAY, 0)
    named = isinstance(field.get("name"), str) and isinstance(field.get("nullable"), bool)
    return named and isinstance(delay, int) and _is_type(field.get("type"))


UNREADABLE = INVALID
"""What a damaged schema file raises."""


def fields_of(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of a struct."""
    return list(schema["fields"])


def names_of(schema: Mapping[str, Any]) -> list[str]:
    """The names of a struct's fields."""
    return [str(field["name"]) for field in fields_of(schema)]


def fits(new: Any, stored: Any) -> bool:
    """Whether Spark goes on with a new type: the same types in the same order, whatever the names.

    A field that was never null must not become nullable; the reverse is allowed. This is Spark's
    `DataType.equalsIgnoreNameAndCompatibleNullability`, the same from 3.5 to 4.3.

    >>> one = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True}]}
    >>> two = {"type": "struct", "fields": [{"name": "b", "type": "long", "nullable": False}]}
    >>> fits(two, one), fits(one, two)
    (True, False)
    """
    if not isinstance(new, dict) or not isinstance(stored, dict):
        return bool(new == stored)
    if new.get("type") != stored.get("type"):
        return False
    match new.get("type"):
        case "struct":
            pairs = list(zip(fields_of(new), fields_of(stored), strict=False))
            return len(fields_of(new)) == len(fields_of(stored)) and all(
                _may_be_null(one["nullable"], two["nullable"]) and fits(one["type"], two["type"])
                for one, two in pairs
            )
        case "array":
            allowed = _may_be_null(new["containsNull"], stored["containsNull"])
            return allowed and fits(new["elementType"], stored["elementType"])
        case "map":
            allowed = _may_be_null(new["valueContainsNull"], stored["valueContainsNull"])
            types = ("keyType", "valueType")
            return allowed and all(fits(new[name], stored[name]) for name in types)
    return bool(new == stored)


def _may_be_null(new: bool, stored: bool) -> bool:
    return stored or not new


def show_type(kind: Any) -> str:
    """A type in Spark's short form.

    >>> show_type({"type": "struct", "fields": [{"name": "a", "type": "long"}]})
    'struct<a: long>'
    """
    if not isinstance(kind, dict):
        return str(kind)
    match kind.get("type"):
        case "struct":
            return f"struct<{show_fields(kind)}>"
        case "array":
            return f"array<{show_type(kind['elementType'])}>"
        case "map":
            return f"map<{show_type(kind['keyType'])}, {show_type(kind['valueType'])}>"
    return str(kind.get("type"))


def show_fields(schema: Mapping[str, Any]) -> str:
    """The fields of a struct with their types, in one line; `none` if it has none."""
    fields = [f"{field['name']}: {show_type(field['type'])}" for field in fields_of(schema)]
    return ", ".join(fields) or "none"


def explain_misfit(new: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    """Why a schema does not fit a stored one, in words.

    >>> old = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True}]}
    >>> new = {"type": "struct", "fields": [{"name": "a", "type": "string", "nullable": True}]}
    >>> explain_misfit(new, old)
    'a: long becomes a: string'
    """
    ours, theirs = fields_of(new), fields_of(stored)
    if len(ours) == len(theirs):
        for one, two in zip(ours, theirs, strict=True):
            if not fits(one["type"], two["type"]):
                was = f"{two['name']}: {show_type(two['type'])}"
                return f"{was} becomes {one['name']}: {show_type(one['type'])}"
            if not _may_be_null(one["nullable"], two["nullable"]):
                return f"{one['name']} could not be null, and now it can"
    return f"{show_fields(stored)} becomes {show_fields(new)}"


def find_delays(schema: StateSchema) -> set[int]:
    """The delays of watermarks, in milliseconds, that the fields of a schema name."""
    return {
        int(delay)
        for field in (*fields_of(schema.key), *fields_of(schema.value))
        if (delay := (field.get("metadata") or {}).get(WATERMARK_DELAY)) is not None
    }


def find_event_times(schema: StateSchema) -> set[str]:
    """The columns with a watermark, where a schema shows them: a window hides its own."""
    return {
        str(field["name"])
        for field in (*fields_of(schema.key), *fields_of(schema.value))
        if WATERMARK_DELAY in (marks := field.get("metadata") or {}) and not _WINDOWS.keys() & marks
    }


def find_windows(schema: StateSchema) -> Iterator[tuple[str, str]]:
    """The windows of event time in a key, or of sessions in a value: the kind, the field's name."""
    for field in (*fields_of(schema.key), *fields_of(schema.value)):
        for mark, kind in _WINDOWS.items():
            if (field.get("metadata") or {}).get(mark):
                yield kind, str(field["name"])
