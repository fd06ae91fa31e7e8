"""Commit the files of a batch to an archive's table, as Delta's streaming sink would."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.archive.layout import COLUMNS, PARTITION_COLUMNS, TABLE_PROPERTIES
from ebbtide.errors import ArchiveError

_FEATURES = {"appendOnly", "invariants"}
_FREE_PROPERTIES = {
    *("delta.checkpointInterval", "delta.enableExpiredLogCleanup", "delta.logRetentionDuration"),
    *("delta.deletedFileRetentionDuration", "delta.minReaderVersion", "delta.minWriterVersion"),
}
"""Properties of a table that do not concern how its files are written."""


@dataclass(frozen=True)
class TableWriter:
    """Delta's transactions on the table of an archive, through a session's JVM."""

    spark: SparkSession
    path: str

    def begin(self, query: str, batch: int) -> BatchTransaction | None:
        """A transaction for a batch; None if the table has the batch already."""
        transaction = self._delta.DeltaLog.forTable(self._session, self.path).startTransaction()
        if transaction.txnVersion(query) >= batch:
            return None
        if (problem := self._why_not(transaction)) is not None:
            raise ArchiveError(
                f"The table at {self.path} was changed while the archive ran: {problem}.",
                "Start the archive again.",
            )
        return BatchTransaction(self, transaction, query, batch)

    def find_folder(self) -> str | None:
        """The local folder of the table; None if it lies elsewhere, or only Delta can write it."""
        log = self._delta.DeltaLog.forTable(self._session, self.path)
        place = log.dataPath().toUri()
        if place.getScheme() != "file" or self._why_not(log.startTransaction()):
            return None
        return str(place.getPath())

    @staticmethod
    def _why_not(transaction: Any) -> str | None:
        metadata = json.loads(transaction.metadata().json())["metaData"]
        protocol = json.loads(transaction.protocol().json())["protocol"]
        return why_not_plain(metadata, protocol)

    @property
    def _session(self) -> Any:
        return self.spark._jsparkSession

    @property
    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm

    @property
    def _delta(self) -> Any:
        return self._jvm.org.apache.spark.sql.delta


@dataclass(frozen=True)
class BatchTransaction:
    """What one batch does to the table."""

    writer: TableWriter
    transaction: Any
    query: str
    batch: int

    def commit(self, added: list[str]) -> None:
        """Add files, with the query and the batch, in one commit; then Delta merges small files."""
        jvm, delta = self.writer._jvm, self.writer._delta
        noted = {"appId": self.query, "version": self.batch, "lastUpdated": _now_ms()}
        actions = [json.dumps({"txn": noted}), *added]
        from_json = delta.actions.Action.fromJson
        self._register_metrics(added)
        if added:
            self.transaction.registerPostCommitHook(
                getattr(getattr(delta.hooks, "AutoCompact$"), "MODULE$")
            )
        mode = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        update = getattr(delta, "DeltaOperations$StreamingUpdate")
        operation = update(mode, self.query, self.batch, jvm.scala.Option.empty())
        python = jvm.org.apache.spark.api.python.PythonUtils
        self.transaction.commit(python.toSeq([from_json(line) for line in actions]), operation)

    def _register_metrics(self, added: Iterable[str]) -> None:
        """Have Delta note in the commit how much was written."""
        files = [json.loads(line)["add"] for line in added]
        counts = {
            "numAddedFiles": len(files),
            "numRemovedFiles": 0,
            "numOutputRows": sum(json.loads(file["stats"])["numRecords"] for file in files),
            "numOutputBytes": sum(file["size"] for file in files),
        }
        jvm, context = self.writer._jvm, self.writer.spark.sparkContext._jsc.sc()
        create = jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric
        metrics = {name: create(context, name) for name in counts}
        for name, count in counts.items():
            metrics[name].set(count)
        as_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(metrics)
        self.transaction.registerSQLMetrics(self.writer._session, as_map)


def why_not_plain(metadata: Mapping[str, Any], protocol: Mapping[str, Any]) -> str | None:
    """Why a table is not as an archive creates it, by the actions of Delta's log; None if it is."""
    if "schemaString" not in metadata:
        return "it is gone"
    features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    if more := features - _FEATURES:
        return f"it has the feature {', '.join(sorted(more))}"
    if not features and (protocol["minReaderVersion"], protocol["minWriterVersion"]) > (1, 2):
        return f"it has writer version {protocol['minWriterVersion']}"
    schema = json.loads(metadata["schemaString"])
    if [field for field in schema["fields"] if field["metadata"] or not field["nullable"]]:
        return "its columns have properties of their own"
    names = [*COLUMNS, *PARTITION_COLUMNS]
    if [field["name"] for field in schema["fields"]] != names:
        return "its columns are in another order"
    for name, value in metadata.get("configuration", {}).items():
        is_free = name in _FREE_PROPERTIES or not name.startswith("delta.")
        if not is_free and TABLE_PROPERTIES.get(name) != value:
            return f"it has the property {name} = {value}"
    return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
