"""Decode raw records into typed rows, and find out which of them are broken and why.

A record is broken if it is not one JSON object, has no event time, or if a field that the pipeline
uses does not convert. Any other missing field is null. A pipeline uses the fields that Spark's
optimizer keeps, because the transform needs them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, cast

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import (
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    _parse_datatype_string,
)

from ebbtide.connectors.progress import EARLIEST, LATEST, METRICS
from ebbtide.connectors.spark.json_records import choose_reader
from ebbtide.errors import UsageError, first_line
from ebbtide.pipeline import Pipeline

_FIELDS = "_ebbtide_fields"
_RECORD = "_ebbtide_record"
_TIME = "_ebbtide_time"
_CORRUPT = "_ebbtide_corrupt"
_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
_LIST = "ARRAY<STRUCT<_ebbtide_none: BOOLEAN>>"
_DEEPER = {"maxNestingDepth": "1001"}
"""One more than the parser allows without a list around it."""


def _is_valid_utf8(value: Column) -> Column:
    """Whether bytes are text; Spark 3.5, which lacks the function, replaces what is not."""
    if hasattr(F, "is_valid_utf8"):
        return F.is_valid_utf8(value.cast("string"))
    return F.encode(F.decode(value, "UTF-8"), "UTF-8") == value


def parse_schema(ddl: str, event_time: str, whose: str) -> StructType:
    """The schema that a pipeline's source names, with its event time checked."""
    try:
        # what StructType.fromDDL calls, which Spark 3.5 lacks
        schema = cast(StructType, _parse_datatype_string(ddl))
    except (ParseException, AnalysisException) as error:
        raise UsageError(
            f"The schema of {whose} does not parse: {first_line(error)}: {ddl!r}.",
            'Write it as "visit_id INT, event_time TIMESTAMP".',
        ) from None
    check_event_time(schema, event_time, whose)
    return schema


def check_event_time(schema: StructType, event_time: str, whose: str) -> None:
    """Refuse a schema whose event time is missing or not a timestamp."""
    kind = next((field.dataType for field in schema if field.name == event_time), None)
    if not isinstance(kind, TimestampType | TimestampNTZType):
        problem = "is not in it" if kind is None else f"is {kind.simpleString().upper()}"
        raise UsageError(
            f"The schema of {whose} needs {event_time} TIMESTAMP as event time, but it {problem}.",
            f"Its fields: {', '.join(schema.fieldNames())}.",
        )


def used_fields(
    spark: SparkSession,
    schema: StructType,
    query: Callable[[DataFrame], DataFrame],
    *,
    streaming: bool = True,
) -> list[str]:
    """The fields of the schema that a query needs, in the schema's order."""
    with tempfile.TemporaryDirectory() as empty:
        reader = spark.readStream if streaming else spark.read
        source = reader.schema(schema).parquet(f"file://{empty}")
        analyzed = query(source)._jdf.queryExecution().analyzed()
        plan = spark._jsparkSession.sessionState().optimizer().execute(analyzed)
    needed = set(_names(plan.outputSet()))
    nodes = [plan]
    for node in nodes:
        needed |= _names(node.references())
        children = node.children()
        nodes += [children.apply(i) for i in range(children.size())]
    # an attribute keeps its id, and so its origin, whatever it is renamed to
    leaves = plan.collectLeaves()
    read = set().union(*(_names(leaves.apply(i).outputSet()) for i in range(leaves.size())))
    names = {name for name, _ in read & needed}
    return [name for name in schema.fieldNames() if name in names]


def _names(attributes: Any) -> set[tuple[str, str]]:
    listed = attributes.toSeq()
    each = (listed.apply(i) for i in range(listed.size()))
    return {(attribute.name(), attribute.exprId().toString()) for attribute in each}


