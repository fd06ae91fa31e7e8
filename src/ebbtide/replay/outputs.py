"""A batch's entry in the history in, the rows that the sink got from that run of it out."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Any
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructType

from ebbtide.checkpoint import Backup, Timeline, read_logs
from ebbtide.config import Settings
from ebbtide.connectors.delta.source import is_url
from ebbtide.connectors.files.sink import files_of_batch
from ebbtide.connectors.kafka.spark_sink import (
    PIPELINE_HEADER,
    TIMELINE_HEADER,
    TIMESTAMP_FORMAT,
    to_records,
)
from ebbtide.connectors.kafka.spark_source import options
from ebbtide.errors import EbbtideError
from ebbtide.history import Entry, History
from ebbtide.pipeline import Delta, Files, Kafka, Pipeline
from ebbtide.replay.verdicts import ReplayVerdict
from ebbtide.storage import Folder, open_folder
from ebbtide.times import parse_time

_LATE_MS = 1_000
"""A sink may note a commit a moment before or after the clock by which the batch was timed."""
_SELF_DESCRIBING = ("parquet", "orc")
_NOT_SHOWN = "the differing rows cannot be shown"


@dataclass(frozen=True)
class Written:
    """What the sink has of one run of a batch."""

    rows: DataFrame | None
    """`key` and `row`, both text; None if they cannot be told from others."""
    reason: str = ""


def as_text(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Result rows as `key` and `row`: as the sink writes them, or as JSON."""
    none = F.lit(None).cast("string").alias("key")
    if isinstance(pipeline.sink, Kafka):
        records = to_records(rows, pipeline.sink)
        key = F.col("key").cast("string") if "key" in records.columns else none
        return records.select(key, F.col("value").cast("string").alias("row"))
    names = [F.col(_quoted(name)) for name in rows.columns]
    form = {"timestampFormat": TIMESTAMP_FORMAT, "ignoreNullFields": "false"}
    return rows.select(none, F.to_json(F.struct(*names), form).alias("row"))


def read_written(
    spark: SparkSession,
    pipeline: Pipeline,
    settings: Settings,
    entry: Entry,
    schema: StructType,
    origin: Folder,
) -> Written:
    """The rows that one run of a batch wrote; `origin` is the checkpoint of the first run."""
    if entry.output is not None and entry.output.rows == 0:
        return Written(as_text(spark.createDataFrame([], schema), pipeline))
    match pipeline.sink:
        case Kafka() as sink:
            return Written(_read_topic(spark, sink, pipeline, settings, entry))
        case Delta(path=path):
            rows = _read_table(spark, settings.table(path), entry, origin)
        case Files() as sink:
            rows = _read_files(spark, sink, entry, schema, origin)
        case _:
            return Written(None, "its sink keeps nothing that could be read")
    if rows is None:
        return Written(None, "the log of its sink does not show them any more")
    if set(rows.columns) == set(schema.names):
        rows = rows.select(*(_quoted(name) for name in schema.names))
    return Written(as_text(rows, pipeline))


def show_rows(
    verdict: ReplayVerdict,
    read_first: Callable[[], Written],
    read_again: Callable[[], Written],
    shown: int | None,
) -> ReplayVerdict:
    """A verdict with the rows that differ: those that only one of two runs wrote."""
    try:
        return _with_rows(verdict, read_first(), read_again(), shown)
    except (PySparkException, EbbtideError) as error:
        return replace(verdict, reason=f"{_NOT_SHOWN}: {str(error).strip().splitlines()[0]}")


def _with_rows(
    verdict: ReplayVerdict, first: Written, now: Written, shown: int | None
) -> ReplayVerdict:
    if first.rows is None or now.rows is None:
        return replace(verdict, reason=f"{_NOT_SHOWN}: {first.reason or now.reason}")
    old, new = first.rows.persist(), now.rows.persist()  # read once, and looked at several times
    try:
        return _compared(verdict, old, new, shown)
    finally:
        old.unpersist()
        new.unpersist()


def _compared(
    verdict: ReplayVerdict, old: DataFrame, new: DataFrame, shown: int | None
) -> ReplayVerdict:
    for rows, wrote, run in ((old, verdict.old_rows, "first"), (new, verdict.new_rows, "second")):
        if (found := rows.count()) != wrote:
            lacks = f"of its {run} run, which wrote {wrote:,}, {found:,} are found"
            return replace(verdict, reason=f"{_NOT_SHOWN}: {lacks}")
    plus, minus = new.exceptAll(old), old.exceptAll(new)
    added, removed = plus.count(), minus.count()
    return replace(
        verdict,
        added=added,
        removed=removed,
        new=_texts(plus, shown),
        old=_texts(minus, shown),
        reason="" if added or removed else "as text, the rows are the same",
    )


