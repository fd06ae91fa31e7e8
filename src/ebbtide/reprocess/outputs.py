"""A pipeline's sink in, what it holds and a way to write to it beside the stream out.

A topic and files keep every version of a row, so new results go on top. A Delta table is replaced:
the chunks are staged inside its folder, where Delta looks away, and one commit puts them in place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from ebbtide.config import Settings
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.kafka.spark_sink import TIMESTAMP_FORMAT, to_records, with_headers
from ebbtide.connectors.kafka.spark_source import options, read_range
from ebbtide.errors import EbbtideError
from ebbtide.pipeline import Console, Delta, Files, ForeachBatch, Kafka, Pipeline
from ebbtide.reprocess.compare import ORDER, belongs, reaches_into
from ebbtide.reprocess.journal import OutputPosition
from ebbtide.reprocess.ranges import EventTimeRange, Shape

RUN_HEADER, SOURCE_HEADER = "ebbtide-run-id", "ebbtide-source"
_STAGE, _STAGED_CHUNK = "_ebbtide", "_ebbtide_chunk"


@dataclass(frozen=True)
class Provenance:
    """Whose results these are, and from where: goes with every record."""

    run: str
    source: str
    """The archive and its version, `visits@12`."""


def name_of(pipeline: Pipeline, settings: Settings) -> str:
    """The output in words."""
    match pipeline.sink:
        case Kafka(topic=topic):
            return f"topic {topic}"
        case Delta(path=path):
            return f"Delta table {settings.table(path)}"
        case Files() as files:
            return f"files beside {files.location}"
        case Console():
            return "the console"
        case ForeachBatch():
            return "a function"


def pin(pipeline: Pipeline, settings: Settings) -> OutputPosition:
    """Where the output stands now; refused if its topic is not there."""
    match pipeline.sink:
        case Kafka(topic=topic):
            if topic not in broker.list_topics(settings.kafka):
                raise EbbtideError(
                    f"There is no topic {topic} at {settings.kafka}, to which "
                    f"{pipeline.name} writes.",
                    f"Start the stream, which creates it: ebbtide run {pipeline.name}",
                )
            retained = broker.retained_offsets(settings.kafka, topic)
            return OutputPosition(offsets={p: latest for p, (_, latest) in retained.items()})
        case Delta(path=path):
            return OutputPosition(version=_version(settings.table(path)))
    return OutputPosition()


def read_held(
    spark: SparkSession,
    pipeline: Pipeline,
    settings: Settings,
    at: OutputPosition,
    schema: StructType,
    run: str,
) -> DataFrame:
    """The rows that the output held before a run, typed as the results are."""
    match pipeline.sink:
        case Kafka() as sink:
            return _read_topic(spark, sink, settings, at.offsets or {}, schema)
        case Delta(path=path) if at.version is not None:
            table = spark.read.format("delta").option("versionAsOf", at.version)
            return _only(table.load(settings.table(path)), schema, settings.table(path))
        case Files() as files:
            return _read_files(spark, files, schema, run)
    return spark.createDataFrame([], schema)


def write_chunk(
    rows: DataFrame, pipeline: Pipeline, settings: Settings, by: Provenance, number: int
) -> None:
    """Write a chunk's results, or stage them where all chunks must appear at once."""
    match pipeline.sink:
        case Kafka() as sink:
            (
                with_headers(to_records(rows, sink), {RUN_HEADER: by.run, SOURCE_HEADER: by.source})
                .write.format("kafka")
                .option("topic", sink.topic)
                .options(**options(sink, settings))
                .save()
            )
        case Delta(path=path):
            stage = _stage(settings, path, by)
            rows.write.mode("overwrite").parquet(f"{stage}/{_STAGED_CHUNK}={number}")
        case Files() as files:
            folder = f"{beside(files)}/{by.run}/chunk-{number:04}"
            rows.write.mode("overwrite").format(files.format).options(**files.options).save(folder)
        case Console(rows=count, truncate=truncate):
            rows.show(count, truncate)


