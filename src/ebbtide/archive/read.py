"""Read the raw records of a range of event time from the files of an archive that may hold them."""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.archive.facts import Archive
from ebbtide.archive.layout import COLUMNS, DAY, HOUR, hours_of
from ebbtide.errors import ArchiveError, first_line
from ebbtide.times import EPOCH


def open_table(spark: SparkSession, archive: Archive) -> DataFrame:
    """The whole table at the archive's version; keep it to read several ranges."""
    try:
        return spark.read.format("delta").option("versionAsOf", archive.version).load(archive.path)
    except PySparkException as error:
        raise ArchiveError(
            f"Version {archive.version} of the archive at {archive.path} cannot be read: "
            f"{first_line(error)}",
            "Plan again.",
        ) from None


def select_range(table: DataFrame, start: datetime, end: datetime) -> DataFrame:
    """The records of `[start, end)` in an open table; reads only the files of their hours."""
    first, last = hours_of(start, end)
    day, hour, time = F.col(DAY), F.col(HOUR), F.col("event_time")
    first_day, last_day = F.lit(str(first.day)).cast("date"), F.lit(str(last.day)).cast("date")
    # by the partition columns, so that files of other hours are not even listed
    after = (day > first_day) | ((day == first_day) & (hour >= first.hour))
    before = (day < last_day) | ((day == last_day) & (hour <= last.hour))
    in_range = (time >= _timestamp(start)) & (time < _timestamp(end))
    return table.where(after & before).where(in_range).select(*COLUMNS)


def _timestamp(at: datetime) -> Column:
    # as a number, because Python's and Java's calendars differ on old dates
    micros = (at - EPOCH) // timedelta(microseconds=1)
    return F.timestamp_micros(F.lit(micros).cast("bigint"))
