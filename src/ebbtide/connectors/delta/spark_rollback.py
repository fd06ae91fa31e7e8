"""Roll a Delta table back with Spark, which knows every feature of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.checkpoint import SinkChange
from ebbtide.connectors.delta.log import EMPTY, MARK
from ebbtide.connectors.delta.rollback import (
    commits_since,
    is_marked,
    noted_after,
    require_unchanged,
)
from ebbtide.connectors.spark.rows import quote_table
from ebbtide.errors import CheckpointError

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# that all files are there was checked, however long ago they were taken out
_RETENTION = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"


def roll_back(spark: SparkSession, change: SinkChange, marks: Mapping[str, str]) -> None:
    """Restore a table; after an interruption, do what is left.

    Steps: **1** see again that nobody has written to it, as Spark took a while to start; **2** the
    commit, with our mark; **3** see that nobody wrote between 1 and 2, else take the commit back;
    **4** the batch noted under a function's name, in a commit of its own.
    """
    backup_id = marks[MARK]
    with _settings(spark, {_USER_METADATA: json.dumps(marks), _RETENTION: "false"}):
        if change.to_version != change.version and not is_marked(change, backup_id):
            # 1
            require_unchanged(change, backup_id)
            # 2
            if change.to_version == EMPTY:
                spark.sql(f"DELETE FROM {quote_table(change.path)}")
            else:
                assert change.to_version is not None
                _restore(spark, change.path, change.to_version)
        # 3
        try:
            require_unchanged(change, backup_id)
        except CheckpointError:
            _take_back(spark, change, backup_id)
            raise
        # 4
        if change.app is not None:
            _note(spark, change.path, change.app, noted_after(change))


def _take_back(spark: SparkSession, change: SinkChange, backup_id: str) -> None:
    """Restore the version before our commit, without our mark: nothing of ours is left."""
    commits = commits_since(change)
    ours = next((commit.version for commit in commits if commit.mark == backup_id), None)
    if ours is not None:
        spark.conf.unset(_USER_METADATA)
        _restore(spark, change.path, ours - 1)


def _restore(spark: SparkSession, path: str, version: int) -> None:
    spark.sql(f"RESTORE TABLE {quote_table(path)} TO VERSION AS OF {version}")


def _note(spark: SparkSession, path: str, app: str, batch: int) -> None:
    """Note a batch for a writer, a lower one than before; Delta's writers only go up."""
    jvm: Any = spark._jvm
    delta = jvm.org.apache.spark.sql.delta
    actions = jvm.java.util.ArrayList()
    actions.add(delta.actions.SetTransaction(app, batch, jvm.scala.Option.empty()))
    operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
    as_scala = jvm.org.apache.spark.api.python.PythonUtils.toSeq(actions)
    delta.DeltaLog.forTable(spark._jsparkSession, path).startTransaction().commit(
        as_scala, operation
    )


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set what belongs to this change alone."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)
