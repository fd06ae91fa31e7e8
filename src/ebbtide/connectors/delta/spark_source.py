"""A Delta table as a stream of rows."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from ebbtide.config import Settings
from ebbtide.errors import EbbtideError
from ebbtide.pipeline import Delta


def read_stream(spark: SparkSession, source: Delta, settings: Settings) -> DataFrame:
    """Every row that is appended to the table."""
    path = settings.table(source.path)
    try:
        return spark.readStream.format("delta").options(**source.options).load(path)
    except AnalysisException as error:
        cause = str(error).splitlines()[0]
        raise EbbtideError(
            f"There is no Delta table to read at {path}: {cause}", "Check the source's path."
        ) from None
