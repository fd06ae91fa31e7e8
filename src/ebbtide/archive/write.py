"""Turn raw Kafka records into rows of an archive, and create the table that takes them."""

from __future__ import annotations

from collections.abc import Mapping

from delta import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.archive.layout import COLUMNS, DAY, HOUR, PARTITION_COLUMNS, archive_of
from ebbtide.connectors import progress
from ebbtide.connectors.spark import Decoder, parse_schema
from ebbtide.pipeline import Pipeline

_DAY_SECONDS, _HOUR_SECONDS = 86_400, 3_600
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Of the years 1 and 9999. What lies outside is in no calendar that a range can be named in."""


def to_rows(raw: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Each raw record as a row of the archive; those without an event time are counted."""
    topic, _ = archive_of(pipeline)
    schema = parse_schema(topic.schema, pipeline.event_time, f"pipeline {pipeline.name}")
    # the very rule of the pipeline, asked for the event time alone
    judged = Decoder(schema, (), pipeline.event_time).judge(raw, keep=raw.columns)
    time = F.col(judged.columns[-1]).cast("timestamp")
    good = F.unix_seconds(time).between(_FIRST_SECOND, _LAST_SECOND)
    columns = [F.col(name).cast(kind) for name, kind in COLUMNS.items() if name != "event_time"]
    return with_hour(
        judged.select(F.when(good, time).alias("event_time"), *columns).observe(
            progress.METRICS, F.count_if(F.col("event_time").isNull()).alias("broken")
        )
    )


def with_hour(rows: DataFrame) -> DataFrame:
    """Rows that have an `event_time`, with the partition that it falls into."""
    # whole numbers since 1970: no session's zone comes in
    seconds = F.unix_seconds("event_time")
    in_day = F.pmod(seconds, F.lit(_DAY_SECONDS))
    return rows.withColumns(
        {
            DAY: F.date_from_unix_date(_divided(seconds - in_day, _DAY_SECONDS)),
            HOUR: _divided(in_day, _HOUR_SECONDS),
        }
    )


def _divided(number: Column, by: int) -> Column:
    return F.call_function("div", number, F.lit(by)).cast("int")


def create_table(spark: SparkSession, path: str, properties: Mapping[str, str]) -> None:
    """The empty table of an archive, if there is none."""
    table = DeltaTable.createIfNotExists(spark).location(path)
    for name, kind in (COLUMNS | PARTITION_COLUMNS).items():
        table = table.addColumn(name, kind)
    for name, value in properties.items():
        table = table.property(name, value)
    table.partitionedBy(*PARTITION_COLUMNS).execute()


def set_property(spark: SparkSession, path: str, name: str, value: str) -> None:
    """Change a property of the table of an archive."""
    quoted, text = path.replace("`", "``"), value.replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"ALTER TABLE delta.`{quoted}` SET TBLPROPERTIES ('{name}' = '{text}')")
