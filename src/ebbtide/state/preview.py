"""Rows of a state or what changed in it in, a few of them for the eye out, long values cut.

Spark cuts them, so that a value of many megabytes neither travels nor fills anybody's memory.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.report.state import brief, short
from ebbtide.state.diff import KINDS, Change
from ebbtide.state.reading import kept, to_json

LONGEST = 2_000
"""So many characters of a value are shown."""


@dataclass(frozen=True)
class Text:
    """A value as JSON, for the eye; cut if it is long."""

    text: str
    bytes: int
    """Of all of it."""
    cut: bool = False


@dataclass(frozen=True)
class Line:
    """A row of the state."""

    key: Text
    value: Text
    partition: int


@dataclass(frozen=True)
class Lines:
    """Rows of the state: how many there are, and the first of them."""

    count: int
    first: tuple[Line, ...]


@dataclass(frozen=True)
class Altered:
    """A change of the state."""

    kind: str
    key: Text
    old: Text | None
    new: Text | None
    says: str
    """What differs, in few words; empty if a value was cut."""


@dataclass(frozen=True)
class Alterations:
    """What changed: how many of each kind, and the first of them."""

    counts: dict[str, int]
    first: tuple[Altered, ...]


def preview_state(rows: DataFrame, limit: int, longest: int = LONGEST) -> Lines:
    """The first rows of a state by their key, and how many there are."""
    texts = rows.select(
        "key", to_json(rows, "key").alias("k"), to_json(rows, "value").alias("v"), "partition"
    )
    found = texts.select("key", "partition", *_cut("k", longest), *_cut("v", longest))
    with kept(found):
        chosen = found.orderBy("key", "v", "v_bytes").limit(limit).drop("key").collect()
        return Lines(
            found.count(),
            tuple(Line(_read(row, "k"), _read(row, "v"), row["partition"]) for row in chosen),
        )


def preview_changes(changes: DataFrame, limit: int, longest: int = LONGEST) -> Alterations:
    """The first changes by kind and key, and how many there are of each kind."""
    found = changes.select(
        "kind", *(column for name in ("key", "old", "new") for column in _cut(name, longest))
    )
    with kept(found):
        counted = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        order = ("kind", "key", "key_bytes", "old", "new")
        chosen = found.orderBy(*order).limit(limit).collect()
    counts = Counter(counted)
    return Alterations({kind: counts[kind] for kind in KINDS}, tuple(map(_alter, chosen)))


def _cut(name: str, longest: int) -> list[Column]:
    """A column of text as far as it is shown, its size, and whether that is all."""
    text = F.col(name)
    return [
        F.substring(text, 1, longest).alias(name),
        F.octet_length(text).alias(f"{name}_bytes"),
        (F.length(text) > longest).alias(f"{name}_cut"),
    ]


def _read(row: Row, name: str) -> Text:
    text, size, is_cut = row[name], row[f"{name}_bytes"], row[f"{name}_cut"]
    return Text(text if is_cut else short(brief(json.loads(text))), size, is_cut)


def _alter(row: Row) -> Altered:
    key = _read(row, "key")
    old, new = (None if row[name] is None else _read(row, name) for name in ("old", "new"))
    says = ""
    if not any(text.cut for text in (old, new) if text is not None):
        values = (row[name] and brief(json.loads(row[name])) for name in ("old", "new"))
        says = Change(row["kind"], {}, *values).describe()
    return Altered(row["kind"], key, old, new, says)
