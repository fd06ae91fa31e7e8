"""Read state as a DataFrame, and work around what Spark's state reader lacks (ADR 013)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType

from ebbtide.checkpoint import Checkpoint, read_checkpoint
from ebbtide.connectors.spark import rows as row_texts
from ebbtide.errors import CheckpointError, UsageError, first_line
from ebbtide.runtime import cluster, failures, versions
from ebbtide.state.decoders import find_decoder
from ebbtide.state.parts import StatePart, require_state
from ebbtide.state.values import to_short_json

_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_ZONE = "spark.sql.session.timeZone"
_PLACEHOLDER = "__dummy__"
"""What Spark stores where there is only a key."""
_VALUES = ("value", "list_element", "user_map_value")


@dataclass(frozen=True)
class StateEntry:
    """One row of the state."""

    key: dict[str, Any]
    value: dict[str, Any]
    partition: int


@dataclass(frozen=True)
class StateEntries:
    """The number of rows of the state, and the first of them."""

    count: int
    first: tuple[StateEntry, ...]


def read_state(
    spark: SparkSession,
    checkpoint: Checkpoint,
    part: StatePart,
    batch: int,
    *,
    where: str | None = None,
    contains: str | None = None,
    raw: bool = False,
) -> DataFrame:
    """The state after a batch: `key` and `value`, each a struct, and `partition`.

    A map's own key is the field `map_key` of the key. Rows that a registered decoder matches are
    decoded unless they are wanted `raw`. `where` is SQL, which can do anything that Spark can;
    `contains` is plain text to look for in the key, safe whoever typed it.
    """
    rows = _tidy(_load(spark, checkpoint, part, batch, {"batchId": str(batch)}))
    if not raw and (decoder := find_decoder(rows)):
        rows = decoder.decode(rows)
    rows = rows if where is None else choose(rows, where)
    return search(rows, contains) if contains else rows


def read_changes(
    spark: SparkSession, checkpoint: Checkpoint, part: StatePart, before: int, after: int
) -> DataFrame:
    """The last change of each key between two batches: as the state, and `deleted`.

    Does not work for all parts, see `prefers_feed`.
    """
    first_last = {"changeStartBatchId": str(before + 1), "changeEndBatchId": str(after)}
    feed = _load(spark, checkpoint, part, after, {"readChangeFeed": "true", **first_last})
    # the changes of a key are in one partition, in the order in which they were made
    rows = _tidy(feed).withColumn("_order", F.monotonically_increasing_id())
    last = F.max_by(F.struct("key", "value", "partition", "deleted"), "_order")
    return rows.groupBy(to_json(rows, "key")).agg(last.alias("last")).select("last.*")


def take(rows: DataFrame, limit: int) -> StateEntries:
    """The number of rows of a state, and the first of them by key (limit 0 = all)."""
    texts = to_texts(rows)
    ordered = texts.orderBy("key", "v")
    with cached(texts) if limit else nullcontext():
        chosen = ordered.limit(limit).collect() if limit else ordered.collect()
        count = texts.count() if limit else len(chosen)
    entries = ((json.loads(row["k"]), json.loads(row["v"]), row["partition"]) for row in chosen)
    return StateEntries(count, tuple(StateEntry(*entry) for entry in entries))


def to_texts(rows: DataFrame) -> DataFrame:
    """The rows of a state with key and value as JSON (`k`, `v`), and the key to sort by."""
    texts = (to_json(rows, "key").alias("k"), to_json(rows, "value").alias("v"))
    return rows.select("key", *texts, "partition")


@contextmanager
def cached(rows: DataFrame) -> Iterator[None]:
    """Read rows once although they are used twice."""
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
    return F.to_json(column, row_texts.EXACT).alias(name)


def _without_decimals(kind: DataType) -> DataType:
    match kind:
        case DecimalType():
            return StringType()
        case StructType():
            struct = StructType()
            for field in kind:
                struct.add(field.name, _without_decimals(field.dataType), field.nullable)
            return struct
        case ArrayType():
            return ArrayType(_without_decimals(kind.elementType), kind.containsNull)
        case MapType():
            key, value = _without_decimals(kind.keyType), _without_decimals(kind.valueType)
            return MapType(key, value, kind.valueContainsNull)
    return kind


@contextmanager
def plain_errors(
    checkpoint: Checkpoint, part: StatePart, *batches: int, has_where: bool = True
) -> Iterator[None]:
    """Raise one line that says why Spark cannot read the state after batches.

    `has_where` is whether an expression of the user may be the reason.
    """
    from pyspark.logger import PySparkLogger  # Spark 3.5 lacks it

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True  # it would log a hundred lines
    try:
        yield
    except (PySparkException, Py4JError) as error:
        for batch in batches:
            # the running query may have cleaned up what we were about to read
            require_state(read_checkpoint(checkpoint.location), part, batch)
        cause = failures.root_cause(error)
        raise CheckpointError(
            f"Spark cannot read the state of {checkpoint.location} ({part}): {cause}.",
            f"{'Fix --where, or check' if has_where else 'Check'} the files: "
            f"ebbtide verify {checkpoint.location}",
        ) from None


def _load(
    spark: SparkSession, checkpoint: Checkpoint, part: StatePart, batch: int, when: dict[str, str]
) -> DataFrame:
    session = spark.newSession()
    session.conf.set(_ZONE, spark.conf.get(_ZONE) or "UTC")
    commit = checkpoint.logs.by_id[batch].commit
    newer = commit is not None and commit.state_ids is not None
    versions.require(versions.STATE_READER_V2 if newer else versions.STATE_READER)
    session.conf.set(_FORMAT, "2" if newer else "1")
    # starts the coordinator of state stores, which loading asks and only streams start
    _ = session.streams.active
    reader = session.read.format("statestore").options(**part.options, **when)
    master = spark.sparkContext.master
    return reader.load(cluster.spark_location(checkpoint.folder, master))


def _tidy(rows: DataFrame) -> DataFrame:
    """The columns that `read_state` promises, whichever kind of state it is.

    Fields are taken by position: a value may have two fields of one name, and the rows of a join's
    side have one field more than their schema says.
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
    """Unique names, as Spark compares them: two counts become `count` and `count_2`.

    >>> distinct(["sum", "count", "Count", "count_2"])
    ['sum', 'count', 'Count_2', 'count_2_2']
    """
    unique: dict[str, str] = {}
    for name in names:
        new, number = name, 2
        while new.lower() in unique:
            new, number = f"{name}_{number}", number + 1
        unique[new.lower()] = new
    return list(unique.values())


def choose(rows: DataFrame, where: str) -> DataFrame:
    """The rows of a state that an SQL condition over `key` and `value` chooses."""
    try:
        return rows.where(where)
    except AnalysisException as error:
        why = first_line(error).split(" SQLSTATE: ")[0].strip(" .")
        names = [f"{top}.{name}" for top in rows.columns for name in _names(rows, top) or ()]
        raise UsageError(
            f"--where {where!r} is not a valid condition: {why}.", f"Fields: {', '.join(names)}."
        ) from None


def search(rows: DataFrame, text: str) -> DataFrame:
    """The rows of a state whose key, as JSON, contains a text, whatever its case."""
    key = F.lower(to_json(rows, "key"))
    # as typed, and as JSON writes it: with a backslash before a quote
    matches = (key.contains(F.lower(F.lit(one))) for one in (text, to_short_json(text)[1:-1]))
    return rows.where(reduce(Column.__or__, matches))


def _names(rows: DataFrame, column: str) -> list[str] | None:
    """The fields of a column; None if it has none."""
    kind = rows.schema[column].dataType
    return kind.names if isinstance(kind, StructType) else None