def publish(
    spark: SparkSession,
    pipeline: Pipeline,
    settings: Settings,
    by: Provenance,
    shape: Shape,
    owned: EventTimeRange,
    at: OutputPosition,
) -> None:
    """Put all staged chunks in place of the range, in one commit; a second time it does nothing.

    Steps: **1** the staged rows; **2** what of the table goes, and what stays: neighbours of
    sessions, and what the live stream has written since the plan; **3** one commit, marked with the
    run; **4** what the stream wrote between 2 and 3 is put back; **5** the stage away.
    """
    if not isinstance(pipeline.sink, Delta):
        return
    path = settings.table(pipeline.sink.path)
    stage = _stage(settings, pipeline.sink.path, by)
    if not _exists(spark, stage):
        return
    # 1
    rows = spark.read.parquet(stage).drop(_STAGED_CHUNK)
    # 2
    predicate = None
    if (version := _version(path)) is not None:
        rows, predicate = _replacement(spark, rows, path, version, shape, owned)
        if shape.kind == "stateless" and at.version is not None:
            rows = rows.unionByName(_added(spark, path, predicate, at.version, version))
    # 3
    writer = (
        rows.write.format("delta")
        .mode("append" if predicate is None else "overwrite")
        .option("txnAppId", f"ebbtide-{by.run}")
        .option("txnVersion", 1)
        .option("userMetadata", json.dumps({RUN_HEADER: by.run, SOURCE_HEADER: by.source}))
        .options(**pipeline.sink.options)
    )
    (writer if predicate is None else writer.option("replaceWhere", predicate)).save(path)
    # 4
    if predicate is not None and version is not None:
        _put_back(spark, path, predicate, version, by)
    # 5
    _remove(spark, stage)


def discard(spark: SparkSession, pipeline: Pipeline, settings: Settings, by: Provenance) -> None:
    """Throw away what is staged: the output holds it already."""
    if isinstance(pipeline.sink, Delta):
        stage = _stage(settings, pipeline.sink.path, by)
        if _exists(spark, stage):
            _remove(spark, stage)


def _added(spark: SparkSession, path: str, predicate: str, since: int, until: int) -> DataFrame:
    """The rows of a part of a table that it got between two versions."""

    def part(version: int) -> DataFrame:
        table = spark.read.format("delta").option("versionAsOf", version).load(path)
        return table.where(F.expr(predicate))

    return part(until).exceptAll(part(since))


def _put_back(spark: SparkSession, path: str, predicate: str, read: int, by: Provenance) -> None:
    """Append what the stream wrote into the range after it was read and before it was replaced."""
    from deltalake import DeltaTable

    ours = next(
        entry["version"]
        for entry in DeltaTable(path).history()
        if by.run in str(entry.get("userMetadata"))
    )
    if ours > read + 1:
        _added(spark, path, predicate, read, ours - 1).write.format("delta").mode("append").option(
            "txnAppId", f"ebbtide-{by.run}"
        ).option("txnVersion", 2).save(path)


def beside(files: Files) -> str:
    """Where new results go: the log of Spark's file sink knows only what the stream wrote."""
    return f"{files.location}-reprocessed"


def _replacement(
    spark: SparkSession,
    rows: DataFrame,
    path: str,
    version: int,
    shape: Shape,
    owned: EventTimeRange,
) -> tuple[DataFrame, str]:
    """The rows that take the place of a part of the table, and the predicate that names it."""
    start = shape.start
    assert start is not None
    if shape.kind != "session":
        return rows, f"{start} >= {_literal(owned.start)} AND {start} < {_literal(owned.end)}"
    # a session may begin before the range and have swallowed others that lie outside of it
    table = spark.read.format("delta").option("versionAsOf", version).load(path)
    inside = F.coalesce(belongs(shape, owned), F.lit(False))
    doomed = table.where(inside).unionByName(reaches_into(table, rows, shape, ~inside))
    begins = F.expr(start)
    bounds = doomed.unionByName(rows).agg(
        F.unix_micros(F.min(begins)).alias("first"), F.unix_micros(F.max(begins)).alias("last")
    )
    found = bounds.collect()[0]
    predicate = (
        f"{start} >= timestamp_micros({found['first'] or 0}) "
        f"AND {start} <= timestamp_micros({found['last'] or 0})"
    )
    kept = table.where(F.expr(predicate)).exceptAll(doomed.where(F.expr(predicate)))
    return kept.unionByName(rows), predicate


