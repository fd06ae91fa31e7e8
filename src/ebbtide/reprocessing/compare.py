"""Compare new results with what the output holds: step 6 of a reprocess."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import NumericType

from ebbtide.connectors import streams
from ebbtide.connectors.spark import rows as result_rows
from ebbtide.reprocessing.diff import (
    CHANGED,
    GONE,
    MOST_CHANGES,
    NEW,
    UNCHANGED,
    VERDICTS,
    ResultChange,
    ResultDiff,
)
from ebbtide.reprocessing.ranges import EventTimeRange, Shape
from ebbtide.times import in_utc

_ID, _JSON = "_ebbtide_id", "_ebbtide_json"
_COPY, _DUE = "_ebbtide_copy", "_ebbtide_due"


def belongs(shape: Shape, owns: EventTimeRange, *, first: bool = True) -> Column:
    """Whether a result row begins in a chunk; an older session belongs to the first chunk."""
    if shape.start is None:
        return F.lit(True)
    start, end = F.expr(shape.start), F.lit(owns.end)
    if shape.kind == "session" and first:
        assert shape.end is not None
        return (F.expr(shape.end) > F.lit(owns.start)) & (start < end)
    return (start >= F.lit(owns.start)) & (start < end)


def reaches_into(held: DataFrame, new: DataFrame, shape: Shape, outside: Column) -> DataFrame:
    """Held sessions outside of the range of which a new session has become a part."""
    assert shape.start is not None
    assert shape.end is not None
    keys = [column for column in shape.identity if column != shape.start]
    names = [f"_ebbtide_key_{n}" for n in range(len(keys))]
    other = new.select(
        *(F.expr(key).alias(name) for key, name in zip(keys, names, strict=True)),
        F.expr(shape.start).alias("_ebbtide_start"),
        F.expr(shape.end).alias("_ebbtide_end"),
    )
    same = [F.expr(key).eqNullSafe(F.col(name)) for key, name in zip(keys, names, strict=True)]
    overlaps = (F.expr(shape.start) < F.col("_ebbtide_end")) & (
        F.expr(shape.end) > F.col("_ebbtide_start")
    )
    condition = reduce(lambda a, b: a & b, same, overlaps)
    return held.where(outside).join(other, condition, "left_semi")


def replaced_range(shape: Shape, owned: EventTimeRange) -> streams.ReplacedRange:
    """What of an output new results of a range take the place of."""
    range_ = streams.ReplacedRange(shape.start, owned.start, owned.end)
    if shape.kind != "session":
        return replace(range_, keeps_additions=shape.kind == "stateless")

    def doomed(held: DataFrame, new: DataFrame) -> DataFrame:
        inside = F.coalesce(belongs(shape, owned), F.lit(False))
        return held.where(inside).unionByName(reaches_into(held, new, shape, ~inside))

    return replace(range_, doomed=doomed)


def compare(new: DataFrame, held: DataFrame, shape: Shape) -> DataFrame:
    """A row for each result, with its verdict: `id`, `start`, `old`, `new` (JSON), `verdict`.

    Where the result does not say when it begins, nobody can tell what is gone.
    """
    left = _side(new, shape, "new")
    right = _side(_latest(held, new, shape), shape, "old")
    how = "full_outer" if shape.start is not None else "left_outer"
    both = left.join(right, "id", how)
    verdict = (
        F.when(F.col("old").isNull(), NEW)
        .when(F.col("new").isNull(), GONE)
        .when(F.col("old") == F.col("new"), UNCHANGED)
        .otherwise(CHANGED)
    )
    return both.select(
        "id",
        F.coalesce("start_new", "start_old").alias("start"),
        *("old", "new", "measure_old", "measure_new"),
        verdict.alias("verdict"),
    )


def summarize_results(compared: DataFrame, measure: str, bucket: timedelta) -> ResultDiff:
    """Counts by verdict, the first changes, and the points of the picture, one a bucket of time."""
    # as numbers: Spark hands a time over in this process's zone
    millis, width = F.unix_millis("start"), max(1, bucket // timedelta(milliseconds=1))
    points = (
        compared.groupBy((millis - F.pmod(millis, F.lit(width))).alias("start"))
        .agg(
            F.sum("measure_old").alias("was"),
            F.sum("measure_new").alias("is"),
            *(F.count_if(F.col("verdict") == verdict).alias(verdict) for verdict in VERDICTS),
        )
        .orderBy("start")
        .collect()
    )
    counts = {verdict: sum(point[verdict] for point in points) for verdict in VERDICTS}
    diff = ResultDiff(
        counts,
        points=tuple((in_utc(p["start"]), p["was"], p["is"]) for p in points if p["start"]),
        measure=measure,
    )
    return replace(diff, changes=_first_changes(compared)) if diff.differs else diff


def _first_changes(compared: DataFrame) -> tuple[ResultChange, ...]:
    differing = compared.where(F.col("verdict") != UNCHANGED).orderBy("start", "id")
    columns = ("verdict", F.unix_millis("start").alias("start"), "old", "new")
    return tuple(
        ResultChange(
            row["verdict"],
            None if row["start"] is None else in_utc(row["start"]),
            _row(row["old"]),
            _row(row["new"]),
        )
        for row in differing.limit(MOST_CHANGES).select(*columns).collect()
    )


def only_changed(new: DataFrame, compared: DataFrame, shape: Shape) -> DataFrame:
    """Those of the new rows that the output does not hold as they are."""
    wanted = compared.where(F.col("verdict").isin(CHANGED, NEW)).select(F.col("id").alias(_ID))
    return _identified(new, shape).join(wanted, _ID, "left_semi").drop(_ID, _JSON)


def find_measure(rows: DataFrame, shape: Shape) -> str:
    """The column that a picture shows: the first number that does not name the row, or `rows`."""
    named = {column.strip("`") for column in shape.identity}
    return next(
        (
            f.name
            for f in rows.schema
            if isinstance(f.dataType, NumericType) and f.name not in named
        ),
        "",
    )


def _side(rows: DataFrame, shape: Shape, side: str) -> DataFrame:
    measure = find_measure(rows, shape)
    start = F.lit(None) if shape.start is None else F.expr(shape.start)
    return _identified(rows, shape).select(
        F.col(_ID).alias("id"),
        start.cast("timestamp").alias(f"start_{side}"),
        F.col(_JSON).alias(side),
        (_quoted(measure).cast("double") if measure else F.lit(1.0)).alias(f"measure_{side}"),
    )


def _identified(rows: DataFrame, shape: Shape) -> DataFrame:
    """Rows with what names them; where nothing does, the row itself and which copy it is."""
    rows = rows.withColumn(_JSON, result_rows.to_json(*map(_quoted, rows.columns)))
    if shape.identity:
        return rows.withColumn(_ID, _identity(shape))
    return rows.withColumn(_ID, F.concat(_copy(), F.lit(" "), _JSON))


def _latest(held: DataFrame, new: DataFrame, shape: Shape) -> DataFrame:
    """Of an output that keeps every version of a row (a topic, files): the last of each."""
    if result_rows.ORDER not in held.columns:
        return held
    columns = [_quoted(name) for name in held.columns if name != result_rows.ORDER]
    if shape.identity:
        last = F.max_by(F.struct(*columns), result_rows.ORDER).alias("row")
        return held.groupBy(_identity(shape)).agg(last).select("row.*")
    # more copies of a row than it should have are replays of it, not rows that are gone
    due = new.groupBy(result_rows.to_json(*map(_quoted, new.columns)).alias(_JSON)).agg(
        F.count(F.lit(1)).alias(_DUE)
    )
    return (
        held.withColumn(_JSON, result_rows.to_json(*columns))
        .withColumn(_COPY, _copy())
        .join(due, _JSON, "left_outer")
        .where(F.col(_COPY) <= F.coalesce(_DUE, F.lit(1)))
        .select(*columns)
    )


def _copy() -> Column:
    """Which of several equal rows this is."""
    return F.row_number().over(Window.partitionBy(_JSON).orderBy(_JSON))


def _identity(shape: Shape) -> Column:
    return result_rows.to_json(
        *(F.expr(column).alias(f"c{n}") for n, column in enumerate(shape.identity))
    )


def _quoted(name: str) -> Column:
    return F.col(f"`{name}`")


def _row(text: str | None) -> dict[str, Any] | None:
    return None if text is None else dict(json.loads(text))
