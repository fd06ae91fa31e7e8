"""Show a few rows or changes of the state, with long values cut.

Spark cuts them, so that a value of many megabytes never leaves the JVM.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.state.diff import KINDS, StateChange
from ebbtide.state.reading import cached, to_json
from ebbtide.state.values import abbreviate, to_short_json

LONGEST = 2_000
"""Maximum number of characters of a value."""


@dataclass(frozen=True)
class ValuePreview:
    """A value as readable JSON, cut if it is long."""

    text: str
    bytes: int
    """The size of the whole value."""
    cut: bool = False


@dataclass(frozen=True)
class RowPreview:
    """A row of the state, readable."""

    key: ValuePreview
    value: ValuePreview
    partition: int


@dataclass(frozen=True)
class StatePreview:
    """The number of rows of the state, and the first of them."""

    count: int
    first: tuple[RowPreview, ...]


@dataclass(frozen=True)
class ChangePreview:
    """A change of the state, readable."""

    kind: str
    key: ValuePreview
    old: ValuePreview | None
    new: ValuePreview | None
    summary: str
    """What differs; empty if a value was cut."""


@dataclass(frozen=True)
class DiffPreview:
    """The number of changes of each kind, and the first of them."""

    counts: dict[str, int]
    first: tuple[ChangePreview, ...]


def preview_state(rows: DataFrame, limit: int, longest: int = LONGEST) -> StatePreview:
    """The number of rows of a state, and the first of them by key."""
    texts = rows.select(
        "key", to_json(rows, "key").alias("k"), to_json(rows, "value").alias("v"), "partition"
    )
    previews = texts.select("key", "partition", *_cut("k", longest), *_cut("v", longest))
    with cached(previews):
        chosen = previews.orderBy("key", "v", "v_bytes").limit(limit).drop("key").collect()
        return StatePreview(
            previews.count(),
            tuple(RowPreview(_read(row, "k"), _read(row, "v"), row["partition"]) for row in chosen),
        )


def preview_changes(changes: DataFrame, limit: int, longest: int = LONGEST) -> DiffPreview:
    """The number of changes of each kind, and the first of them by kind and key."""
    previews = changes.select(
        "kind", *(column for name in ("key", "old", "new") for column in _cut(name, longest))
    )
    with cached(previews):
        counted = {row["kind"]: row["count"] for row in previews.groupBy("kind").count().collect()}
        order = ("kind", "key", "key_bytes", "old", "new")
        chosen = previews.orderBy(*order).limit(limit).collect()
    counts = Counter(counted)
    return DiffPreview({kind: counts[kind] for kind in KINDS}, tuple(map(_preview_change, chosen)))


def _cut(name: str, longest: int) -> list[Column]:
    """A text as far as it is shown, its size, and whether it was cut."""
    text = F.col(name)
    return [
        F.substring(text, 1, longest).alias(name),
        F.octet_length(text).alias(f"{name}_bytes"),
        (F.length(text) > longest).alias(f"{name}_cut"),
    ]


def _read(row: Row, name: str) -> ValuePreview:
    text, size, is_cut = row[name], row[f"{name}_bytes"], row[f"{name}_cut"]
    return ValuePreview(
        text if is_cut else to_short_json(abbreviate(json.loads(text))), size, is_cut
    )


def _preview_change(row: Row) -> ChangePreview:
    key = _read(row, "key")
    old, new = (None if row[name] is None else _read(row, name) for name in ("old", "new"))
    summary = ""
    if not any(text.cut for text in (old, new) if text is not None):
        values = (row[name] and abbreviate(json.loads(row[name])) for name in ("old", "new"))
        summary = StateChange(row["kind"], {}, *values).describe()
    return ChangePreview(row["kind"], key, old, new, summary)
