"""Read and write a Delta table with Spark."""

from __future__ import annotations

import json
from datetime import datetime
from functools import reduce
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StringType, StructType

from ebbtide.connectors.delta.log import DeltaCommit, DeltaLog, is_url, load_table, newest_version
from ebbtide.connectors.spark.rows import path_exists, quote_column, remove_tree
from ebbtide.connectors.streams import (
    BatchRun,
    OutputPosition,
    Provenance,
    ReplacedRange,
    SparkSink,
    SparkSource,
    WrittenRows,
)
from ebbtide.errors import EbbtideError
from ebbtide.pipeline import Delta

_STAGE, _STAGED_CHUNK = "_ebbtide", "_ebbtide_chunk"
_LATE_MS = 1_000
"""How far the time of a sink's commit may lie outside that of its batch."""


class DeltaStream(SparkSource):
    """A Delta table as a stream of rows."""

    def read_stream(self, spark: SparkSession) -> DataFrame:
        source = self.pipeline.source
        assert isinstance(source, Delta)
        path = self.settings.table(source.path)
        try:
            return spark.readStream.format("delta").options(**source.options).load(path)
        except AnalysisException as error:
            cause = str(error).splitlines()[0]
            raise EbbtideError(
                f"There is no Delta table to read at {path}: {cause}", "Check the source's path."
            ) from None


class DeltaOutput(SparkSink[Delta]):
    """A Delta table; a reprocess replaces a range of it.

    The chunks are staged inside its folder, where Delta looks away, and one commit puts them in
    place.
    """

    @property
    def path(self) -> str:
        """Where the table lies."""
        return self.settings.table(self.sink.path)

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        writer = rows.writeStream.format("delta").option("path", self.path)
        return writer.options(**self.sink.options)

    def read_batch(self, spark: SparkSession, run: BatchRun, schema: StructType) -> WrittenRows:
        commit = find_commit(self.path, run)
        rows = None if commit is None else self._read_added(spark, commit)
        return self.as_written(rows, schema)

    def _read_added(self, spark: SparkSession, commit: DeltaCommit) -> DataFrame | None:
        groups: dict[str, list[str]] = {}
        for added in commit.of("add"):
            values = json.dumps(added["partitionValues"], sort_keys=True)
            file = unquote(added["path"])
            groups.setdefault(values, []).append(file if is_url(file) else f"{self.path}/{file}")
        kinds = {f.name: f.dataType for f in spark.read.format("delta").load(self.path).schema}
        parts = []
        for values, files in groups.items():
            part = spark.read.parquet(*files)
            for name, value in json.loads(values).items():
                part = part.withColumn(name, F.lit(value).cast(kinds.get(name, StringType())))
            parts.append(part)
        rows = reduce(DataFrame.unionByName, parts) if parts else None
        # a table may name its columns otherwise in its files
        return rows if rows is None or kinds.keys() >= set(rows.columns) else None

    def read_held(
        self, spark: SparkSession, at: OutputPosition, schema: StructType, run: str
    ) -> DataFrame:
        if at.version is None:
            return super().read_held(spark, at, schema, run)
        rows = _at_version(spark, self.path, at.version)
        missing = [name for name in schema.names if name not in rows.columns]
        if missing:
            raise EbbtideError(
                f"The table at {self.path} has no column {', '.join(missing)}, which the results "
                "have.",
                "Reprocess into a table that the pipeline's stream has written.",
            )
        return rows.select(*map(quote_column, schema.names))

    def write_chunk(self, rows: DataFrame, by: Provenance, number: int) -> None:
        rows.write.mode("overwrite").parquet(f"{self._stage(by)}/{_STAGED_CHUNK}={number}")

    def publish(
        self, spark: SparkSession, by: Provenance, replaced: ReplacedRange, at: OutputPosition
    ) -> None:
        """Put all staged chunks in place of the range, in one commit; a second time, do nothing.

        Steps: **1** the staged rows; **2** what of the table goes, and what stays: neighbours of
        sessions, and what the live stream has written since the plan; **3** one commit, marked with
        the run; **4** what the stream wrote between 2 and 3 is put back; **5** the stage away.
        """
        if not path_exists(spark, self._stage(by)):
            return
        # 1
        rows = spark.read.parquet(self._stage(by)).drop(_STAGED_CHUNK)
        # 2
        predicate = None
        if (version := newest_version(self.path)) is not None:
            table = _at_version(spark, self.path, version)
            rows, predicate = _replacement(table, rows, replaced)
            if replaced.keeps_additions and at.version is not None:
                added = _added(spark, self.path, predicate, at.version, version)
                rows = rows.unionByName(added)
        # 3
        writer = (
            rows.write.format("delta")
            .mode("append" if predicate is None else "overwrite")
            .option("txnAppId", f"ebbtide-{by.run}")
            .option("txnVersion", 1)
            .option("userMetadata", json.dumps(by.headers))
            .options(**self.sink.options)
        )
        (writer if predicate is None else writer.option("replaceWhere", predicate)).save(self.path)
        # 4
        if predicate is not None and version is not None:
            put_back(spark, self.path, predicate, version, by)
        # 5
        self.discard(spark, by)

    def discard(self, spark: SparkSession, by: Provenance) -> None:
        if path_exists(spark, self._stage(by)):
            remove_tree(spark, self._stage(by))

    def _stage(self, by: Provenance) -> str:
        return f"{self.path}/{_STAGE}/{by.run}"


