"""Decode a whole Arrow batch of JSON records at once, and tell which rows are proven exact.

A row is proven if it is what Spark's `from_json` gives for a good record. Whatever is not proven,
such as an odd number, a time in an unusual form or a broken record, is left to Spark itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.json as pj  # type: ignore[import-untyped]

from ebbtide.connectors.spark.arrow_times import parse_times

Mask = npt.NDArray[np.bool_]

KINDS = {
    "string": pa.string(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.string(),
}
"""Spark's types that can be proven, and what Arrow reads them as."""

_OPEN, _CLOSE = b"{}"
_SHORT, _LONG = 1_000, 50_000
"""Jackson refuses more than 1,000 nested values, numbers with more than 1,000 digits and names with
more than 50,000 characters. A record that is shorter than that has none of them."""
_LONG_NUMBER = r"[-+.0-9eE]{900}"
_NOT_A_NUMBER = r"[:,\[\s-](?:NaN|Inf)"
"""Arrow accepts some that Jackson does not."""
_ROW = re.compile(r" in row (\d+)$")
_FEWEST, _MOST_READS = 16, 200
"""Where one record fails, all that are read with it do. What lies before and after it is read again
if Arrow says where it is; else both halves, down to so few rows. And so many times a batch."""


@dataclass(frozen=True)
class ParsedRecords:
    """A row for each record; where it is not proven, the row says nothing."""

    columns: list[Any]
    """Arrow arrays, in the order of the fields; times in microseconds."""
    proven: Mask


@dataclass(frozen=True)
class ArrowJson:
    """The fields to read from each JSON object, with Spark's names of their types."""

    fields: tuple[tuple[str, str], ...]
    event_time: str
    is_utc: bool
    """Whether a time without a zone is in UTC; else such times are not proven."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns of `parse_batches` besides `value`, each with its type in Spark."""
        kinds = ("bigint" if kind == "timestamp" else kind for _, kind in self.fields)
        return {f"_ebbtide_{number}": kind for number, kind in enumerate(kinds)}

    def is_time(self, name: str) -> bool:
        """Whether a field is a time, which `parse_batches` has in microseconds."""
        return (name, "timestamp") in self.fields

    def parse_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """For `mapInArrow`: batches of `value` become `columns`, and `value` if not proven."""
        for batch in batches:
            (values,) = batch.columns
            parsed = self.parse(values)
            doubtful = pa.nulls(len(values), pa.binary())
            columns = parsed.columns
            if not parsed.proven.all():
                proven = pa.array(parsed.proven)
                doubtful = pc.if_else(proven, doubtful, values)
                columns = [pc.if_else(proven, column, None) for column in columns]
            yield pa.RecordBatch.from_arrays([*columns, doubtful], [*self.columns, "value"])

    def parse(self, values: Any) -> ParsedRecords:
        """The rows of an Arrow array of binary values."""
        plain = np.flatnonzero(_find_plain(values))
        all_plain = len(plain) == len(values)
        texts = values if all_plain else values.take(pa.array(plain))
        parts, read = [], np.zeros(len(texts), np.bool_)
        for first, table in self._read(texts):
            parts.append(table)
            read[first : first + table.num_rows] = True
        whole = pa.concat_tables(parts) if parts else self._schema.empty_table()
        proven = np.zeros(len(values), np.bool_)
        proven[plain[read]] = True
        columns = [column.combine_chunks() for column in whole.columns]
        if not proven.all():
            # a missing row takes any; there may be none to take
            rows = np.cumsum(proven) - 1
            places = pa.array(rows, mask=~proven)
            columns = [column.take(places) for column in columns]
        return self._convert(columns, proven)

    @property
    def _schema(self) -> Any:
        return pa.schema([(name, KINDS[kind]) for name, kind in self.fields])

    def _read(self, texts: Any) -> Iterator[tuple[int, Any]]:
        """Tables of consecutive records, each with the position of its first, in order."""
        todo, reads = [(0, len(texts))], 0
        while todo:
            first, end = todo.pop()
            if first == end or reads == _MOST_READS:
                continue
            reads += 1
            try:
                yield first, self._read_all(texts.slice(first, end - first))
            except pa.ArrowInvalid as error:
                if row := _ROW.search(str(error)):
                    bad = min(first + int(row[1]), end - 1)
                    todo += [(bad + 1, end), (first, bad)]
                elif end - first > _FEWEST:
                    middle = (first + end) // 2
                    todo += [(middle, end), (first, middle)]

    def _read_all(self, texts: Any) -> Any:
        """The records as a table; raises if not each is one object that Arrow can read.

        Each begins with `{` and ends with `}`. A line break, which no string may hold, separates
        them, and nothing that is still open can go on with `{` after `}`. So no object reaches from
        one record into the next, and as many objects as records means one in each.
        """
        texts.cast(pa.string())  # raises if it is not valid UTF-8
        ends = pa.array([0, len(texts)], pa.int32())
        lines = pc.binary_join(pa.ListArray.from_arrays(ends, texts), b"\n")[0].as_buffer()
        table = pj.read_json(
            pa.BufferReader(lines),
            pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
            pj.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(texts):
            raise pa.ArrowInvalid(f"{table.num_rows} objects in {len(texts)} records")
        return table

    def _convert(self, columns: list[Any], proven: Mask) -> ParsedRecords:
        for number, (name, kind) in enumerate(self.fields):
            column = columns[number]
            if kind == "timestamp":
                micros, exact = parse_times(column, is_utc=self.is_utc)
                proven &= exact
                if name == self.event_time:
                    proven &= micros.is_valid().to_numpy(zero_copy_only=False)
                columns[number] = micros
            elif kind == "double":
                # an integer -0 is 0 for Spark
                plain = pc.and_(pc.is_finite(column), pc.not_equal(column, 0.0))
                proven &= pc.fill_null(plain, True).to_numpy(zero_copy_only=False)
        return ParsedRecords(columns, proven)


def _find_plain(values: Any) -> Mask:
    """The values that begin and end as an object does, and hold nothing that only Arrow accepts."""
    count = len(values)
    plain = np.zeros(count, np.bool_)
    if values.null_count == count:
        return plain
    _, ends, data = values.buffers()
    ends_ = np.frombuffer(ends, np.int32)[values.offset : values.offset + count + 1]
    bytes_ = np.frombuffer(data, np.uint8)
    sizes = np.diff(ends_)
    full = np.flatnonzero((sizes > 1) & (sizes < _LONG))
    first, last = bytes_[ends_[:-1][full]], bytes_[ends_[1:][full] - 1]
    plain[full[(first == _OPEN) & (last == _CLOSE)]] = True
    if values.null_count:
        plain &= values.is_valid().to_numpy(zero_copy_only=False)
    used = bytes_[ends_[0] : ends_[-1]].tobytes()
    # a single character is found by far the fastest
    if (b"N" in used and b"NaN" in used) or (b"I" in used and b"Inf" in used):
        plain &= ~_matches(values, _NOT_A_NUMBER)
    if len(large := np.flatnonzero(plain & (sizes >= _SHORT))):
        chosen = values.take(pa.array(large))
        nested = pc.add(pc.count_substring(chosen, "{"), pc.count_substring(chosen, "["))
        deep = pc.greater_equal(nested, _SHORT).to_numpy(zero_copy_only=False)
        plain[large[deep | _matches(chosen, _LONG_NUMBER)]] = False
    return plain


def _matches(values: Any, pattern: str) -> Mask:
    found = pc.fill_null(pc.match_substring_regex(values, pattern), False)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
