"""Format result rows as text, and handle columns, plans and folders of Spark's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

TIMESTAMP_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"
EXACT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
"""Options with which values that differ also differ as JSON."""
ORDER = "_ebbtide_order"
"""Of held rows, a column that says which of two is the later; only where an output keeps both."""


def quote_column(name: str) -> str:
    """A column's name quoted for SQL, whatever it contains."""
    return "`" + name.replace("`", "``") + "`"


def quote_table(path: str) -> str:
    """A Delta table's name in SQL.

    >>> quote_table("s3a://lake/visits")
    'delta.`s3a://lake/visits`'
    """
    return f"delta.{quote_column(path)}"


def quote_text(text: str) -> str:
    """A text as a literal of SQL, whatever it contains."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def to_json(*columns: Column | str, exact: bool = False) -> Column:
    """Columns as JSON, as the sink writes them: a number or a time is equal if it reads equal."""
    options = {"timestampFormat": TIMESTAMP_FORMAT, "ignoreNullFields": "false"}
    return F.to_json(F.struct(*columns), EXACT if exact else options)


def sort_maps(column: Column, kind: DataType) -> Column:
    """A column with the entries of each map in the order of their keys: maps have no other."""
    if "map<" not in kind.simpleString():
        return column
    match kind:
        case MapType():
            keys = F.array_sort(F.map_keys(column))
            values = F.transform(keys, lambda key: sort_maps(column[key], kind.valueType))
            return F.map_from_arrays(keys, values)
        case ArrayType():
            return F.transform(column, lambda each: sort_maps(each, kind.elementType))
        case StructType():
            fields = [sort_maps(column.getField(f.name), f.dataType).alias(f.name) for f in kind]
            return F.when(column.isNotNull(), F.struct(*fields))
        case _:
            return column


def read_partitions(
    read: Callable[[list[str]], DataFrame],
    files: Iterable[tuple[str, Mapping[str, str | None]]],
    kinds: Mapping[str, DataType],
) -> DataFrame | None:
    """Read files that hold no partition columns, each with its values; None without files."""
    groups: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for file, values in files:
        groups.setdefault(tuple(sorted(values.items())), []).append(file)
    parts = []
    for partition, paths in groups.items():
        part = read(paths)
        for name, value in partition:
            part = part.withColumn(name, F.lit(value).cast(kinds.get(name, StringType())))
        parts.append(part)
    return reduce(DataFrame.unionByName, parts) if parts else None


def doubt_partitions(
    partitions: Iterable[Mapping[str, str | None]], kinds: Mapping[str, DataType]
) -> str:
    """Why the texts of partition values may not tell them exactly; empty if they do.

    >>> doubt_partitions([{"page": "home", "day": None}], {"page": StringType()})
    ''
    >>> doubt_partitions([{"page": None}], {"page": StringType()})
    'a partition does not tell whether page was null or empty'
    >>> doubt_partitions([{"at": "2025-09-04 07:00:00"}], {"at": TimestampType()})
    'a partition does not tell the time zone of at'
    """
    for name, value in (pair for values in partitions for pair in values.items()):
        kind = kinds.get(name)
        if value is None and isinstance(kind, StringType):
            return f"a partition does not tell whether {name} was null or empty"
        if value is not None and isinstance(kind, TimestampType) and not value.endswith("Z"):
            return f"a partition does not tell the time zone of {name}"
    return ""


def to_frame(spark: SparkSession, plan: Any) -> DataFrame:
    """A logical plan of Spark's as a data frame."""
    # Spark 4 moved the classes of a session to a package of their own
    package = spark._jsparkSession.getClass().getPackageName()
    datasets = getattr(spark._jvm, f"{package}.Dataset")
    return DataFrame(datasets.ofRows(spark._jsparkSession, plan), spark)


def walk_plan(plan: Any) -> Iterator[Any]:
    """A node of a logical plan, and every one below it."""
    yield plan
    for child in each_of(plan.children()):
        yield from walk_plan(child)


def each_of(sequence: Any) -> Iterator[Any]:
    """The elements of a sequence of Scala's."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def path_exists(spark: SparkSession, path: str) -> bool:
    """Whether a path exists in whatever filesystem its URL names."""
    filesystem, at = _filesystem(spark, path)
    return bool(filesystem.exists(at))


def remove_tree(spark: SparkSession, path: str) -> None:
    """Remove a folder, and the one above it if that is empty then."""
    filesystem, at = _filesystem(spark, path)
    filesystem.delete(at, True)
    if not filesystem.listStatus(at.getParent()):
        filesystem.delete(at.getParent(), True)


def _filesystem(spark: SparkSession, path: str) -> tuple[Any, Any]:
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    jvm: Any = spark._jvm
    at = jvm.org.apache.hadoop.fs.Path(path)
    return at.getFileSystem(conf), at