@dataclass(frozen=True)
class Decoder:
    """How the raw `value` of a record becomes a row of the schema, or a broken record."""

    schema: StructType
    used: tuple[str, ...]
    event_time: str
    reader: Column | None = None
    """The fields of a record read from its bytes, null where Spark must decode it; None if it
    decodes all."""

    def with_reader(self, spark: SparkSession) -> Decoder:
        """The same, with a reader where its fields and the settings allow one."""
        parsed = StructType([self.schema[name] for name in self.parsed])
        return replace(self, reader=choose_reader(spark, parsed, self.event_time))

    def decode(self, raw: DataFrame, metrics: str | Observation = METRICS) -> DataFrame:
        """The good records as rows of the schema; the broken ones are counted in the same pass."""
        fields = {name: self._field(name) for name in self.parsed if name != self.event_time}
        names = {name: f"{_FIELDS}_{number}" for number, name in enumerate(fields)}
        judged = self.judge(raw, {names[name]: column for name, column in fields.items()})
        columns = {name: F.col(column) for name, column in names.items()}
        columns[self.event_time] = time = F.col(_TIME)
        missing = F.lit(None)
        return (
            judged.observe(
                metrics,
                F.count(F.lit(1)).alias("records"),
                F.count(F.when(time.isNull(), 1)).alias("broken"),
                *event_time_span(time),
            )
            .where(time.isNotNull())
            .select(
                *(columns.get(f.name, missing.cast(f.dataType)).alias(f.name) for f in self.schema)
            )
        )

    def broken(self, raw: DataFrame) -> DataFrame:
        """The broken records as they came, each with its `reason`."""
        judged = self.judge(raw, {n: F.col(n) for n in raw.columns}).where(F.col(_TIME).isNull())
        return judged.select(*raw.columns, self._reason().alias("reason"))

    @property
    def parsed(self) -> list[str]:
        """The fields that are decoded: those that the pipeline uses, and the event time."""
        return [f.name for f in self.schema if f.name in self.used or f.name == self.event_time]

    def judge(self, raw: DataFrame, keep: Mapping[str, Column]) -> DataFrame:
        """The columns to keep and, if the record is good, its event time."""
        record, value, text = F.col(_RECORD), F.col("value"), F.col("value").cast("string")
        good = _is_valid_utf8(value) & _is_one_object(text) & record[_CORRUPT].isNull()
        time = F.when(value.isNotNull() & good, record[self.event_time])
        if self.reader is not None:
            raw = raw.withColumn(_FIELDS, self.reader)
            # null, which costs nothing to decode, if the fields have been read
            text = F.when(F.col(_FIELDS).isNull(), text)
            time = F.coalesce(F.col(_FIELDS)[self.event_time], time)
        decoded = raw.withColumn(_RECORD, _from_json(text, self.schema, self.parsed))
        return decoded.select(*(c.alias(name) for name, c in keep.items()), time.alias(_TIME))

    def _field(self, name: str) -> Column:
        """A field of a good record; of the columns while `judge` decodes it."""
        decoded = F.col(_RECORD)[name]
        if self.reader is None:
            return decoded
        fields = F.col(_FIELDS)
        field = F.when(fields.isNotNull(), fields[name]).otherwise(decoded)
        # a choice loses what belongs to a field, such as its comment
        return field.alias(name, metadata=self.schema[name].metadata)

    def _reason(self) -> Column:
        """Why a broken record is broken, from the coarsest fault to the finest."""
        text = F.col("value").cast("string")
        is_object = _from_json(text, self.schema, [])[_CORRUPT].isNull() & _is_one_object(text)
        faults: list[tuple[Column, str]] = [
            (F.col("value").isNull(), "null value"),
            (F.length("value") == 0, "empty value"),
            (~_is_valid_utf8(F.col("value")), "not valid UTF-8"),
            (~F.coalesce(is_object, F.lit(False)), "not a JSON object"),
        ]
        for name in self.parsed:
            kind = self.schema[name].dataType.simpleString().upper()
            converts = _from_json(text, self.schema, [name])[_CORRUPT].isNull()
            faults.append((~converts, f"field {name} does not convert to {kind}"))
        no_time = F.lit(f"no event time (field {self.event_time})")
        return reduce(lambda rest, f: F.when(f[0], f[1]).otherwise(rest), reversed(faults), no_time)


def event_time_span(time: Column) -> list[Column]:
    """The earliest and latest event time, which the history keeps."""
    span = ((F.min(time), EARLIEST), (F.max(time), LATEST))
    return [F.unix_micros(end.cast("timestamp")).alias(name) for end, name in span]


def _from_json(text: Column, schema: StructType, names: list[str]) -> Column:
    wanted = StructType([schema[name] for name in names]).add(StructField(_CORRUPT, StringType()))
    return F.from_json(text, wanted, _OPTIONS)


def _is_one_object(text: Column) -> Column:
    """Whether nothing but white space follows the first object, where Spark's parser stops.

    An object without braces inside ends at the first one. Else the text is parsed as an element of
    a list: `[text]` must have one, and `[text,0]` two, as what follows may itself end the list.
    Last comes `from_json`, which is slower and reads all that it read before, such as NaN.
    """
    # of bytes, as Spark finds a character in a text by far the fastest with `contains`
    before_last = F.substr("value", F.lit(1), F.octet_length("value") - 1).cast("string")
    flat = text.endswith("}") & ~before_last.contains("}")
    alone, followed = (F.concat(F.lit("["), text, F.lit(end)) for end in ("]", ",{}]"))
    ends_no_list = ~text.contains("]") | (F.json_array_length(followed) == 2)
    listed = (F.json_array_length(alone) == 1) & ends_no_list
    sizes = [F.size(F.from_json(wrapped, _LIST, _DEEPER)) for wrapped in (alone, followed)]
    parsed = (sizes[0] == 1) & (sizes[1] == 2)
    # not `flat | …`, of which Spark computes what occurs twice, such as `alone`, for every record
    return F.when(flat, True).when(listed, True).otherwise(parsed)


def require_event_time(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Fail a batch that has a row without event time: only Kafka's records can be set aside."""
    name, whose = pipeline.event_time, f"pipeline {pipeline.name}"
    check_event_time(rows.schema, name, whose)
    problem = F.raise_error(F.lit(f"a row that {whose} reads has no {name}"))
    return rows.withColumn(name, F.when(F.isnull(name), problem).otherwise(F.col(name)))


def make_decoder(
    spark: SparkSession, pipeline: Pipeline, query: Callable[[DataFrame], DataFrame]
) -> Decoder:
    """How the records of a pipeline's source become rows; `query` says which fields it uses."""
    schema = parse_schema(pipeline.source.schema, pipeline.event_time, f"pipeline {pipeline.name}")
    used = used_fields(spark, schema, query, streaming=pipeline.scope == "stream")
    return Decoder(schema, tuple(used), pipeline.event_time).with_reader(spark)