def find_commit(path: str, run: BatchRun) -> DeltaCommit | None:
    """The commit that one run of a batch made; None if the log does not have it any more."""
    log = DeltaLog(path)
    for version in sorted(log.versions, reverse=True):
        commit = log.read(version)
        if commit is None:
            continue
        at = commit.info.get("timestamp", run.ended_ms)
        if at < run.started_ms - _LATE_MS:
            return None
        if at <= run.ended_ms + _LATE_MS and any(
            writer in run.query_ids and batch == run.batch for writer, batch in commit.noted.items()
        ):
            return commit
    return None


def _at_version(spark: SparkSession, path: str, version: int) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(path)


def _added(spark: SparkSession, path: str, predicate: str, since: int, until: int) -> DataFrame:
    """The rows of a part of a table that it got between two versions."""
    before, after = (_at_version(spark, path, at).where(F.expr(predicate)) for at in (since, until))
    return after.exceptAll(before)


def put_back(spark: SparkSession, path: str, predicate: str, read: int, by: Provenance) -> None:
    """Append what the stream wrote into the range after it was read and before it was replaced."""
    ours = next(
        entry["version"]
        for entry in load_table(path).history()
        if by.run in str(entry.get("userMetadata"))
    )
    if ours > read + 1:
        _added(spark, path, predicate, read, ours - 1).write.format("delta").mode("append").option(
            "txnAppId", f"ebbtide-{by.run}"
        ).option("txnVersion", 2).save(path)


def _replacement(
    table: DataFrame, rows: DataFrame, replaced: ReplacedRange
) -> tuple[DataFrame, str]:
    """The rows that replace a part of the table, and the predicate that selects it."""
    begins = replaced.begins
    assert begins is not None
    if replaced.doomed is None:
        start, end = (_literal(at) for at in (replaced.start, replaced.end))
        return rows, f"{begins} >= {start} AND {begins} < {end}"
    # a session may begin before the range and have swallowed others that lie outside of it
    doomed, start_of = replaced.doomed(table, rows), F.expr(begins)
    bounds = doomed.unionByName(rows).agg(
        F.unix_micros(F.min(start_of)).alias("first"), F.unix_micros(F.max(start_of)).alias("last")
    )
    edges = bounds.collect()[0]
    predicate = (
        f"{begins} >= timestamp_micros({edges['first'] or 0}) "
        f"AND {begins} <= timestamp_micros({edges['last'] or 0})"
    )
    kept = table.where(F.expr(predicate)).exceptAll(doomed.where(F.expr(predicate)))
    return kept.unionByName(rows), predicate


def _literal(at: datetime) -> str:
    return f"TIMESTAMP '{at.isoformat(timespec='microseconds')}'"


SOURCE, SINK = DeltaStream, DeltaOutput