def _texts(rows: DataFrame, shown: int | None) -> tuple[str, ...]:
    ordered = rows.orderBy("row")
    return tuple(r["row"] for r in (ordered if shown is None else ordered.limit(shown)).collect())


def _read_topic(
    spark: SparkSession, sink: Kafka, pipeline: Pipeline, settings: Settings, entry: Entry
) -> DataFrame:
    """The records of the time in which the batch ran, without those that say they are others'."""
    start, end = (_millis(parse_time(at)) for at in (entry.started, entry.ended))
    records = (
        spark.read.format("kafka")
        .option("subscribe", sink.topic)
        .option("startingTimestamp", start)
        .option("startingOffsetsByTimestampStrategy", "latest")
        .option("endingTimestamp", end + 1)
        .option("includeHeaders", "true")
        .options(**options(sink, settings))
        .load()
        .where(F.unix_millis("timestamp").between(start, end))
    )
    for name, ours in ((PIPELINE_HEADER, pipeline.name), (TIMELINE_HEADER, entry.timeline)):
        said = F.expr(f"try_element_at(filter(headers, h -> h.key = '{name}'), -1).value")
        records = records.where(said.isNull() | (said.cast("string") == F.lit(ours)))
    return records.select(
        F.col("key").cast("string").alias("key"), F.col("value").cast("string").alias("row")
    )


def _read_table(spark: SparkSession, path: str, entry: Entry, origin: Folder) -> DataFrame | None:
    """The files that the batch's commit added, each with the values of its partition."""
    ids = Backup.query_ids(origin, read_logs(origin).query_id)
    actions = _find_commit(open_folder(path), entry, ids)
    if actions is None:
        return None
    groups: dict[str, list[str]] = {}
    for action in actions:
        if "add" in action:
            values = json.dumps(action["add"]["partitionValues"], sort_keys=True)
            file = unquote(action["add"]["path"])
            groups.setdefault(values, []).append(file if is_url(file) else f"{path}/{file}")
    kinds = {f.name: f.dataType for f in spark.read.format("delta").load(path).schema}
    parts = []
    for values, files in groups.items():
        part = spark.read.parquet(*files)
        for name, value in json.loads(values).items():
            part = part.withColumn(name, F.lit(value).cast(kinds.get(name, StringType())))
        parts.append(part)
    rows = reduce(DataFrame.unionByName, parts) if parts else None
    # a table may name its columns otherwise in its files
    return rows if rows is None or kinds.keys() >= set(rows.columns) else None


def _find_commit(
    folder: Folder, entry: Entry, ids: Collection[str]
) -> list[Mapping[str, Any]] | None:
    """The actions of the commit that one run of a batch made; None if the log has it no more."""
    start, end = (_millis(parse_time(at)) for at in (entry.started, entry.ended))
    names = [name for name in folder.names("_delta_log") if name.removesuffix(".json").isdigit()]
    for name in reversed(names):
        text = folder.read("_delta_log", name) or ""
        actions = [json.loads(line) for line in text.splitlines() if line]
        said: Mapping[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        at = said.get("timestamp", end)
        if at < start - _LATE_MS:
            return None
        noted = [a["txn"] for a in actions if "txn" in a]
        if at <= end + _LATE_MS and any(
            txn["appId"] in ids and txn["version"] == entry.batch for txn in noted
        ):
            return actions
    return None


def _read_files(
    spark: SparkSession, sink: Files, entry: Entry, schema: StructType, origin: Folder
) -> DataFrame | None:
    """The files that the sink's log names for a batch; a rewind has set those of its run aside."""
    backup_id = None
    if not _ran_by(Timeline.read(origin), entry):
        ran = [b.id for b in Backup.read_all(origin) if _ran_by(b.timeline, entry)]
        if not ran:
            return None
        backup_id = ran[-1]
    folder = open_folder(sink.location)
    paths = files_of_batch(folder, entry.batch, backup_id)
    if not paths:
        return None
    reader = spark.read.format(sink.format).options(**sink.options)
    if sink.format not in _SELF_DESCRIBING:
        reader = reader.schema(schema)
    return reader.load([folder.path(path) for path in paths])


def _ran_by(timeline: Timeline, entry: Entry) -> bool:
    return bool(History((entry,)).of(timeline))


def _millis(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
