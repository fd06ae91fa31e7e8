"""Damage a value: change its JSON, its numbers, its lengths or its bytes, as numbers say."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.hostile import VALUES

DEEP = ("[" * 70 + "]" * 70, "[" * 4000, '{"a":' * 3000, "[" * 20_000 + "]" * 20_000)
WORDS: tuple[bytes, ...] = (
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"9" * 5000, b"9223372036854775808"),
    *(b"-9223372036854775809", b"null", b"true", b"{}", b"[]", b'""', b'"\\ud800"', b"\\u0000"),
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xc2\x85",
        b"-",
        b":",
    ),
    *(b"../", b"/../../etc/passwd", b"~", b"~nobody-here/", b"%00", b"%2e%2e%2f", b"//", b"\\"),
    *(b"v1\n", b"v2\n", b"v3\n", b"v99999999999\n", b"PT9999999999999H", b"9999-12-31", b"T24:00"),
    *(b"2026-03-29T02:30", b"+99:99", b"Z", b"\xd9\xa3", "²".encode(), b"=", b"${x}", b"'", b'"'),
)
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_PARTS = re.compile(rb"\d+|[A-Za-z_]+|\s+|[^\w\s]+", re.ASCII)
_LARGEST_REPEAT = 1 << 17


class Edit(NamedTuple):
    """One change: which way, where, and with what; any three numbers are one."""

    way: int
    place: int
    """In 65,536ths of the value."""
    what: int


def apply(data: bytes, edits: Sequence[Edit], others: Sequence[bytes], largest: int) -> bytes:
    """Change a value; `others` are values of the same kind, of which parts may be taken."""
    for edit in edits:
        data = _WAYS[edit.way % len(_WAYS)](data, edit, others)[:largest]
    return data


def draw(chosen: random.Random) -> list[Edit]:
    """One to four changes."""
    draw_number = chosen.getrandbits
    count = (1, 1, 1, 2, 2, 3, 4, 1)[draw_number(3)]
    return [Edit(draw_number(16), draw_number(16), draw_number(16)) for _ in range(count)]


def _at(data: bytes, edit: Edit) -> int:
    return edit.place * (len(data) + 1) >> 16


def _change_json(data: bytes, edit: Edit, others: Sequence[bytes]) -> bytes:
    """Another value somewhere in a line of JSON, one less, or one twice."""
    lines = data.split(b"\n")
    found = [n for n, line in enumerate(lines) if b"{" in line or b"[" in line]
    if not found:
        return _put_word(data, edit, others)
    at = found[edit.place % len(found)]
    lines[at] = _change_line(lines[at], edit)
    return b"\n".join(lines)


def _change_line(line: bytes, edit: Edit) -> bytes:
    start = min(at for at in (line.find(b"{"), line.find(b"[")) if at >= 0)
    try:
        value, length = json.JSONDecoder().raw_decode(line[start:].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return line[:start] + (b"{}", b"[]", b"null", line[start:] * 2)[edit.what % 4]
    rest = line[start:].decode("utf-8", "replace")[length:].encode()
    return line[:start] + _change_value(value, edit.place // 7, edit.what).encode() + rest


def _change_value(value: Any, place: int, what: int) -> str:
    """The JSON of a value with a change at one of its nodes."""
    nodes = _list_nodes(value)
    if not nodes:
        return _to_json(VALUES[what % len(VALUES)])
    node, key = nodes[place % len(nodes)]
    inner, kind = node[key], what % 16
    if isinstance(inner, str) and inner[:1] in ("{", "[") and kind < 12:
        node[key] = _change_text(inner, place // max(1, len(nodes)), what)
        return _to_json(value)
    if kind == 0:
        del node[key]
    elif kind == 1:
        node[key] = "\0here\0"
        return _to_json(value).replace('"\\u0000here\\u0000"', DEEP[what // 16 % len(DEEP)])
    elif kind == 2 and isinstance(node, dict):  # the same key twice
        again = f"{json.dumps(key)}:{_to_json(VALUES[what // 16 % len(VALUES)])}"
        node["\0here\0"] = 0
        return _to_json(value).replace('"\\u0000here\\u0000": 0', again)
    elif kind == 3 and isinstance(node, list):
        node += [inner] * (1, 10, 1000)[what // 16 % 3]
    elif kind == 4 and isinstance(node, dict):
        node[_KEYS[what // 16 % len(_KEYS)]] = inner
    elif kind == 5:
        node[key] = {str(key): inner}
    elif kind == 6:
        node[key] = [inner]
    elif kind == 7 and type(inner) is int:
        node[key] = inner + (-1, 1, 1 << 31, 1 << 53, -(1 << 63))[what // 16 % 5]
    elif kind == 8:
        node[key] = str(inner)
    else:
        node[key] = VALUES[what // 16 % len(VALUES)]
    return _to_json(value)


_KEYS = ("", "0", "-1", "x" * 300, "²", "\ud800", "..", "a/b", "9" * 30, "kind", "path", "\0")


def _change_text(text: str, place: int, what: int) -> str:
    try:
        return _change_value(json.loads(text), place, what)
    except (ValueError, RecursionError):
        return text[: len(text) // 2]


def _to_json(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return "[]"


def _list_nodes(value: Any) -> list[tuple[Any, Any]]:
    """Each node of a value, as its parent and its key there."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < 5000:
        node = waiting.pop()
        if isinstance(node, dict | list):
            keys = node if isinstance(node, dict) else range(len(node))
            found += [(node, key) for key in keys]
            waiting += [node[key] for key in keys]
    return found


