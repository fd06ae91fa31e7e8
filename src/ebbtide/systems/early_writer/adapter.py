"""Run the fold of visits on Spark, as a stream or as a batch.

Spark's state costs a few round trips to Python for each key and batch. So the key is not the visit
but one of a few buckets of visits: the open visits of a bucket are one value of the state, and the
earliest of their timers is the bucket's timer (ADR 010).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import IntegralType

from ebbtide.errors import UsageError
from ebbtide.systems.early_writer.fold import NO_VISITS, Longs, OpenVisits, expire, fold, fold_range
from ebbtide.systems.early_writer.state import decode, encode

BUCKETS = 64
"""Do not change: the visits in existing checkpoints lie in this number of buckets."""
NO_ID = -(2**63)
"""Stands for a missing visit id: such events are one visit, as Spark would group them."""
_REPORT = "id BIGINT, visited_pages INT, is_finished BOOLEAN"
_PACKED = "ids ARRAY<BIGINT>, pages ARRAY<INT>, is_finished BOOLEAN"
"""The reports of a bucket in one row, as Spark turns each row that Python returns into objects."""
_STATE = "visits BINARY"


def report_visits(events: DataFrame, key: str, event_time: str) -> DataFrame:
    """The pages of each visit so far, and again when it ends: `key`, pages, `is_finished`.

    Over a range, which is complete, only the final report of each visit.
    """
    kind = events.schema[key].dataType
    if not isinstance(kind, IntegralType):
        raise UsageError(
            f"Visits are identified by {key}, which is {kind.simpleString().upper()}.",
            "Make it an INT or a BIGINT, with F.xxhash64 if need be.",
        )
    id_ = F.col(f"`{key}`").cast("bigint")
    # as a number: Python would get a timestamp as pandas', which has no year 2263
    time = F.unix_micros(F.col(f"`{event_time}`").cast("timestamp"))
    buckets = events.select(
        F.pmod(F.xxhash64(id_), F.lit(BUCKETS)).cast("int").alias("bucket"),
        F.coalesce(id_, F.lit(NO_ID)).alias("id"),
        # Spark drops late events by the column with this mark, by its microseconds
        time.alias("time", metadata=events.schema[event_time].metadata),
    ).groupBy("bucket")
    if events.isStreaming:
        packed = buckets.applyInPandasWithState(
            _follow, _PACKED, _STATE, "update", GroupStateTimeout.EventTimeTimeout
        )
        reports = packed.select(F.posexplode("ids").alias("at", "id"), "pages", "is_finished")
        pages = F.col("pages")[F.col("at")].alias("visited_pages")
    else:
        reports = buckets.applyInPandas(_look_back, _REPORT)
        pages = F.col("visited_pages")
    back = F.when(F.col("id") != NO_ID, F.col("id")).cast(kind).alias(key)
    return reports.select(back, pages, "is_finished")


def read_open_visits(spark: SparkSession, checkpoint: str, batch: int | None = None) -> OpenVisits:
    """The visits that were open after a batch (default: the last), by Spark's state reader."""
    _ = spark.streams.active  # starts the coordinator of state stores, which only streams start
    reader = spark.read.format("statestore")
    if batch is not None:
        reader = reader.option("batchId", batch)
    rows = reader.load(checkpoint).select("value.groupState.visits").collect()
    buckets = [decode(bytes(row["visits"])).by_id() for row in rows if row["visits"]]
    return OpenVisits.of({id_: visit for bucket in buckets for id_, visit in bucket.items()})


def _follow(
    _bucket: Any, frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Process the events and timers of one bucket in a batch."""
    visits = decode(bytes(state.get[0])) if state.exists else NO_VISITS
    watermark = state.getCurrentWatermarkMs()
    if not state.hasTimedOut:
        visits, touched = fold(visits, *_columns(frames), watermark)
        yield _pack(touched, finished=False)
    visits, ended = expire(visits, watermark)
    if len(ended):
        yield _pack(ended, finished=True)
    if len(visits):
        state.update((encode(visits),))
        # Spark waits until the watermark is past a time, our timers fire at it; and 0 is invalid
        state.setTimeoutTimestamp(max(1, int(visits.timers.min()) - 1))
    else:
        state.remove()


def _look_back(frame: pd.DataFrame) -> pd.DataFrame:
    """Process one bucket of a range."""
    ended = fold_range(*_columns([frame]))
    columns = {"id": ended.ids, "visited_pages": ended.pages.astype(np.int32)}
    return pd.DataFrame({**columns, "is_finished": np.ones(len(ended), np.bool_)})


def _columns(frames: Iterable[pd.DataFrame]) -> tuple[Longs, Longs]:
    """The ids of events, and their times in milliseconds."""
    parts = list(frames)
    ids, times = (
        np.concatenate([part[name].to_numpy(np.int64) for part in parts]) for name in ("id", "time")
    )
    return ids, times // 1000


def _pack(visits: OpenVisits, *, finished: bool) -> pd.DataFrame:
    columns = {"ids": [visits.ids], "pages": [visits.pages.astype(np.int32)]}
    return pd.DataFrame({**columns, "is_finished": [finished]})
