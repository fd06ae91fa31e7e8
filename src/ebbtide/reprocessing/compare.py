"""Compare new results with what the output holds (step 6 of a reprocess)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import NumericType

from ebbtide.connectors import streams
from ebbtide.connectors.spark import rows as result_rows
from ebbtide.reprocessing import diff
from ebbtide.reprocessing.ranges import EventTimeRange, Shape
from ebbtide.times import in_utc

_ID, _JSON = "_ebbtide_id", "_ebbtide_json"
_COPY, _DUE = "_ebbtide_copy", "_ebbtide_due"


def belongs(shape: Shape, owns: EventTimeRange, *, first: bool = True) -> Column:
    """Whether a result row begins in a range; sessions that reach into it belong to the `first`."""
    if shape.start is None:
        return F.lit(True)
    start, end = F.expr(shape.start), F.lit(owns.end)
    if shape.kind == "session" and first:
        assert shape.end is not None
        return (F.expr(shape.end) > F.lit(owns.start)) & (start < end)
    return (start >= F.lit(owns.start)) & (start < end)


def reaches_into(held: DataFrame, new: DataFrame, shape: Shape, outside: Column) -> DataFrame:
    """Held sessions outside of the range that a new session overlaps."""
    assert shape.start is not None
    assert shape.end is not None
    start, end = F.expr(shape.start), F.expr(shape.end)
    keys = F.struct(
        F.lit(0), *(F.expr(column) for column in shape.identity if column != shape.start)
    )
    other = new.select(keys.alias(_ID), start.alias("_ebbtide_start"), end.alias("_ebbtide_end"))
    overlaps = (start < F.col("_ebbtide_end")) & (end > F.col("_ebbtide_start"))
    same = keys.eqNullSafe(F.col(_ID))
    return held.where(outside).join(other, same & overlaps, "left_semi")


def replaced_range(shape: Shape, owned: EventTimeRange) -> streams.ReplacedRange:
    """The part of an output that the new results of a range replace."""
    range_ = streams.ReplacedRange(shape.start, owned.start, owned.end)
    if shape.kind != "session":
        return replace(range_, keeps_additions=shape.kind == "stateless")

    def doomed(held: DataFrame, new: DataFrame) -> DataFrame:
        inside = F.coalesce(belongs(shape, owned), F.lit(False))
        return held.where(inside).unionByName(reaches_into(held, new, shape, ~inside))

    return replace(range_, doomed=doomed)


def compare_rows(new: DataFrame, held: DataFrame, shape: Shape) -> DataFrame:
    """A row for each result, with its verdict: `id`, `start`, `old`, `new` (JSON), `verdict`.

    If results do not tell when they begin, those that are gone cannot be found.
    """
    how = "full_outer" if shape.start is not None else "left_outer"
    held = _side(_latest(held, new, shape), shape, "old")
    verdict = (
        F.when(F.col("old").isNull(), diff.NEW)
        .when(F.col("new").isNull(), diff.GONE)
        .when(F.col("old") == F.col("new"), diff.UNCHANGED)
        .otherwise(diff.CHANGED)
    )
    return (
        _side(new, shape, "new")
        .join(held, "id", how)
        .select(
            "id",
            F.coalesce("start_new", "start_old").alias("start"),
            *("old", "new", "measure_old", "measure_new"),
            verdict.alias("verdict"),
        )
    )


def summarize_results(compared: DataFrame, measure: str, bucket: timedelta) -> diff.ResultDiff:
    """Counts by verdict, the first changes, and the points of the plot, one per bucket of time."""
    # as numbers: Spark converts times to this process's zone
    millis, width = F.unix_millis("start"), max(1, bucket // timedelta(milliseconds=1))
    points = (
        compared.groupBy((millis - F.pmod(millis, F.lit(width))).alias("start"))
        .agg(
            F.sum("measure_old").alias("was"),
            F.sum("measure_new").alias("is"),
            *(F.count_if(F.col("verdict") == verdict).alias(verdict) for verdict in diff.VERDICTS),
        )
        .orderBy("start")
        .collect()
    )
    result = diff.ResultDiff(
        {verdict: sum(point[verdict] for point in points) for verdict in diff.VERDICTS},
        points=tuple((in_utc(p["start"]), p["was"], p["is"]) for p in points if p["start"]),
        measure=measure,
    )
    return replace(result, changes=_first_changes(compared)) if result.differs else result


def _first_changes(compared: DataFrame) -> tuple[diff.ResultChange, ...]:
    differing = compared.where(F.col("verdict") != diff.UNCHANGED).orderBy("start", "id")
    columns = ("verdict", F.unix_millis("start"), "old", "new")
    return tuple(
        diff.ResultChange(
            verdict,
            None if start is None else in_utc(start),
            *(row and json.loads(row) for row in rows),
        )
        for verdict, start, *rows in differing.limit(diff.MOST_CHANGES).select(*columns).collect()
    )


def only_changed(new: DataFrame, compared: DataFrame, shape: Shape) -> DataFrame:
    """The new rows that the output does not hold in the same form."""
    differs = F.col("verdict").isin(diff.CHANGED, diff.NEW)
    wanted = compared.where(differs).select(F.col("id").alias(_ID))
    return _identified(new, shape).join(wanted, _ID, "left_semi").drop(_ID, _JSON)


def find_measure(rows: DataFrame, shape: Shape) -> str:
    """The column that a plot shows: the first number outside of the identity, or else none."""
    identity = {column.strip("`") for column in shape.identity}
    numbers = (f.name for f in rows.schema if isinstance(f.dataType, NumericType))
    return next((name for name in numbers if name not in identity), "")


def _side(rows: DataFrame, shape: Shape, side: str) -> DataFrame:
    measure = find_measure(rows, shape)
    start = F.lit(None) if shape.start is None else F.expr(shape.start)
    measured = F.col(result_rows.quote_column(measure)).cast("double") if measure else F.lit(1.0)
    return _identified(rows, shape).select(
        F.col(_ID).alias("id"),
        start.cast("timestamp").alias(f"start_{side}"),
        F.col(_JSON).alias(side),
        measured.alias(f"measure_{side}"),
    )


def _identified(rows: DataFrame, shape: Shape) -> DataFrame:
    """Rows with an id: their identity, or else the whole row and the number of its copy."""
    rows = rows.withColumn(_JSON, result_rows.to_json(*map(result_rows.quote_column, rows.columns)))
    if shape.identity:
        return rows.withColumn(_ID, _identity(shape))
    return rows.withColumn(_ID, F.concat(_copy(), F.lit(" "), _JSON))


def _latest(held: DataFrame, new: DataFrame, shape: Shape) -> DataFrame:
    """The last version of each row, of an output that keeps them all (a topic, files)."""
    if result_rows.ORDER not in held.columns:
        return held
    columns = [result_rows.quote_column(name) for name in held.columns if name != result_rows.ORDER]
    if shape.identity:
        last = F.max_by(F.struct(*columns), result_rows.ORDER).alias("row")
        return held.groupBy(_identity(shape)).agg(last).select("row.*")
    # surplus copies of a row are replays of it, not rows that are gone
    as_json = result_rows.to_json(*map(result_rows.quote_column, new.columns)).alias(_JSON)
    due = new.groupBy(as_json).agg(F.count(F.lit(1)).alias(_DUE))
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
