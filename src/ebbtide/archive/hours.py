"""Sort records into hours of event time in the tasks of a batch, and write a file for each hour.

Two steps, with Spark's shuffle between them: `split` packs the rows of each hour into chunks, and
`write` gets all chunks of an hour and writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from ebbtide.archive.files import ROWS, HourFiles
from ebbtide.archive.layout import PACKED

Longs = npt.NDArray[np.int64]

_HOUR_MICROS = 3_600_000_000
_MEMORY = 128 * 1024 * 1024
"""Of rows that a task holds; as one file, they take about a sixth."""
_LARGE = _MEMORY // 2
"""An hour of which a task has so much is written at once."""
_CHUNK = 8 * 1024 * 1024
_NO_HOUR = -(2**62)


@dataclass
class HourBuffers:
    """Rows in memory by hour."""

    bytes: int = 0
    _rows: dict[int, list[Any]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)

    def add(self, hour: int, rows: Any) -> None:
        """Keep rows of an hour."""
        self._rows.setdefault(hour, []).append(rows)
        self._sizes[hour] = self._sizes.get(hour, 0) + rows.nbytes
        self.bytes += rows.nbytes

    def pop_largest(self, keep_bytes: int) -> Iterator[tuple[int, int, list[Any]]]:
        """The hours that take most memory, how much, and their rows, which are no longer kept.

        Those that stay take at most so many bytes. There may be as many hours as records.
        """
        for hour in sorted(self._sizes, key=self._sizes.__getitem__, reverse=True):
            if self.bytes <= keep_bytes:
                return
            size = self._sizes.pop(hour)
            self.bytes -= size
            yield hour, size, self._rows.pop(hour)


@dataclass(frozen=True)
class HourSteps:
    """The two steps, for `mapInArrow`."""

    files: HourFiles

    @classmethod
    def of(cls, folder: str, topic: str, spark: str) -> HourSteps:
        """The steps for a table in a folder, written with a version of Spark."""
        return cls(HourFiles(folder, topic, spark))

    def split(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Rows with the columns PACKED for those with the columns RAW."""
        buffers = HourBuffers()
        for batch in batches:
            for hour, part in _split(_to_hours(batch), _to_rows(batch)):
                buffers.add(hour, part)
            if buffers.bytes > _MEMORY:
                for largest in buffers.pop_largest(keep_bytes=_MEMORY):
                    yield from self._flush(*largest)
        for rest in buffers.pop_largest(keep_bytes=-1):
            yield from self._flush(*rest)

    def _flush(self, hour: int, size: int, rows: list[Any]) -> Iterator[Any]:
        if size >= _LARGE:
            yield _pack(hour, added=self._write_file(hour, rows))
            return
        for batch in pa.Table.from_batches(rows, ROWS).combine_chunks().to_batches():
            count = max(1, batch.num_rows * _CHUNK // max(1, batch.nbytes))
            for first in range(0, batch.num_rows, count):
                yield _pack(hour, chunk=_to_chunk(batch.slice(first, count)))

    def write(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The column `added` for rows with the columns PACKED, sorted by `hour`."""
        hour, size, rows = _NO_HOUR, 0, list[Any]()
        for batch in batches:
            hours = batch.column("hour").fill_null(_NO_HOUR).to_numpy()
            for following, part in _split(hours, batch):
                if following != hour:
                    yield from self._write(hour, rows)
                    hour, size, rows = following, 0, []
                if added := part.column("added").drop_null().to_pylist():
                    yield pa.record_batch({"added": added})
                for piece in _unpack(part):
                    rows.append(piece)
                    size += piece.nbytes
                    if size >= _MEMORY:
                        yield from self._write(hour, rows)
                        size, rows = 0, []
        yield from self._write(hour, rows)

    def _write(self, hour: int, rows: list[Any]) -> Iterator[Any]:
        if any(batch.num_rows for batch in rows):
            yield pa.record_batch({"added": [self._write_file(hour, rows)]})

    def _write_file(self, hour: int, rows: list[Any]) -> str:
        return self.files.write(None if hour == _NO_HOUR else hour, rows)


def _to_hours(batch: Any) -> Longs:
    times = batch.column("event_time")
    hours = times.fill_null(0).to_numpy() // _HOUR_MICROS
    if times.null_count:
        hours = np.where(times.is_valid().to_numpy(zero_copy_only=False), hours, _NO_HOUR)
    return np.asarray(hours, np.int64)


def _to_rows(batch: Any) -> Any:
    columns = [batch.column(name).cast(ROWS.field(name).type) for name in ROWS.names[:-1]]
    return pa.record_batch([*columns, _to_headers(batch)], ROWS)


def _to_headers(batch: Any) -> Any:
    """The headers of each record as a list of pairs; null without any, as in Kafka."""
    keys, values = batch.column("header_keys"), batch.column("header_values")
    kind = ROWS.field("headers").type
    pairs = pa.StructArray.from_arrays(
        [keys.flatten(), values.flatten()], fields=list(kind.value_type)
    )
    if not len(pairs):
        return pa.nulls(len(keys), kind)
    sizes = pc.list_value_length(keys)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes)])
    lists = pa.ListArray.from_arrays(ends, pairs, type=kind)
    return pc.if_else(pc.equal(sizes, 0), None, lists)


def _split(hours: Longs, rows: Any) -> Iterator[tuple[int, Any]]:
    """The rows of each hour, in order of hours, as copies: a part would keep all in memory."""
    if not len(hours):
        return
    if (hours == hours[0]).all():
        yield int(hours[0]), rows
        return
    order = np.argsort(hours, kind="stable")
    hours = hours[order]
    for first, end in pairwise([0, *(np.flatnonzero(np.diff(hours)) + 1).tolist(), len(hours)]):
        yield int(hours[first]), rows.take(pa.array(order[first:end]))


def _pack(hour: int, chunk: Any = None, added: str | None = None) -> Any:
    """One row with a chunk or a file of an hour."""
    hours = pa.array([None if hour == _NO_HOUR else hour], pa.int64())
    return pa.record_batch([hours, _one_value(chunk), pa.array([added], pa.string())], [*PACKED])


def _one_value(chunk: Any | None) -> Any:
    """A column with one value, which is not copied."""
    if chunk is None:
        return pa.nulls(1, pa.binary())
    ends = pa.py_buffer(np.array([0, chunk.size], np.int32).tobytes())
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, chunk])


def _to_chunk(batch: Any) -> Any:
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, ROWS, options=options) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _unpack(part: Any) -> Iterator[Any]:
    """The rows in the chunks of a part of an hour."""
    for chunk in part.column("chunk").drop_null():
        yield from pa.ipc.open_stream(chunk.as_buffer())
