"""Choose how a query runs where latency counts more than throughput, and say what that gives up.

The latency profile has three modes, of which a query runs in the first that Spark allows for it
(docs/guide/profiles.md): real-time mode, which passes each record on as it comes; asynchronous
progress, which writes a batch's logs beside the batch; and batches as ever, with settings for small
ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.config import Settings, SparkFlags
from ebbtide.connectors import connector_of
from ebbtide.connectors.spark import rows as plans
from ebbtide.notes import RunMode
from ebbtide.pipeline import Pipeline
from ebbtide.runtime import cluster, versions

Flags = TypeVar("Flags", bound=SparkFlags)
LATENCY = "latency"
REAL_TIME_SECONDS = 10
"""How long a batch of real-time mode lasts. A stop waits for its end, a crash repeats what it has
written; but between two batches, records wait for about as long as a small batch takes."""
_SPARE = 1
"""Slots beside those of real-time mode, whose tasks never end: dead letters need one."""
SETTINGS = {
    # a commit of state then writes what has changed, and uploads whole files in the background
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""What the profile sets; the pipeline's own settings and `--conf` override it."""
_ASYNC = {
    "asyncProgressTrackingEnabled": "true",
    # every batch: otherwise batches are missing from the logs, and a stop repeats some
    "asyncProgressTrackingCheckpointIntervalMs": "0",
}
_SHORTEST_MS = 5_000
"""Spark refuses a shorter batch in real-time mode."""
_STATELESS = (
    *("CollectMetrics", "EventTimeWatermark", "Expand", "Filter", "Generate", "Project"),
    *("StreamingRelationV2", "SubqueryAlias"),
)
"""The nodes of a plan that keep no state, and that Spark allows in real-time mode."""


@dataclass(frozen=True)
class Chosen:
    """The mode in which a query runs, and what to tell the user about it."""

    mode: RunMode
    line: str | None = None

    def apply(
        self, writer: DataStreamWriter, *, available_now: bool, trigger: str | None
    ) -> DataStreamWriter:
        """Set the trigger of a writer, and whatever else the mode needs."""
        if self.mode == RunMode.REAL_TIME:
            # Spark asks for it; rows that no later batch changes are the same as with `append`
            writer = writer.outputMode("update")
            every: dict[str, Any] = {"realTime": trigger or f"{REAL_TIME_SECONDS} seconds"}
            return writer.trigger(**every)
        if self.mode == RunMode.ASYNC:
            writer = writer.options(**_ASYNC)
        if available_now:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=trigger) if trigger else writer


def session_settings(pipeline: Pipeline) -> Mapping[str, str]:
    """A pipeline's own settings, with those of its profile below."""
    return {**SETTINGS, **pipeline.conf} if pipeline.profile == LATENCY else pipeline.conf


def with_slots(pipeline: Pipeline, settings: Settings, flags: Flags) -> Flags:
    """On this machine, give real-time mode a slot for each of its tasks: they mostly wait."""
    master = cluster.find_master(flags.master, flags.conf, pipeline.conf)
    if pipeline.profile != LATENCY or master != "local[*]" or cluster.is_submitted():
        return flags
    tasks = connector_of(pipeline.source).open_source(pipeline, settings).real_time_tasks() or 0
    return replace(flags, master=f"local[{max(os.cpu_count() or 1, tasks + _SPARE)}]")


def choose_mode(
    pipeline: Pipeline,
    settings: Settings,
    rows: DataFrame,
    *,
    available_now: bool = False,
    is_limited: bool = False,
    trigger: str | None = None,
) -> Chosen:
    """The first mode of the pipeline's profile that Spark allows for its rows.

    A batch `is_limited` if it may have only so many records, which real-time mode does not heed.
    `trigger` is the time between batches, if one is set.
    """
    if pipeline.profile != LATENCY:
        return Chosen(RunMode.BATCHES)
    why = _why_no_async(pipeline, settings, rows, available_now)
    if why is not None:
        return Chosen(
            RunMode.BATCHES,
            f"Profile latency: batches, with settings for small ones ({why}). "
            "State is saved as changes; nothing is given up.",
        )
    why = _why_no_real_time(pipeline, settings, rows, is_limited, trigger)
    if why is not None:
        return Chosen(
            RunMode.ASYNC,
            f"Profile latency: asynchronous progress ({why}). The logs of a batch are written "
            "beside it: after a crash, the output of the last two or three batches may come twice.",
        )
    return Chosen(
        RunMode.REAL_TIME,
        "Profile latency: real-time mode. A batch is written to the logs and to the history when "
        f"it ends, every {REAL_TIME_SECONDS} seconds unless a trigger is set: a stop waits for "
        "that, a crash repeats its output, and a rewind plans its first batch again.",
    )


def _why_no_async(
    pipeline: Pipeline, settings: Settings, rows: DataFrame, available_now: bool
) -> str | None:
    """Why Spark does not allow asynchronous progress, or we have not tried it."""
    if available_now:
        return "the query ends when it has read what there is"
    sink = connector_of(pipeline.sink).open_sink(pipeline.sink, settings)
    if not sink.allows_real_time or pipeline.scope == "batch":
        return f"a query that writes to {pipeline.sink} allows no faster mode"
    source = connector_of(pipeline.source).open_source(pipeline, settings)
    if source.real_time_tasks() is None:
        return f"a query that reads {pipeline.source} allows no faster mode"
    analyzed = rows._jdf.queryExecution().analyzed()
    names = (str(node.getClass().getSimpleName()) for node in plans.walk_plan(analyzed))
    other = next((name for name in names if name not in _STATELESS), None)
    if other is not None:
        return f"its transform has {other}, which may keep state"
    return None


def _why_no_real_time(
    pipeline: Pipeline, settings: Settings, rows: DataFrame, is_limited: bool, trigger: str | None
) -> str | None:
    """Why a query without state does not run in real-time mode."""
    if versions.spark_version().minor != versions.REAL_TIME:
        return f"real-time mode is tried with Spark {versions.REAL_TIME} only"
    options = getattr(pipeline.source, "options", {})
    if is_limited or "maxoffsetspertrigger" in map(str.lower, options):
        return "real-time mode has no limit of records per batch"
    session = rows.sparkSession
    if trigger is not None:
        times: Any = session._jvm.org.apache.spark.sql.streaming.Trigger  # type: ignore[union-attr]
        if times.ProcessingTime(trigger).intervalMs() < _SHORTEST_MS:
            return f"a batch in real-time mode takes {_SHORTEST_MS // 1000} seconds or more"
    patterns = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]
    if rows._jdf.queryExecution().analyzed().containsPattern(patterns.PYTHON_UDF()):
        return "real-time mode has no functions in Python"
    source = connector_of(pipeline.source).open_source(pipeline, settings)
    slots, tasks = session.sparkContext.defaultParallelism, source.real_time_tasks() or 0
    if tasks + _SPARE > slots:
        return f"real-time mode needs {tasks + _SPARE} cores, and Spark has {slots}"
    return None
