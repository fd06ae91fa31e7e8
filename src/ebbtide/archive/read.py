"""Read the raw records of a range of event time from an archive, and no other files."""

from __future__ import annotations

from datetime import datetime

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.archive.facts import Archive
from ebbtide.archive.layout import COLUMNS, DAY, HOUR, hours_of
from ebbtide.errors import ArchiveError
from ebbtide.times import EPOCH


def read_range(spark: SparkSession, archive: Archive, start: datetime, end: datetime) -> DataFrame:
    """The records of `[start, end)` as they lay in Kafka, with their event time; aware times."""
    return select_range(open_table(spark, archive), start, end)


def open_table(spark: SparkSession, archive: Archive) -> DataFrame:
    """The whole table at the archive's version; whoever asks often keeps it, and Delta its log."""
    try:
        return spark.read.format("delta").option("versionAsOf", archive.version).load(archive.path)
    except PySparkException as error:
        raise ArchiveError(
            f"Version {archive.version} of the archive at {archive.path} cannot be read: "
            f"{str(error).strip().splitlines()[0]}",
            "Plan again.",
        ) from None


def select_range(table: DataFrame, start: datetime, end: datetime) -> DataFrame:
    """Of a table that is open, the records of a range, and only its files read."""
    time = F.col("event_time")
    in_range = (time >= _moment(start)) & (time < _moment(end))
    return table.where(_in_hours(start, end)).where(in_range).select(*COLUMNS)


def _in_hours(start: datetime, end: datetime) -> Column:
    """Of the partition columns alone, so that files of other hours are not even listed."""
    first, last = hours_of(start, end)
    day, hour = F.col(DAY), F.col(HOUR)
    first_day, last_day = F.lit(str(first.day)).cast("date"), F.lit(str(last.day)).cast("date")
    after = (day > first_day) | ((day == first_day) & (hour >= first.hour))
    before = (day < last_day) | ((day == last_day) & (hour <= last.hour))
    return after & before


def _moment(at: datetime) -> Column:
    """Exactly that moment: Python's and Java's calendars differ on old dates."""
    delta = at - EPOCH
    micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    return F.timestamp_micros(F.lit(micros).cast("bigint"))
