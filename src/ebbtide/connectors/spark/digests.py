"""Add a digest of each batch's result rows, whatever their order, to the batch's progress.

It is computed in the pass that writes the rows: their number and the sum of their hashes, of 32
bits each, so that no batch has enough rows to make it overflow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, types
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from ebbtide.connectors.progress import DIGEST
from ebbtide.connectors.spark.rows import EXACT, each_of, quote_column, walk_plan
from ebbtide.errors import UsageError

HASH = "_ebbtide_hash"
"""The column of each row's hash."""
_BITS = 32
"""How many bits of a hash are summed up: a sum that overflows would fail the batch."""
_NAMES = (
    *("Binary", "Boolean", "Char", "Date", "DayTimeInterval", "Null", "Numeric", "String", "Time"),
    *("TimestampNTZ", "Timestamp", "Varchar", "Variant", "YearMonthInterval"),
)
_HASHED = tuple(vars(types)[f"{name}Type"] for name in _NAMES if f"{name}Type" in vars(types))
"""The types that have a hash; others, such as shapes on a map, have none in Spark 4.2, and an older
Spark lacks some of them."""
_KEEPS_ROWS = (
    *("CollectMetrics", "EventTimeWatermark", "SubqueryAlias"),
    *("Repartition", "RepartitionByExpression"),
)
"""Nodes of a plan that pass all rows on as they are."""


def with_hash(rows: DataFrame) -> DataFrame:
    """The rows, and the hash of each in one more column; without it if they cannot be hashed."""
    if not rows.columns or not _can_be_hashed(rows.schema):
        return rows
    columns = [
        part for f in rows.schema for part in _parts(F.col(quote_column(f.name)), f.dataType)
    ]
    shape = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in rows.schema)
    seed = int.from_bytes(hashlib.sha256(shape.encode()).digest()[:8], "big", signed=True)
    # the hash passes over nulls: without the last part (null, 1) would be (1, null)
    nulls = (column.isNull() for column in columns)
    hashed = F.xxhash64(F.lit(seed), *columns, *nulls)
    return rows.withColumn(HASH, F.shiftright(hashed, _BITS))


def observe_output(hashed: DataFrame, metrics: str | Observation = DIGEST) -> DataFrame:
    """Rows `with_hash` as they are, their digest in each batch's progress, for `read_output`.

    The hash is a column because what is summed up goes to every task and back, each time in full.
    """
    if HASH not in hashed.columns:
        return hashed
    return hashed.observe(metrics, F.count(F.lit(1)).alias("rows"), F.sum(HASH).alias("sum"))


def is_observed(rows: DataFrame) -> bool:
    """Whether these very rows are observed by `observe_output`.

    Raises if it is rows from which these are made: their digest does not tell what is written.
    """
    nodes = list(walk_plan(rows._jdf.queryExecution().analyzed()))
    if not any(map(_is_digest, nodes)):
        return False
    while _kind(nodes[0]) in _KEEPS_ROWS and not _is_digest(nodes[0]):
        nodes.pop(0)
    top, below = nodes[:2]
    if _is_digest(top) or (_is_digest(below) and _drops_hash(top, below)):
        return True
    raise UsageError(
        "The rows are changed after ebbtide.observe, so the digest is not that of what is written.",
        "Put ebbtide.observe around what is written.",
    )


def _is_digest(node: Any) -> bool:
    return _kind(node) == "CollectMetrics" and str(node.name()) == DIGEST


def _drops_hash(top: Any, below: Any) -> bool:
    """Whether a node passes all columns on but the hash."""
    kept, all_of = top.output(), below.output()
    names = [str(column.name()) for column in each_of(all_of) if str(column.name()) != HASH]
    plain = all(any(one.semanticEquals(each) for each in each_of(all_of)) for one in each_of(kept))
    return plain and [str(column.name()) for column in each_of(kept)] == names


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _can_be_hashed(kind: DataType) -> bool:
    """Whether all in it is known to be; two fields of one name cannot be told apart."""
    match kind:
        case StructType():
            names = {name.lower() for name in kind.names}
            return len(names) == len(kind) and all(_can_be_hashed(f.dataType) for f in kind)
        case ArrayType():
            return _can_be_hashed(kind.elementType)
        case MapType():
            return _can_be_hashed(kind.keyType) and _can_be_hashed(kind.valueType)
        case _:
            return isinstance(kind, _HASHED)


def _parts(column: Column, kind: DataType) -> Iterator[Column]:
    """The parts of a column that can be hashed: a struct and its fields; a list or map as text."""
    if isinstance(kind, StructType):
        yield column.isNull()
        for field in kind:
            yield from _parts(column.getField(field.name), field.dataType)
    elif isinstance(kind, MapType):
        # the order of its entries does not count
        entries = F.transform(F.map_entries(column), lambda entry: F.to_json(entry, EXACT))
        yield F.to_json(F.array_sort(entries))
    elif not isinstance(kind, ArrayType) and kind.typeName() != "variant":
        yield column
    else:
        yield F.when(column.isNotNull(), F.to_json(F.struct(column.alias("of")), EXACT))
