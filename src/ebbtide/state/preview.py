"""Show a few rows or changes of the state; Spark cuts long values before they leave the JVM."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.state.diff import StateChange, count_kinds
from ebbtide.state.reading import cached, to_texts
from ebbtide.state.values import abbreviate, to_short_json

LONGEST = 2_000
"""Maximum number of characters of a value."""


def preview_state(rows: DataFrame, limit: int, longest: int = LONGEST) -> dict[str, Any]:
    """The number of rows of a state, and the first of them by key, as JSON for the web UI."""
    previews = to_texts(rows).select("key", "partition", *_cut("k", longest), *_cut("v", longest))
    with cached(previews):
        chosen = previews.orderBy("key", "v", "v_bytes").limit(limit).drop("key").collect()
        count = previews.count()
    first = [
        {"key": _read(row, "k"), "value": _read(row, "v"), "partition": row["partition"]}
        for row in chosen
    ]
    return {"count": count, "first": first}


def preview_changes(changes: DataFrame, limit: int, longest: int = LONGEST) -> dict[str, Any]:
    """The number of changes of each kind, and the first by kind and key, as JSON for the web UI."""
    previews = changes.select(
        "kind", *(column for name in ("key", "old", "new") for column in _cut(name, longest))
    )
    with cached(previews):
        counts = count_kinds(previews)
        order = ("kind", "key", "key_bytes", "old", "new")
        chosen = previews.orderBy(*order).limit(limit).collect()
    return {"counts": counts, "first": list(map(_read_change, chosen))}


def _cut(name: str, longest: int) -> list[Column]:
    """A text as far as it is shown, its size, and whether it was cut."""
    text = F.col(name)
    return [
        F.substring(text, 1, longest).alias(name),
        F.octet_length(text).alias(f"{name}_bytes"),
        (F.length(text) > longest).alias(f"{name}_cut"),
    ]


def _read(row: Row, name: str) -> dict[str, Any] | None:
    text, cut = row[name], row[f"{name}_cut"]
    if text is None:
        return None
    shown = text if cut else to_short_json(abbreviate(json.loads(text)))
    return {"text": shown, "bytes": row[f"{name}_bytes"], "cut": cut}


def _read_change(row: Row) -> dict[str, Any]:
    key, old, new = (_read(row, name) for name in ("key", "old", "new"))
    summary = ""
    if not any(value["cut"] for value in (old, new) if value):
        values = (row[name] and abbreviate(json.loads(row[name])) for name in ("old", "new"))
        summary = StateChange(row["kind"], {}, *values).describe()
    return {"kind": row["kind"], "key": key, "old": old, "new": new, "summary": summary}