def _read_topic(
    spark: SparkSession,
    sink: Kafka,
    settings: Settings,
    ends: Mapping[int, int],
    schema: StructType,
) -> DataFrame:
    """Every record that parses as a result; others are not this pipeline's."""
    retained = broker.retained_offsets(settings.kafka, sink.topic)
    starts = {p: min(retained[p][0], end) for p, end in ends.items()}
    order = F.struct("timestamp", "offset").alias(ORDER)
    if sum(ends.values()) == sum(starts.values()):
        return spark.createDataFrame([], StructType(schema.fields)).withColumn(ORDER, F.lit(0))
    records = read_range(spark, sink, settings, starts, ends)
    if "value" in schema.names:
        columns = [
            F.col(f.name).cast(f.dataType).alias(f.name)
            for f in schema
            if f.name in records.columns
        ]
        return records.select(*columns, order)
    parsed = F.from_json(
        F.col("value").cast("string"), schema, {"timestampFormat": TIMESTAMP_FORMAT}
    )
    rows = records.select(parsed.alias("row"), order).where("row IS NOT NULL")
    return rows.select("row.*", ORDER)


def _read_files(spark: SparkSession, files: Files, schema: StructType, run: str) -> DataFrame:
    """The stream's rows and, above them, those of earlier runs, newest last."""
    rows = spark.createDataFrame([], schema).withColumn(ORDER, F.lit(""))
    reader = spark.read.format(files.format).schema(schema).options(**files.options)
    if _exists(spark, files.location):
        rows = rows.unionByName(reader.load(files.location).withColumn(ORDER, F.lit("")))
    if _exists(spark, beside(files)):
        later = reader.option("recursiveFileLookup", "true").load(beside(files))
        file = F.col("_metadata.file_path")
        # what this run wrote before it was killed is not what it found
        earlier = later.withColumn(ORDER, file).where(~file.contains(f"/{run}/"))
        rows = rows.unionByName(earlier)
    return rows


def _only(rows: DataFrame, schema: StructType, path: str) -> DataFrame:
    missing = [name for name in schema.names if name not in rows.columns]
    if missing:
        raise EbbtideError(
            f"The table at {path} has no column {', '.join(missing)}, which the results have.",
            "Reprocess into a table that the pipeline's stream has written.",
        )
    return rows.select(*(f"`{name}`" for name in schema.names))


def _literal(at: datetime) -> str:
    return f"TIMESTAMP '{at.isoformat(timespec='microseconds')}'"


def _stage(settings: Settings, path: str, by: Provenance) -> str:
    return f"{settings.table(path)}/{_STAGE}/{by.run}"


def _version(path: str) -> int | None:
    """The newest version of a Delta table; None if there is no table."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return int(DeltaTable(path).version())
    except TableNotFoundError:
        return None


def _exists(spark: SparkSession, path: str) -> bool:
    return bool(_filesystem(spark, path).exists(_jvm(spark).org.apache.hadoop.fs.Path(path)))


def _remove(spark: SparkSession, path: str) -> None:
    filesystem, at = _filesystem(spark, path), _jvm(spark).org.apache.hadoop.fs.Path(path)
    filesystem.delete(at, True)
    # the folder above, if this was the last run's
    if not filesystem.listStatus(at.getParent()):
        filesystem.delete(at.getParent(), True)


def _filesystem(spark: SparkSession, path: str) -> Any:
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    return _jvm(spark).org.apache.hadoop.fs.Path(path).getFileSystem(conf)


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
