from __future__ import annotations

import struct
from typing import Any

import pytest

from ebbtide.compatibility.operators import AGGREGATION, JOIN, guess_name
from ebbtide.compatibility.schemas import (
    StateSchema,
    explain_misfit,
    find_delays,
    find_windows,
    fits,
    read_schema_file,
)

EMPTY: dict[str, Any] = {"type": "struct", "fields": []}


def structure(*fields: tuple[str, Any], nullable: bool = True) -> dict[str, Any]:
    listed = [{"name": n, "type": t, "nullable": nullable, "metadata": {}} for n, t in fields]
    return {"type": "struct", "fields": listed}


@pytest.mark.parametrize(
    ("new", "stored", "fit"),
    [
        (structure(("a", "long")), structure(("b", "long")), True),
        (structure(("a", "long")), structure(("a", "integer")), False),
        (structure(("a", "long")), structure(("a", "long"), ("b", "long")), False),
        (structure(("a", "long")), structure(("a", "long"), nullable=False), False),
        (structure(("a", "long"), nullable=False), structure(("a", "long")), True),
        (structure(("a", "decimal(10,2)")), structure(("a", "decimal(12,2)")), False),
        (
            structure(("a", structure(("x", "long")))),
            structure(("a", structure(("y", "long")))),
            True,
        ),
        (structure(("a", structure(("x", "long")))), structure(("a", "long")), False),
        (
            structure(("a", {"type": "array", "elementType": "long", "containsNull": False})),
            structure(("a", {"type": "array", "elementType": "long", "containsNull": True})),
            True,
        ),
        (
            structure(("a", {"type": "array", "elementType": "long", "containsNull": True})),
            structure(("a", {"type": "array", "elementType": "long", "containsNull": False})),
            False,
        ),
        (
            structure(
                (
                    "a",
                    {
                        "type": "map",
                        "keyType": "string",
                        "valueType": "long",
                        "valueContainsNull": True,
                    },
                )
            ),
            structure(
                (
                    "a",
                    {
                        "type": "map",
                        "keyType": "long",
                        "valueType": "long",
                        "valueContainsNull": True,
                    },
                )
            ),
            False,
        ),
    ],
)
def test_spark_compares_types_by_position(new: Any, stored: Any, fit: bool) -> None:
    assert fits(new, stored) is fit
    if not fit:
        assert "becomes" in explain_misfit(new, stored) or "null" in explain_misfit(new, stored)


def write_utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def write_chunks(text: str) -> bytes:
    return struct.pack(">I", 1) + write_utf(text)


def test_a_schema_file_with_column_families_is_read() -> None:
    text = '{"type":"struct","fields":[]}'
    family = write_utf("sums") + b"\0\0" + write_chunks(text) + b"\0\1" + write_chunks(text)
    content = write_utf("v3") + struct.pack(">I", 1) + family + write_chunks("{}") * 2
    (schema,) = read_schema_file(content, "default")
    assert (schema.family, schema.key, schema.label) == ("sums", EMPTY, "sums")


def test_the_oldest_format_is_read() -> None:
    text = '{"type":"struct","fields":[]}'
    (schema,) = read_schema_file(write_utf("v1") + write_utf(text) * 2, "left-keyToNumValues")
    assert schema.value == EMPTY
    assert guess_name((schema,)) == JOIN


@pytest.mark.parametrize(
    "content", [b"", b"\0\2v2", b"\0\2v9", b"\0\2v2\xff\xff\xff\xff", b"\0\2v1\0\2{}\0\2{}"]
)
def test_a_damaged_schema_file_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="it"):
        read_schema_file(content, "default")


def test_metadata_shows_windows_and_delays() -> None:
    marks = {"spark.timeWindow": True, "spark.watermarkDelayMs": 60_000}
    field = {"name": "window", "type": EMPTY, "nullable": False, "metadata": marks}
    schema = StateSchema(
        "default", {"type": "struct", "fields": [field]}, structure(("sum", "long"))
    )
    assert find_delays(schema) == {60_000}
    assert list(find_windows(schema)) == [("window", "window")]
    assert guess_name((schema,)) == AGGREGATION
