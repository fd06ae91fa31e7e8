"""The state of our own early writer in, a row for each open visit out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StructField, StructType

from ebbtide.systems.early_writer.adapter import NO_ID
from ebbtide.systems.early_writer.state import decode


def are_visits(rows: DataFrame) -> bool:
    """Whether a state's values are visits, kept by the bucket as bytes."""
    value = rows.schema["value"].dataType
    kept = StructType([StructField("visits", BinaryType())])
    return isinstance(value, StructType) and any(
        field.name == "groupState" and field.dataType == kept for field in value
    )


def decode_visits(rows: DataFrame) -> DataFrame:
    """Buckets taken apart: the key is a visit's id, the value its pages and when it ends."""
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
            columns = [visits.ids, visits.pages, visits.timers, [partition] * len(visits)]
            kinds = (pa.int64(), pa.int64(), pa.int64(), pa.int32())
            arrays = [pa.array(c, k) for c, k in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, ["id", "pages", "timer", "partition"])
