"""Decode the early writer's state: a row for each open visit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StructField, StructType

from ebbtide.state import StateDecoder
from ebbtide.systems.early_writer.adapter import NO_ID
from ebbtide.systems.early_writer.state import decode

_BUCKET = StructType([StructField("visits", BinaryType())])


def _are_visits(rows: DataFrame) -> bool:
    value = rows.schema["value"].dataType
    return isinstance(value, StructType) and any(
        field.name == "groupState" and field.dataType == _BUCKET for field in value
    )


def _decode_visits(rows: DataFrame) -> DataFrame:
    """Split buckets into visits: the key is a visit's id, the value its pages and its end."""
    buckets = rows.select("value.groupState.visits", "partition").where("visits IS NOT NULL")
    visits = buckets.mapInArrow(_decode, "id BIGINT, pages BIGINT, timer BIGINT, partition INT")
    return visits.select(
        F.struct(F.nullif("id", F.lit(NO_ID)).alias("id")).alias("key"),
        F.struct("pages", F.timestamp_millis("timer").alias("ends")).alias("value"),
        "partition",
    )


def _decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for state, partition in zip(*map(pa.Array.to_pylist, batch.columns), strict=True):
            visits = decode(state)
            columns = {"id": visits.ids, "pages": visits.pages, "timer": visits.timers}
            partitions = np.full(len(visits), partition, np.int32)
            yield pa.RecordBatch.from_pydict({**columns, "partition": partitions})


DECODER = StateDecoder(_are_visits, _decode_visits)
