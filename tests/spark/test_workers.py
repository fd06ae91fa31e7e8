"""The Python workers of a local session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession


def test_workers_import_pyspark_from_its_package(spark: SparkSession) -> None:
    def name_file(_rows: Iterable[object]) -> Iterator[str]:
        import pyspark

        yield pyspark.__file__

    files = spark.sparkContext.parallelize([1, 2], 2).mapPartitions(name_file).collect()
    # a zip file has no compiled modules, so that every worker would compile them again
    assert len(files) == 2
    assert not any(".zip" in file for file in files)
