"""Convert raw Kafka records to rows of an archive, and create its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.archive.layout import (
    COLUMNS,
    DAY,
    HOUR,
    PACKED,
    PARTITION_COLUMNS,
    RAW,
    archive_of,
)
from ebbtide.connectors import progress
from ebbtide.connectors.spark import Decoder, parse_schema, rows
from ebbtide.pipeline import Pipeline

if TYPE_CHECKING:
    from ebbtide.archive.hours import HourSteps

_DAY_SECONDS, _HOUR_SECONDS = 86_400, 3_600
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Of the years 1 and 9999: a range of event time cannot lie outside."""


def to_rows(raw: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Each raw record as a row of the archive; those without an event time are counted."""
    timed = _add_event_time(raw, pipeline).select(
        *(F.col(name).cast(kind) for name, kind in COLUMNS.items())
    )
    # seconds since 1970, because the session's zone must not matter
    seconds = F.unix_seconds("event_time")
    day = F.floor(seconds / _DAY_SECONDS).cast("int")
    hour = F.floor(F.pmod(seconds, F.lit(_DAY_SECONDS)) / _HOUR_SECONDS).cast("int")
    without_time = F.count_if(F.col("event_time").isNull())
    return timed.observe(progress.METRICS, without_time.alias("broken")).withColumns(
        {DAY: F.date_from_unix_date(day), HOUR: hour}
    )


def to_hours(raw: DataFrame, pipeline: Pipeline, steps: HourSteps) -> DataFrame:
    """The rows of the archive in chunks of an hour each; those without an event time are counted.

    A time goes to Python and back as microseconds, which every Spark passes on as they are.
    """
    timed = _add_event_time(raw, pipeline)
    time = F.col("event_time")
    counted = timed.observe(progress.METRICS, F.count_if(time.isNull()).alias("broken"))
    # an empty list without headers, because Arrow goes through all nulls since the last other list
    lists = {
        name: F.coalesce(F.col("headers")[part], F.array().cast(RAW[name]))
        for name, part in (("header_keys", "key"), ("header_values", "value"))
    }
    rows = counted.withColumns({"event_time": F.unix_micros(time), **lists})
    return rows.select(*RAW).mapInArrow(steps.split, _ddl(PACKED))


def write_hours(batch: DataFrame, steps: HourSteps) -> list[str]:
    """Write the files of a batch `to_hours`, one for each hour unless it is large.

    Returns the `add` of each for Delta's log. What a failed task has written is not among them.
    """
    by_hour = batch.repartition("hour").sortWithinPartitions("hour")
    return [row.added for row in by_hour.mapInArrow(steps.write, "added STRING").collect()]


def _add_event_time(raw: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The same records with their event time, as the pipeline's decoder reads it, or null."""
    topic, _ = archive_of(pipeline)
    schema = parse_schema(topic.schema, pipeline.event_time, f"pipeline {pipeline.name}")
    # the decoder of the pipeline, for the event time alone
    decoder = Decoder(schema, (), pipeline.event_time).with_reader(raw.sparkSession)
    judged = decoder.judge(raw, {name: F.col(name) for name in raw.columns})
    time = F.col(judged.columns[-1]).cast("timestamp")
    good = F.unix_seconds(time).between(_FIRST_SECOND, _LAST_SECOND)
    return judged.select(*raw.columns, F.when(good, time).alias("event_time"))


def create_table(spark: SparkSession, path: str, properties: Mapping[str, str]) -> None:
    """The empty table of an archive, if there is none."""
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {rows.quote_table(path)} "
        f"({_ddl(COLUMNS | PARTITION_COLUMNS)}) USING delta "
        f"PARTITIONED BY ({', '.join(PARTITION_COLUMNS)}) {_properties(properties)}"
    )


def set_property(spark: SparkSession, path: str, name: str, value: str) -> None:
    """Change a property of the table of an archive."""
    spark.sql(f"ALTER TABLE {rows.quote_table(path)} SET {_properties({name: value})}")


def _ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{rows.quote_column(name)} {kind}" for name, kind in columns.items())


def _properties(properties: Mapping[str, str]) -> str:
    pairs = (f"{rows.quote_text(k)} = {rows.quote_text(v)}" for k, v in properties.items())
    return f"TBLPROPERTIES ({', '.join(pairs)})"
