"""How raw records become typed rows, and which of them are broken and why.

Broken means: not a JSON object, a field that the pipeline uses does not convert, or no event time.
Another missing field is null. Which fields a pipeline uses, Spark's optimizer tells: it keeps only
those that the transform needs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import StringType, StructField, StructType, TimestampNTZType, TimestampType

from ebbtide.connectors.progress import EARLIEST, LATEST, METRICS
from ebbtide.errors import UsageError
from ebbtide.pipeline import Pipeline

_RECORD = "_ebbtide_record"
_TIME = "_ebbtide_time"
_CORRUPT = "_ebbtide_corrupt"
_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


def parse_schema(ddl: str, event_time: str, whose: str) -> StructType:
    """The schema that a pipeline's source names, with its event time checked."""
    try:
        schema = cast(StructType, StructType.fromDDL(ddl))
    except (ParseException, AnalysisException) as error:
        raise UsageError(
            f"The schema of {whose} does not parse: {_first_line(error)}: {ddl!r}.",
            'Write it as "visit_id INT, event_time TIMESTAMP".',
        ) from None
    check_event_time(schema, event_time, whose)
    return schema


def check_event_time(schema: StructType, event_time: str, whose: str) -> None:
    """Refuse a schema whose event time is missing or not a timestamp."""
    kind = next((field.dataType for field in schema if field.name == event_time), None)
    if not isinstance(kind, TimestampType | TimestampNTZType):
        found = "is not in it" if kind is None else f"is {kind.simpleString().upper()}"
        raise UsageError(
            f"The schema of {whose} needs {event_time} TIMESTAMP as event time, but it {found}.",
            f"Its fields: {', '.join(schema.fieldNames())}.",
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".: ")


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
    found = set()
    for i in range(leaves.size()):
        found |= _names(leaves.apply(i).outputSet()) & needed
    names = {name for name, _ in found}
    return [name for name in schema.fieldNames() if name in names]


def _names(attributes: Any) -> set[tuple[str, str]]:
    found = attributes.toSeq()
    return {
        (found.apply(i).name(), found.apply(i).exprId().toString()) for i in range(found.size())
    }


@dataclass(frozen=True)
class Decoder:
    """How the raw `value` of a record becomes a row of the schema, or a broken record."""

    schema: StructType
    used: tuple[str, ...]
    event_time: str

    def decode(self, raw: DataFrame, metrics: str | Observation = METRICS) -> DataFrame:
        """The good records as rows of the schema; the broken ones are counted in the same pass."""
        found = {name: F.col(_RECORD)[name] for name in self._parsed}
        found[self.event_time] = time = F.col(_TIME)
        return (
            self.judge(raw)
            .observe(
                metrics,
                F.count(F.lit(1)).alias("records"),
                F.count(F.when(time.isNull(), 1)).alias("broken"),
                *_span(time),
            )
            .where(time.isNotNull())
            .select(
                *(
                    found.get(f.name, F.lit(None).cast(f.dataType)).alias(f.name)
                    for f in self.schema
                )
            )
        )

    def broken(self, raw: DataFrame) -> DataFrame:
        """The broken records as they came, each with its `reason`."""
        judged = self.judge(raw, keep=raw.columns).where(F.col(_TIME).isNull())
        return judged.select(*raw.columns, self._reason().alias("reason"))

    @property
    def _parsed(self) -> list[str]:
        return [f.name for f in self.schema if f.name in self.used or f.name == self.event_time]

    def judge(self, raw: DataFrame, keep: list[str] | None = None) -> DataFrame:
        """Each record decoded, and its event time, which a broken one has not.

        Two columns after those to keep.
        """
        record, text = F.col(_RECORD), F.col("value").cast("string")
        good = F.is_valid_utf8(text) & _ends_as_object(text) & record[_CORRUPT].isNull()
        return raw.withColumn(_RECORD, _from_json(self.schema, self._parsed)).select(
            *(keep or []), _RECORD, F.when(good, record[self.event_time]).alias(_TIME)
        )

    def _reason(self) -> Column:
        """Why a broken record is broken, from the coarsest fault to the finest."""
        text = F.col("value").cast("string")
        is_object = _from_json(self.schema, [])[_CORRUPT].isNull() & _ends_as_object(text)
        faults: list[tuple[Column, str]] = [
            (F.col("value").isNull(), "null value"),
            (F.length("value") == 0, "empty value"),
            (~F.is_valid_utf8(text), "not valid UTF-8"),
            (~F.coalesce(is_object, F.lit(False)), "not a JSON object"),
        ]
        for name in self._parsed:
            kind = self.schema[name].dataType.simpleString().upper()
            converts = _from_json(self.schema, [name])[_CORRUPT].isNull()
            faults.append((~converts, f"field {name} does not convert to {kind}"))
        no_time = F.lit(f"no event time (field {self.event_time})")
        return reduce(lambda rest, f: F.when(f[0], f[1]).otherwise(rest), reversed(faults), no_time)


def _span(time: Column) -> list[Column]:
    """What the history keeps of the event times."""
    span = ((F.min(time), EARLIEST), (F.max(time), LATEST))
    return [F.unix_micros(end.cast("timestamp")).alias(name) for end, name in span]


def _from_json(schema: StructType, names: list[str]) -> Column:
    wanted = StructType([schema[name] for name in names]).add(StructField(_CORRUPT, StringType()))
    return F.from_json(F.col("value").cast("string"), wanted, _OPTIONS)


def _ends_as_object(text: Column) -> Column:
    """Spark's parser stops at the end of the first object, whatever follows it."""
    return text.endswith("}") | text.rlike(r"\}\s+$")


def require_event_time(rows: DataFrame, event_time: str, whose: str) -> DataFrame:
    """Fail a batch that has a row without event time: only Kafka's records can be set aside."""
    problem = f"a row that {whose} reads has no {event_time}"
    time = F.col(event_time)
    return rows.withColumn(
        event_time, F.when(time.isNull(), F.raise_error(F.lit(problem))).otherwise(time)
    )


def make_decoder(
    spark: SparkSession, pipeline: Pipeline, query: Callable[[DataFrame], DataFrame]
) -> Decoder:
    """How the records of a pipeline's source become rows; `query` says which fields it uses."""
    schema = parse_schema(pipeline.source.schema, pipeline.event_time, f"pipeline {pipeline.name}")
    streaming = pipeline.scope == "stream"
    used = used_fields(spark, schema, query, streaming=streaming)
    return Decoder(schema, tuple(used), pipeline.event_time)
