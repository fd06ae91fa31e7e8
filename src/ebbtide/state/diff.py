"""Compare the state after two batches: which keys were added, changed or removed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from ebbtide.checkpoint import Checkpoint
from ebbtide.state.decoders import find_decoder
from ebbtide.state.parts import StatePart, prefers_feed
from ebbtide.state.reading import cached, choose, read_changes, read_state, search, to_json
from ebbtide.state.values import to_short_json

ADDED, CHANGED, REMOVED = "added", "changed", "removed"
KINDS = (ADDED, CHANGED, REMOVED)


@dataclass(frozen=True)
class StateChange:
    """One key whose value changed; if a key has several values, one of them."""

    kind: str
    key: dict[str, Any]
    old: dict[str, Any] | None
    new: dict[str, Any] | None

    def describe(self) -> str:
        """The value, or what differs between the old and the new one.

        >>> StateChange("changed", {}, {"sum": 3, "count": 1}, {"sum": 5, "count": 1}).describe()
        'sum 3 → 5'
        """
        old, new = self.old or {}, self.new or {}
        if self.kind != CHANGED:
            return to_short_json(new or old)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        return ", ".join(
            f"{n} {to_short_json(old.get(n))} → {to_short_json(new.get(n))}" for n in names
        )


@dataclass(frozen=True)
class StateDiff:
    """The number of changes of each kind, and the first of them."""

    counts: dict[str, int]
    first: tuple[StateChange, ...]


def diff_state(
    spark: SparkSession,
    checkpoint: Checkpoint,
    part: StatePart,
    before: int,
    after: int,
    *,
    where: str | None = None,
    contains: str | None = None,
    raw: bool = False,
    feed: bool | None = None,
) -> DataFrame:
    """What changed between two batches: `kind`, and `key`, `old` and `new` as JSON.

    Compares two full reads or, with `feed`, one read and the changes since; None chooses the
    cheaper way. `where` and `contains` choose by the key, as in `read_state`.
    """
    if feed is None:
        feed = prefers_feed(checkpoint, part, before, after)
    old = read_state(spark, checkpoint, part, before, raw=raw)
    if feed and not raw and find_decoder(read_state(spark, checkpoint, part, before, raw=True)):
        feed = False  # the change of a stored value does not tell which decoded rows changed
    new = (
        read_changes(spark, checkpoint, part, before, after)
        if feed
        else read_state(spark, checkpoint, part, after, raw=raw)
    )
    if where is not None:
        # only the key: of a value that changes it is unclear whether old or new is meant; and
        # Spark would still resolve a column that is merely dropped
        choose(spark.createDataFrame([], StructType([old.schema["key"]])), where)
        old, new = choose(old, where), choose(new, where)
    if contains:
        old, new = search(old, contains), search(new, contains)
    if part.many:
        return _count_copies(old, new)
    value = to_json(new, "value")
    now = F.when(~F.col("deleted"), value) if feed else value
    old_values = old.select(to_json(old, "key"), to_json(old, "value").alias("old"))
    new_values = new.select(to_json(new, "key"), now.alias("new"))
    both = old_values.join(new_values, "key", "right" if feed else "full")
    kind = F.when(F.col("old").isNull(), ADDED).when(F.col("new").isNull(), REMOVED)
    return both.where("NOT old <=> new").select(
        kind.otherwise(CHANGED).alias("kind"), "key", "old", "new"
    )


def _count_copies(old: DataFrame, new: DataFrame) -> DataFrame:
    """The changes where a key has several values: each value that came or went, equal ones too."""
    columns = [
        rows.select(to_json(rows, "key"), to_json(rows, "value"), F.lit(sign).alias("copies"))
        for rows, sign in ((old, -1), (new, 1))
    ]
    copies = columns[0].union(columns[1]).groupBy("key", "value").agg(F.sum("copies").alias("n"))
    each = copies.where("n != 0").withColumn("_", F.explode(F.expr("sequence(1, abs(n))")))
    came = F.col("n") > 0
    return each.select(
        F.when(came, ADDED).otherwise(REMOVED).alias("kind"),
        "key",
        F.when(~came, F.col("value")).alias("old"),
        F.when(came, F.col("value")).alias("new"),
    )


def summarize(changes: DataFrame, limit: int) -> StateDiff:
    """The number of changes of each kind, and the first of them (limit 0 = all)."""
    ordered = changes.orderBy("kind", "key", "old", "new")
    with cached(changes) if limit else nullcontext():
        rows = ordered.limit(limit).collect() if limit else ordered.collect()
        kinds = [row["kind"] for row in rows]
        counts = count_kinds(changes) if limit else {kind: kinds.count(kind) for kind in KINDS}
    first = (
        StateChange(kind, *(json.loads(text or "null") for text in rest)) for kind, *rest in rows
    )
    return StateDiff(counts, tuple(first))


def count_kinds(changes: DataFrame) -> dict[str, int]:
    """The number of changes of each kind."""
    counts = {row["kind"]: row["count"] for row in changes.groupBy("kind").count().collect()}
    return {kind: counts.get(kind, 0) for kind in KINDS}
