"""A part of a checkpoint's state in, its rows as a DataFrame out: key and value of each.

Spark's state reader does the work. What it needs said, or does not do, is done here: ADR 013.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType

from ebbtide.checkpoint import Checkpoint, read_checkpoint
from ebbtide.connectors.spark import EXACT
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.report.state import short
from ebbtide.runtime.failures import root_cause
from ebbtide.state.parts import Part, require_state
from ebbtide.systems.early_writer.state_decoder import are_visits, decode_visits

_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_ZONE = "spark.sql.session.timeZone"
_PLACEHOLDER = "__dummy__"
"""Where there is nothing to keep but the key, Spark keeps this."""
_VALUES = ("value", "list_element", "user_map_value")


@dataclass(frozen=True)
class Entry:
    """One row of the state."""

    key: dict[str, Any]
    value: dict[str, Any]
    partition: int


@dataclass(frozen=True)
class Entries:
    """Rows of the state: how many there are, and the first of them."""

    count: int
    first: tuple[Entry, ...]


def read_state(
    spark: SparkSession,
    checkpoint: Checkpoint,
    part: Part,
    batch: int,
    *,
    where: str | None = None,
    contains: str | None = None,
    raw: bool = False,
) -> DataFrame:
    """The state after a batch: `key` and `value`, each a struct, and `partition`.

    A map's own key is the field `map_key` of the key. Visits that our early writer keeps by the
    bucket are taken apart unless they are wanted `raw`. `where` is SQL, which can do anything that
    Spark can; `contains` is plain text to look for in the key, safe whoever typed it.
    """
    rows = _tidy(_load(spark, checkpoint, part, batch, {"batchId": str(batch)}))
    if not raw and are_visits(rows):
        rows = decode_visits(rows)
    rows = rows if where is None else choose(rows, where)
    return search(rows, contains) if contains else rows


def read_changes(
    spark: SparkSession, checkpoint: Checkpoint, part: Part, before: int, after: int
) -> DataFrame:
    """The last change of each key after one batch up to another: as the state, and `deleted`.

    Not for all parts, see `prefers_feed`.
    """
    first_last = {"changeStartBatchId": str(before + 1), "changeEndBatchId": str(after)}
    feed = _load(spark, checkpoint, part, after, {"readChangeFeed": "true", **first_last})
    # the changes of a key are in one partition, in the order in which they were made
    rows = _tidy(feed).withColumn("_order", F.monotonically_increasing_id())
    last = F.max_by(F.struct("key", "value", "partition", "deleted"), "_order")
    return rows.groupBy(to_json(rows, "key")).agg(last.alias("last")).select("last.*")


def take(rows: DataFrame, limit: int) -> Entries:
    """The first rows of a state by their key, all if the limit is 0, and how many there are."""
    columns = ("key", to_json(rows, "key").alias("k"), to_json(rows, "value").alias("v"))
    found = rows.select(*columns, "partition")
    if limit:
        with kept(found):
            count = found.count()
            chosen = found.orderBy("key", "v").limit(limit).collect()
    else:
        chosen = found.orderBy("key", "v").collect()
        count = len(chosen)
    first = tuple(
        Entry(json.loads(row["k"]), json.loads(row["v"]), row["partition"]) for row in chosen
    )
    return Entries(count, first)


@contextmanager
def kept(rows: DataFrame) -> Iterator[None]:
    """Rows that are looked at twice and read once."""
    rows.persist()
    try:
        yield
    finally:
        rows.unpersist()


def to_json(rows: DataFrame, name: str) -> Column:
    """A struct as JSON that loses nothing: decimals as text, times to the microsecond."""
    kind = rows.schema[name].dataType
    exact = _without_decimals(kind)
    column = F.col(name) if exact == kind else F.col(name).cast(exact)
    return F.to_json(column, EXACT).alias(name)


def _without_decimals(kind: DataType) -> DataType:
    match kind:
        case DecimalType():
            return StringType()
        case StructType():
            found = StructType()
            for field in kind:
                found.add(field.name, _without_decimals(field.dataType), field.nullable)
            return found
        case ArrayType():
            return ArrayType(_without_decimals(kind.elementType), kind.containsNull)
        case MapType():
            key, value = _without_decimals(kind.keyType), _without_decimals(kind.valueType)
            return MapType(key, value, kind.valueContainsNull)
    return kind


@contextmanager
def plain_errors(checkpoint: Checkpoint, part: Part, *batches: int) -> Iterator[None]:
    """Say in one line why Spark cannot read the state after batches."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True  # it would say it in a hundred lines
    try:
        yield
    except (PySparkException, Py4JError) as error:
        for batch in batches:
            # the query may have gone on, and have cleaned up what we were about to read
            require_state(read_checkpoint(checkpoint.location), part, batch)
        raise CheckpointError(
            f"Spark cannot read the state of {checkpoint.location} ({part}): {root_cause(error)}.",
            f"Mend --where, or check the files: ebbtide verify {checkpoint.location}",
        ) from None


