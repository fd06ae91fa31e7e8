"""Write the rows of one hour as a Parquet file, and describe it as Delta's log does."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbtide.archive.layout import DAY, HOUR
from ebbtide.times import EPOCH

_TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema(
    {
        "event_time": _TIME,
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": _TIME,
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(
            pa.field("element", pa.struct({"key": pa.string(), "value": pa.binary()}))
        ),
    }
)
"""The columns of a row in memory; the topic is the same for all."""
_STATISTICS = ("event_time", "partition", "offset", "timestamp")
"""The columns of `delta.dataSkippingStatsColumns`."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_DAY_HOURS = 24


@dataclass(frozen=True)
class HourFiles:
    """Where the files of an archive are written, by the tasks of a batch."""

    folder: str
    topic: str
    spark: str
    """The version of Spark: it says that days before 1582 are those of the calendar of today."""

    def write(self, hour: int | None, batches: Iterable[pa.RecordBatch]) -> str:
        """A new file with the rows of one hour since 1970; returns its `add` for Delta's log."""
        rows = pa.Table.from_batches(batches, ROWS)
        values = partition_of(hour)
        folders = "/".join(f"{name}={value or _NO_VALUE}" for name, value in values.items())
        name = f"{folders}/part-{uuid.uuid4()}.zstd.parquet"
        path = Path(self.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            self._complete(rows, values),
            path,
            compression="zstd",
            compression_level=1,
            use_dictionary=["topic", "partition", "timestamp", "key", DAY, HOUR],
            write_statistics=["topic", *_STATISTICS],
            store_schema=False,
        )
        status = path.stat()
        added = {
            "path": name,
            "partitionValues": values,
            "size": status.st_size,
            "modificationTime": time.time_ns() // 1_000_000,
            "dataChange": True,
            "stats": json.dumps(_statistics(rows), separators=(",", ":")),
        }
        return json.dumps({"add": added})

    def _complete(self, rows: pa.Table, values: Mapping[str, str | None]) -> pa.Table:
        """The rows with the columns of one value; Delta's own writer has them in the file, too."""
        count = rows.num_rows
        table = rows.add_column(1, "topic", _repeat(pa.scalar(self.topic), count))
        for name, kind in ((DAY, pa.date32()), (HOUR, pa.int32())):
            table = table.append_column(name, _repeat(_to_scalar(values[name], kind), count))
        return table.replace_schema_metadata({"org.apache.spark.version": self.spark})


def _repeat(value: Any, count: int) -> Any:
    if not value.is_valid or pa.types.is_primitive(value.type):
        return pa.repeat(value, count)
    numbers = pa.repeat(pa.scalar(0, pa.int8()), count)
    return pa.DictionaryArray.from_arrays(numbers, pa.array([value.as_py()], value.type))


def _to_scalar(text: str | None, kind: Any) -> Any:
    return pa.scalar(text, pa.string()).cast(kind)


def partition_of(hour: int | None) -> dict[str, str | None]:
    """The values of the partition columns as text.

    >>> partition_of(31), partition_of(-1)["event_hour"]
    ({'event_day': '1970-01-02', 'event_hour': '7'}, '23')
    """
    if hour is None:
        return {DAY: None, HOUR: None}
    day, of_day = divmod(hour, _DAY_HOURS)
    return {DAY: (EPOCH + timedelta(days=day)).date().isoformat(), HOUR: str(of_day)}


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """What a reader skips the file by; times to the millisecond, as Delta has them."""
    least, most, nulls = {}, {}, {}
    for name in _STATISTICS:
        column = rows.column(name)
        nulls[name] = column.null_count
        if nulls[name] < rows.num_rows:
            ends = pc.min_max(_as_number(column)).as_py()
            # a producer may write any timestamp; what has no min and max is never skipped
            with suppress(OverflowError):
                least[name], most[name] = (
                    _to_json(column.type, ends[end]) for end in ("min", "max")
                )
    counted = {"numRecords": rows.num_rows}
    return {**counted, "minValues": least, "maxValues": most, "nullCount": nulls}


def _as_number(column: Any) -> Any:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _to_json(kind: Any, value: int) -> int | str:
    if not pa.types.is_timestamp(kind):
        return value
    at: datetime = EPOCH + timedelta(microseconds=value)
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
