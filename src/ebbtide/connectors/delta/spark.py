"""Read and write a Delta table with Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from ebbtide.checks import Check, CheckKind
from ebbtide.connectors.delta.log import (
    DeltaCommit,
    DeltaLog,
    find_state,
    is_url,
    newest_version,
    open_table,
    table_errors,
)
from ebbtide.connectors.spark.rows import (
    doubt_partitions,
    path_exists,
    quote_column,
    read_partitions,
    remove_tree,
)
from ebbtide.connectors.streams import (
    RUN_HEADER,
    BatchRun,
    OutputPosition,
    Provenance,
    ReplacedRange,
    SparkSink,
    SparkSource,
    WrittenRows,
)
from ebbtide.errors import EbbtideError, first_line
from ebbtide.pipeline import Delta

_STAGE, _STAGED_CHUNK = "_ebbtide", "_ebbtide_chunk"
_LATE_MS = 1_000
"""How far the time of a sink's commit may lie outside that of its batch."""
_READ, _REPLACED = "ebbtide-read-version", "ebbtide-replaced"
"""In the commit of a run: the version of the table that it goes by, and what it replaces."""
_BY_SINK = "STREAMING UPDATE"
"""The operation of a commit that the streaming sink itself made."""
_ATTEMPTS = 20
"""How often a commit is tried while others write to the same part of the table."""
_S3 = ("s3", "s3a", "s3n")


class DeltaStream(SparkSource):
    """A Delta table as a stream of rows."""

    def read_stream(self, spark: SparkSession) -> DataFrame:
        source = self.pipeline.source
        assert isinstance(source, Delta)
        path = self.settings.table(source.path)
        try:
            return spark.readStream.format("delta").options(**source.options).load(path)
        except AnalysisException as error:
            cause = first_line(error)
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
        if (commit := find_commit(self.path, run)) is None:
            return self.as_written(None, schema)
        rows = self._read_added(spark, commit, schema)
        written = self.as_written(rows, schema)
        return replace(written, doubt=written.doubt or _doubt(commit, written, schema))

    def _read_added(
        self, spark: SparkSession, commit: DeltaCommit, schema: StructType
    ) -> DataFrame | None:
        kinds = {f.name: f.dataType for f in spark.read.format("delta").load(self.path).schema}
        files = [(unquote(added["path"]), added["partitionValues"]) for added in commit.of("add")]
        places = [(file if is_url(file) else f"{self.path}/{file}", of) for file, of in files]
        rows = read_partitions(lambda paths: spark.read.parquet(*paths), places, kinds)
        if rows is None:  # the batch wrote none
            return spark.createDataFrame([], schema)
        # a table may name its columns otherwise in its files
        if not kinds.keys() >= set(rows.columns):
            return None
        names = {name.lower(): name for name in schema.names}
        return rows.withColumnsRenamed({n: names.get(n.lower(), n) for n in rows.columns})

    def read_held(
        self, spark: SparkSession, at: OutputPosition, schema: StructType, run: str
    ) -> DataFrame:
        if at.version is None:
            return super().read_held(spark, at, schema, run)
        _require_same(self.path, at)
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

    def check_writers(self, spark: SparkSession) -> Check | None:
        conf = dict(spark.sparkContext.getConf().getAll())
        return check_log_store(self.path, conf.get)

    def publish(
        self, spark: SparkSession, by: Provenance, replaced: ReplacedRange, at: OutputPosition
    ) -> None:
        """Put all staged chunks in place of the range, in one commit; a second time, do nothing.

        Steps: **1** the staged rows; **2** what of the table goes, and what stays: neighbours of
        sessions, and what the live stream has written since the plan; **3** one commit, marked with
        the run, the version that was read and the range; where others wrote meanwhile, again from
        2; **4** what the stream wrote between 2 and 3 is put back; **5** the stage away.
        """
        if not path_exists(spark, self._stage(by)):
            return
        _require_same(self.path, at)
        try:
            ours = find_run(self.path, by.run, at) or self._commit(spark, by, replaced, at)
            # 4
            put_back(spark, self.path, ours)
        except (PySparkException, Py4JError):
            if at.version is None or _is_whole(self.path, at.version):
                raise
            raise EbbtideError(
                f"Version {at.version} of the table at {self.path}, with which the run began, is "
                "gone: its log was cleaned up or its files were vacuumed.",
                "Start a new reprocess.",
            ) from None
        # 5
        self.discard(spark, by)

    def _commit(
        self, spark: SparkSession, by: Provenance, replaced: ReplacedRange, at: OutputPosition
    ) -> DeltaCommit:
        """Steps 1 to 3."""
        # 1
        staged = spark.read.parquet(self._stage(by)).drop(_STAGED_CHUNK)
        for attempt in range(_ATTEMPTS):
            try:
                self._replace(spark, staged, by, replaced, at)
                break
            except (PySparkException, Py4JError) as error:
                if not _is_conflict(error) or attempt + 1 == _ATTEMPTS:
                    raise
        if (ours := find_run(self.path, by.run, at)) is None:
            raise EbbtideError(
                f"The log of the table at {self.path} does not show the commit of run {by.run} any "
                "more, so whether all of it is in place cannot be told.",
                "Start a new reprocess.",
            )
        return ours

    def _replace(
        self,
        spark: SparkSession,
        rows: DataFrame,
        by: Provenance,
        replaced: ReplacedRange,
        at: OutputPosition,
    ) -> None:
        # 2
        predicate = None
        if (version := newest_version(self.path)) is not None:
            held = _at_version(spark, self.path, version)
            rows, predicate = _replacement(held, rows, replaced)
            if replaced.keeps_additions and at.version is not None:
                added = _added(spark, self.path, predicate, at.version, version)
                rows = rows.unionByName(added)
        # 3
        mark = {**by.headers, _READ: version, _REPLACED: predicate}
        writer = (
            rows.write.format("delta")
            .mode("append" if predicate is None else "overwrite")
            .option("txnAppId", _app(by.run))
            .option("txnVersion", 1)
            .option("userMetadata", json.dumps(mark))
            .options(**self.sink.options)
        )
        (writer if predicate is None else writer.option("replaceWhere", predicate)).save(self.path)

    def discard(self, spark: SparkSession, by: Provenance) -> None:
        if path_exists(spark, self._stage(by)):
            remove_tree(spark, self._stage(by))

    def _stage(self, by: Provenance) -> str:
        return f"{self.path}/{_STAGE}/{by.run}"


