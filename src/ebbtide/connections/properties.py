"""Read the properties file of a Kafka client as `java.util.Properties` reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ebbtide.errors import UsageError, first_line

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.?)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"
_PAIR = re.compile(rf"((?:\\.|[^\\=:{_BLANK}])*)[{_BLANK}]*[=:]?[{_BLANK}]*(.*)", re.DOTALL)
_LARGEST = 1 << 20


def expand_home(path: str | Path) -> Path:
    """A path in which `~` is the home folder of a user; refused if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{path} names the home folder of a user who is not known here.",
            f"Write the whole path, or ./{path} if it is a name.",
        ) from None


def read_properties(file: Path) -> dict[str, str]:
    """The properties of a file; a refusal never shows a value."""
    try:
        with expand_home(file).open("rb") as stream:
            content = stream.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # no path has a NUL
        why = first_line(getattr(error, "strerror", None) or error)
        raise UsageError(
            f"The Kafka configuration {file} cannot be read: {why}.",
            "Name the properties file of a Kafka client with --kafka-config.",
        ) from None
    if len(content) > _LARGEST or b"\0" in content:
        raise UsageError(
            f"The Kafka configuration {file} is no properties file.",
            "It should have lines such as security.protocol=SASL_SSL.",
        )
    # Java reads it as ISO-8859-1; other characters are written as \u0142
    return parse_properties(content.decode("iso-8859-1"))


def parse_properties(text: str) -> dict[str, str]:
    r"""Properties by name; the last line of a name counts.

    >>> parse_properties("# a comment\nsasl.mechanism = PLAIN\nclient.id: visits\\\n   -counter")
    {'sasl.mechanism': 'PLAIN', 'client.id': 'visits-counter'}
    >>> parse_properties("path=C:\\\\keys\\u00e9\\ud83d\\ude00")
    {'path': 'C:\\keysé😀'}
    """
    pairs = (_PAIR.fullmatch(line) for line in _logical_lines(text))
    return {_unescape(pair[1]): _unescape(pair[2]) for pair in pairs if pair}


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, each joined with those that continue it."""
    begun: list[str] = []  # joined once: a file may have a line of half a million parts
    for natural in re.split(r"\r\n|\n|\r", text):
        line = natural.lstrip(_BLANK)
        if not begun and line[:1] in ("", "#", "!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun += [line[:-1]] if line[:-1] else []
        else:
            yield "".join((*begun, line))
            begun = []
    if begun:
        yield "".join(begun)


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) > 1:
            return chr(int(escaped[1:], 16))
        return _ESCAPED.get(escaped, escaped)

    # Java writes a character beyond \uffff as two
    return _ESCAPE.sub(replace, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The properties of a TOML table, whose dotted names are tables within tables.

    >>> flatten({"sasl": {"mechanism": "PLAIN"}, "client.id": "visits", "retries": 3})
    {'sasl.mechanism': 'PLAIN', 'client.id': 'visits', 'retries': '3'}
    """
    properties: dict[str, str] = {}
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, Mapping):
            properties |= flatten(value, f"{name}.")
        elif isinstance(value, bool):
            properties[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            properties[name] = str(value)
        else:
            raise UsageError(f"The Kafka property {name} is not a text.", "Write it in quotes.")
    return properties
