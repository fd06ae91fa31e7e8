"""Assign rows to sessions where the plan of the transform shows none."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.pipeline import Pipeline, Sessions

START, END = "_ebbtide_start", "_ebbtide_end"
_NUMBER, _MS = "_ebbtide_number", "_ebbtide_ms"
_MILLISECOND = timedelta(milliseconds=1)


def with_sessions(rows: DataFrame, pipeline: Pipeline, sessions: Sessions) -> DataFrame:
    """Rows with the first event time of their session, and the time at which it ends."""
    key, gap_ms = F.col(f"`{sessions.key}`"), sessions.gap // _MILLISECOND
    time = F.col(f"`{pipeline.event_time}`").cast("timestamp")
    in_order = Window.partitionBy(key).orderBy(_MS)
    begins = F.col(_MS) - F.lag(_MS).over(in_order) >= gap_ms
    session = Window.partitionBy(key, _NUMBER)
    return (
        rows.withColumn(_MS, F.unix_millis(time))
        .withColumn("_ebbtide_begins", F.coalesce(begins, F.lit(False)).cast("int"))
        .withColumn(_NUMBER, F.sum("_ebbtide_begins").over(in_order))
        .withColumn(START, F.min(time).over(session))
        .withColumn(END, F.timestamp_millis(F.max(_MS).over(session) + gap_ms))
        .drop(_MS, _NUMBER, "_ebbtide_begins")
    )