def _is_conflict(error: Exception) -> bool:
    """Whether a commit failed because of somebody else's; Python may have its own class for it."""
    java = getattr(error, "java_exception", None)
    name = java.getClass().getName() if java else type(error).__module__
    return name.startswith(("io.delta.exceptions.", "delta.exceptions."))


def _doubt(commit: DeltaCommit, written: WrittenRows, schema: StructType) -> str:
    """Why a commit may hold other rows than those that Delta was given; empty if it does not."""
    if commit.operation != _BY_SINK:
        return "a function of the job wrote the table, perhaps other rows than it got"
    given = {f.name: f.dataType.simpleString() for f in schema}
    own = [name for name, kind in written.types.items() if given.get(name) != kind]
    if own:
        return f"its table may have computed or cast {', '.join(own)} itself"
    partitions = (added["partitionValues"] for added in commit.of("add"))
    kinds = {f.name.lower(): f.dataType for f in schema}
    folded = ({name.lower(): value for name, value in values.items()} for values in partitions)
    return doubt_partitions(folded, kinds)


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


def put_back(spark: SparkSession, path: str, ours: DeltaCommit) -> None:
    """Append what the stream wrote into the range after it was read and before it was replaced.

    What it wrote after our transaction had begun is not lost: the transaction did not see it.
    """
    mark = json.loads(ours.info["userMetadata"])
    read, predicate = mark[_READ], mark[_REPLACED]
    begun = int(ours.info.get("readVersion", ours.version - 1))
    if predicate is not None and begun > read:
        writer = _added(spark, path, predicate, read, begun).write.format("delta").mode("append")
        writer.option("txnAppId", _app(mark[RUN_HEADER])).option("txnVersion", 2).save(path)


def find_run(path: str, run: str, at: OutputPosition) -> DeltaCommit | None:
    """The commit of a run, if it has made one since it began."""
    log = DeltaLog(path)
    began = -1 if at.version is None else at.version
    commits = log.after(began, log.newest) if log.versions else []
    marked = (c for c in reversed(commits) if RUN_HEADER in str(c.info.get("userMetadata")))
    return next((c for c in marked if json.loads(c.info["userMetadata"])[RUN_HEADER] == run), None)


def check_log_store(path: str, conf: Callable[[str], str | None]) -> Check | None:
    """Refuse a table in S3 to which two drivers would commit without noticing each other.

    >>> check_log_store("/tables/visits", {}.get) is None
    True
    >>> check_log_store("s3a://lake/visits", {}.get).next
    'Set spark.delta.logStore.s3a.impl to io.delta.storage.S3DynamoDBLogStore for both, here with \
--conf. If nothing else writes the table now, set it to io.delta.storage.S3SingleDriverLogStore.'
    """
    scheme = urlsplit(path).scheme
    setting = f"spark.delta.logStore.{scheme}.impl"
    names = (setting, "spark.delta.logStore.class")
    if scheme not in _S3 or any(conf(n) or conf(n.removeprefix("spark.")) for n in names):
        return None
    return CheckKind.OUTPUT.refuse(
        f"the stream and the reprocess would both commit to {path}, and in S3 one of two commits "
        "can be lost unless both use a log store for several drivers",
        f"Set {setting} to io.delta.storage.S3DynamoDBLogStore for both, here with --conf. If "
        "nothing else writes the table now, set it to io.delta.storage.S3SingleDriverLogStore.",
    )


def _require_same(path: str, at: OutputPosition) -> None:
    """Refuse a table that is another one than when the run began."""
    state = find_state(path) if at.table else None
    if at.table and (state is None or state.id != at.table):
        raise EbbtideError(
            f"The table at {path} is not the one that was there when the run began.",
            "Start a new reprocess.",
        )


def _is_whole(path: str, version: int) -> bool:
    """Whether a version of a table can still be read."""
    try:
        table = open_table(path)
        return table is not None and not table.missing(table.snapshot_files(version))
    except table_errors():
        return False


def _app(run: str) -> str:
    return f"ebbtide-{run}"


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
