"""Count the rows that a windowed aggregation drops as late, before it combines them.

Spark drops a row if the end of its window, or the time by which it is grouped, is not after the
watermark of the batch before. It counts the dropped rows only after each task has combined those
of one group. So the rows that go into the aggregation are counted here, from the plan of the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from ebbtide.connectors.progress import LateRecords
from ebbtide.connectors.spark.rows import each_of, to_frame, walk_plan
from ebbtide.times import in_utc

_DELAY = "spark.watermarkDelayMs"
"""Spark's mark on a column with a watermark."""
_ID = "_ebbtide_id"
_STATEFUL = re.compile("Deduplicate|State|Limit")
"""Part of the name of each node that keeps state besides aggregations and joins of two streams."""
_MULTIPLIES = re.compile("Expand|Generate|Join|Map")
"""Part of the name of each node that may make several rows of one."""


@dataclass(frozen=True)
class WatermarkedKey:
    """Which aggregation of a plan has a grouping column with a watermark, and which column."""

    aggregate: int
    column: int


def find_watermarked_key(results: DataFrame) -> WatermarkedKey | None:
    """The key by which a stream's only aggregation of source rows drops late ones.

    None if rows of other batches have a say in what goes into it, or if a row goes two ways.
    """
    keys = [
        WatermarkedKey(number, column)
        for number, aggregate in enumerate(_aggregates(results))
        if all(map(_is_row_by_row, walk_plan(aggregate.child())))
        for column, key in enumerate(each_of(aggregate.groupingExpressions()))
        if key.nodeName() == "AttributeReference" and key.metadata().contains(_DELAY)
    ]
    return keys[0] if len(keys) == 1 else None


def _is_row_by_row(node: Any) -> bool:
    streams = [child for child in each_of(node.children()) if child.isStreaming()]
    stateful = node.nodeName() == "Aggregate" or _STATEFUL.search(node.nodeName())
    return len(streams) < 2 and not (stateful and streams)


def with_id(rows: DataFrame) -> DataFrame:
    """Rows that `count_late` can tell apart where several windows share one."""
    return rows.withColumn(_ID, F.monotonically_increasing_id())


def count_late(
    spark: SparkSession, results: DataFrame, key: WatermarkedKey, watermark_ms: int
) -> LateRecords:
    """The late rows of a batch; `results` is the query over its rows `with_id`, not as a stream.

    A row counts once, however many windows it was too late for. If the query drops the id and may
    make several rows of one, the number is not exact.
    """
    aggregate = list(_aggregates(results))[key.aggregate]
    attribute, child = aggregate.groupingExpressions().apply(key.column), aggregate.child()
    ids = [column for column in each_of(child.output()) if column.name() == _ID][:1]
    jvm: Any = spark._jvm
    project = jvm.org.apache.spark.sql.catalyst.plans.logical.Project(
        jvm.PythonUtils.toSeq([attribute, *ids]), child
    )
    rows = to_frame(spark, project).toDF("time", *(["id"] if ids else []))
    windowed = isinstance(rows.schema["time"].dataType, StructType)
    start, end = (F.col(f"time.{name}" if windowed else "time") for name in ("start", "end"))
    watermark = F.timestamp_micros(F.lit(watermark_ms * 1000).cast("bigint"))
    multiplies = any(_MULTIPLIES.search(node.nodeName()) for node in walk_plan(child))
    counted = F.count_distinct("id") if ids and multiplies else F.count(F.lit(1))
    late = rows.where(end <= watermark)
    found = late.agg(counted, F.unix_micros(F.min(start)), F.unix_micros(F.max(end))).collect()[0]
    exact = bool(ids) or not multiplies
    if found[1] is None:
        return LateRecords(0, exact)
    # up to the next millisecond, so that the range holds all of them
    return LateRecords(found[0], exact, (in_utc(found[1] // 1000), in_utc(-(-found[2] // 1000))))


def _aggregates(results: DataFrame) -> Iterator[Any]:
    plan = results._jdf.queryExecution().analyzed()
    return (node for node in walk_plan(plan) if node.nodeName() == "Aggregate")