def _load(
    spark: SparkSession, checkpoint: Checkpoint, part: Part, batch: int, when: dict[str, str]
) -> DataFrame:
    session = spark.newSession()
    session.conf.set(_ZONE, spark.conf.get(_ZONE) or "UTC")
    commit = checkpoint.logs.by_id[batch].commit
    session.conf.set(_FORMAT, "2" if commit and commit.state_ids is not None else "1")
    # a session that never ran a stream has no coordinator of state stores, and loading one asks it
    _ = session.streams.active
    reader = session.read.format("statestore").options(**part.options, **when)
    return reader.load(checkpoint.location)


def _tidy(rows: DataFrame) -> DataFrame:
    """As `read_state` says, whichever kind of state it is.

    Field by field and by their places: a value may have two fields of one name, and the rows of a
    join's side have a field more than their schema says.
    """
    structs = {top: names for top in rows.columns if (names := _names(rows, top)) is not None}
    flat = rows.select(
        *(f"{top}.*" for top in structs), *(top for top in rows.columns if top not in structs)
    )
    places = iter(range(len(flat.columns)))
    fields = {
        top: [
            F.col(f"`{place}`").alias(name)
            for name, place in zip(distinct(names), places, strict=False)
            if name != _PLACEHOLDER
        ]
        for top, names in structs.items()
    }
    rest = {flat.columns[place]: F.col(f"`{place}`") for place in places}
    if map_key := fields.get("user_map_key"):
        fields["key"].append(F.struct(*map_key).alias("map_key"))
    value = next((fields[name] for name in _VALUES if name in fields), None)
    if value is None:
        value = [F.timestamp_millis(rest["expiration_timestamp_ms"]).alias("expires")]
    changed = rest.get("change_type")
    return flat.toDF(*map(str, range(len(flat.columns)))).select(
        F.struct(*fields["key"]).alias("key"),
        F.struct(*value).alias("value"),
        rest["partition_id"].alias("partition"),
        *([] if changed is None else [(changed == "delete").alias("deleted")]),
    )


def distinct(names: list[str]) -> list[str]:
    """The names, each once, as Spark tells them apart: two counts are `count` and `count_2`.

    >>> distinct(["sum", "count", "Count", "count_2"])
    ['sum', 'count', 'Count_2', 'count_2_2']
    """
    found: list[str] = []
    for name in names:
        taken = {other.lower() for other in found}
        new = name
        number = 2
        while new.lower() in taken:
            new, number = f"{name}_{number}", number + 1
        found.append(new)
    return found


def choose(rows: DataFrame, where: str) -> DataFrame:
    """The rows of a state that an SQL condition over `key` and `value` chooses."""
    try:
        return rows.where(where)
    except AnalysisException as error:
        why = str(error).strip().splitlines()[0].split(" SQLSTATE: ")[0].strip(" .")
        names = [f"{top}.{name}" for top in rows.columns for name in _names(rows, top) or ()]
        raise UsageError(
            f"--where {where!r} is no condition here: {why}.", f"There are: {', '.join(names)}."
        ) from None


def search(rows: DataFrame, text: str) -> DataFrame:
    """The rows of a state whose key, as JSON, contains a text, in capitals or not."""
    key = F.lower(to_json(rows, "key"))
    # as it stands in JSON, and as it reads there: a quote has a backslash before it
    wanted = {text, short(text)[1:-1]}
    found = [key.contains(F.lower(F.lit(one))) for one in sorted(wanted)]
    return rows.where(reduce(Column.__or__, found))


def _names(rows: DataFrame, column: str) -> list[str] | None:
    """The fields of a column; None if it has none."""
    kind = rows.schema[column].dataType
    return kind.names if isinstance(kind, StructType) else None
