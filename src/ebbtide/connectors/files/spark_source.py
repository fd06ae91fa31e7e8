"""A folder of files as a stream of rows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ebbtide.errors import EbbtideError
from ebbtide.pipeline import Files


def read_stream(spark: SparkSession, source: Files, schema: StructType) -> DataFrame:
    """Every row of each file that appears; a file that does not fit the schema fails its batch."""
    if "://" not in source.path and not Path(source.path).is_dir():
        raise EbbtideError(f"There is no folder {source.path}.", "Check the source's path.")
    return (
        spark.readStream.format(source.format)
        .schema(schema)
        .option("mode", "FAILFAST")
        .options(**source.options)
        .load(source.path)
    )
