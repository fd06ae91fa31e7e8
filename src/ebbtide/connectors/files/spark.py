"""Read and write a folder of files with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from ebbtide.connectors.files.log import files_of_batch
from ebbtide.connectors.files.sink import FORMATS
from ebbtide.connectors.spark.records import parse_schema
from ebbtide.connectors.spark.rows import (
    ORDER,
    doubt_partitions,
    path_exists,
    read_partitions,
)
from ebbtide.connectors.streams import (
    BatchRun,
    OutputPosition,
    Provenance,
    SparkSink,
    SparkSource,
    WrittenRows,
)
from ebbtide.errors import EbbtideError
from ebbtide.pipeline import Files
from ebbtide.storage import open_folder

_SELF_DESCRIBING = ("parquet", "orc")
_NULL = "__HIVE_DEFAULT_PARTITION__"


class FilesStream(SparkSource):
    """A folder of files as a stream of rows."""

    def schema(self, spark: SparkSession) -> StructType:
        pipeline = self.pipeline
        return parse_schema(
            pipeline.source.schema, pipeline.event_time, f"pipeline {pipeline.name}"
        )

    def read_stream(self, spark: SparkSession) -> DataFrame:
        source, schema = self.pipeline.source, self.schema(spark)
        assert isinstance(source, Files)
        if "://" not in source.path and not Path(source.path).is_dir():
            raise EbbtideError(f"There is no folder {source.path}.", "Check the source's path.")
        return (
            spark.readStream.format(source.format)
            .schema(schema)
            .option("mode", "FAILFAST")
            .options(**source.options)
            .load(source.path)
        )


class FilesOutput(SparkSink[Files]):
    """A folder of files; what a reprocess writes goes beside it."""

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        files = rows.writeStream.format(self.sink.format).option("path", self.sink.location)
        return files.options(**self.sink.options)

    def read_batch(self, spark: SparkSession, run: BatchRun, schema: StructType) -> WrittenRows:
        paths = None
        folder = open_folder(self.sink.location)
        if run.backups != ():
            backup, times = run.backups[-1] if run.backups else None, (run.started_ms, run.ended_ms)
            paths = files_of_batch(folder, run.batch, times, backup)
        if not paths:
            empty = None if paths is None else spark.createDataFrame([], schema)
            return self.as_written(empty, schema)
        form = self.sink.format or find_format(paths[0])
        reader = spark.read.format(form).options(**self.sink.options)
        files = [(f"{folder.url}/{path}", partition_of(path)) for path in paths]
        kinds = {f.name: f.dataType for f in schema}
        inside = StructType([f for f in schema if f.name not in files[0][1]])
        if form not in _SELF_DESCRIBING:
            reader = reader.schema(inside)
        written = self.as_written(read_partitions(reader.load, files, kinds), schema)
        doubt = doubt_partitions((values for _, values in files), kinds)
        if form not in _SELF_DESCRIBING:
            doubt = doubt or _doubt_text(spark, form, [file for file, _ in files], inside)
        return replace(written, doubt=written.doubt or doubt)

    def read_held(
        self, spark: SparkSession, at: OutputPosition, schema: StructType, run: str
    ) -> DataFrame:
        sink = self.sink
        rows = spark.createDataFrame([], schema).withColumn(ORDER, F.lit(""))
        reader = spark.read.format(sink.format).schema(schema).options(**sink.options)
        if path_exists(spark, sink.location):
            rows = rows.unionByName(reader.load(sink.location).withColumn(ORDER, F.lit("")))
        if path_exists(spark, sink.reprocessed):
            later = reader.option("recursiveFileLookup", "true").load(sink.reprocessed)
            file = F.col("_metadata.file_path")
            # what this run wrote before it was killed is not what it found
            earlier = later.withColumn(ORDER, file).where(~file.contains(f"/{run}/"))
            rows = rows.unionByName(earlier)
        return rows

    def write_chunk(self, rows: DataFrame, by: Provenance, number: int) -> None:
        folder = f"{self.sink.reprocessed}/{by.run}/chunk-{number:04}"
        writer = rows.write.mode("overwrite").format(self.sink.format)
        writer.options(**self.sink.options).save(folder)


def _doubt_text(spark: SparkSession, form: str, files: list[str], inside: StructType) -> str:
    """Why files without types may not read as what was written; empty if they do.

    Read with the columns of other rows, they would seem to have those. So what was read must have
    the very text of the file again. Other formats depend on options of the writer.
    """
    if form != "json":
        return f"{form} files do not tell types"
    if "timestamp" in inside.simpleString():
        return "JSON files have times with milliseconds only"
    line = F.col("value")
    again = F.to_json(F.from_json(line, inside))
    if spark.read.text(files).where(~line.eqNullSafe(again)).isEmpty():
        return ""
    return "its JSON files have other columns or types"


def find_format(path: str) -> str:
    """The format of a file that Spark wrote, by its name.

    >>> find_format("part-0-7b.c000.snappy.parquet"), find_format("day=1/part-0.json.gz")
    ('parquet', 'json')
    """
    endings = path.rpartition("/")[2].split(".")
    return next((each for each in reversed(endings) if each in FORMATS), "text")


def partition_of(path: str) -> Mapping[str, str | None]:
    """The values of partition columns in the path of a file that Spark wrote.

    >>> partition_of("day=2025-09-04/page=a%2Fb/part-0.parquet")
    {'day': '2025-09-04', 'page': 'a/b'}
    >>> partition_of("_ebbtide/b1/day=__HIVE_DEFAULT_PARTITION__/part-0.parquet")
    {'day': None}
    """
    pairs = (part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {unquote(name): None if value == _NULL else unquote(value) for name, value in pairs}


SOURCE, SINK = FilesStream, FilesOutput