def _cut(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    return data[: _at(data, edit)]


def _remove(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    at = _at(data, edit)
    return data[:at] + data[at + 1 + edit.what % 64 :]


def _flip(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    if not data:
        return bytes([edit.what & 255])
    at = edit.place * len(data) >> 16
    return data[:at] + bytes([data[at] ^ 1 << edit.what % 8]) + data[at + 1 :]


def _put_word(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    """A word of ill repute, between two parts or instead of one."""
    word = WORDS[edit.what % len(WORDS)]
    parts = [(found.start(), found.end()) for found in _PARTS.finditer(data[:20_000])]
    if not parts:
        return word
    start, end = parts[edit.place % len(parts)]
    return data[:start] + word + data[end if edit.what & 64 else start :]


def _set_number(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    """A binary number, such as a length, of one to eight bytes."""
    at, number = _at(data, edit), NUMBERS[edit.what % len(NUMBERS)]
    form = (">B", ">H", ">I", "<I", ">Q", "<H")[edit.what // 16 % 6]
    size = struct.calcsize(form)
    packed = struct.pack(form, number & (1 << 8 * size) - 1)
    return data[:at] + packed + data[at + size :]


def _repeat(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    """A part many times: what takes the square of the size shows then."""
    at = _at(data, edit)
    part = data[at : at + 1 + edit.what % 48]
    times = (2, 10, 100, 100, 1000, 60_000)[edit.what // 64 % 6]
    return data[:at] + part * min(times, _LARGEST_REPEAT // max(1, len(part))) + data[at:]


def _splice(data: bytes, edit: Edit, others: Sequence[bytes]) -> bytes:
    """The beginning of one value and the end of another."""
    other = others[edit.what % len(others)]
    return data[: _at(data, edit)] + other[_at(other, edit) :]


def _swap_lines(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    one, two = edit.place % len(lines), edit.what % len(lines)
    lines[one], lines[two] = lines[two], lines[one]
    return b"\n".join(lines)


_WAYS = (
    *(_change_json,) * 6,
    *(_put_word,) * 3,
    *(_cut, _remove, _flip, _flip, _set_number, _set_number, _repeat, _splice, _swap_lines),
)
