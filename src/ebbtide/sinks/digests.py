"""Result rows in, a digest of them in each batch's progress out, whatever the order of the rows.

It is counted in the pass in which the rows are written: how many there are, and the sums of the two
halves of each row's hash, which no number of rows that a batch can have makes overflow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import AtomicType, DataType, NullType, StructType, VariantType

from ebbtide.checkpoint.history import Output

DIGEST = "ebbtide-output"
"""The name under which a batch's progress carries the digest."""
_HALF = 32
_EXACT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


def observe_output(rows: DataFrame, metrics: str | Observation = DIGEST) -> DataFrame:
    """The rows as they are, their digest in each batch's progress; `output_of` reads it there."""
    names = [name.lower() for name in rows.columns]
    if not names or len(set(names)) < len(names):
        return rows  # two columns of one name cannot be told apart
    columns = [part for f in rows.schema for part in _parts(F.col(_quoted(f.name)), f.dataType)]
    # the hash passes over nulls: without the second half (null, 1) would be (1, null)
    hashed = F.xxhash64(*columns, *(column.isNull() for column in columns))
    shape = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in rows.schema)
    return rows.observe(
        metrics,
        F.count(F.lit(1)).alias("rows"),
        F.sum(hashed.bitwiseAND(F.lit((1 << _HALF) - 1))).alias("low"),
        F.sum(F.shiftrightunsigned(hashed, _HALF)).alias("high"),
        F.lit(hashlib.sha256(shape.encode()).hexdigest()[:16]).alias("columns"),
    )


def output_of(progress: Mapping[str, Any]) -> Output | None:
    """What a batch wrote; None if its progress does not say.

    >>> output_of({"observedMetrics": {DIGEST: {"rows": 0, "columns": "c"}}}).rows
    0
    >>> output_of({"observedMetrics": {}}) is None
    True
    """
    found = progress.get("observedMetrics", {}).get(DIGEST)
    if found is None:
        return None
    rows, low, high = (int(found.get(name) or 0) for name in ("rows", "low", "high"))
    said = f"{found.get('columns')} {rows} {low} {high}"
    return Output(rows, hashlib.sha256(said.encode()).hexdigest()[:32])


def _parts(column: Column, kind: DataType) -> Iterator[Column]:
    """What can be hashed of a column: a structure is itself and its fields, a list or map text."""
    if isinstance(kind, StructType):
        yield column.isNull()
        for field in kind:
            yield from _parts(column.getField(field.name), field.dataType)
    elif isinstance(kind, AtomicType | NullType) and not isinstance(kind, VariantType):
        yield column
    else:
        yield F.when(column.isNotNull(), F.to_json(F.struct(column.alias("of")), _EXACT))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
