"""What the sink got from two runs of a batch, compared row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ebbtide.checkpoint import Backup, Timeline, read_logs
from ebbtide.connectors import streams
from ebbtide.errors import EbbtideError
from ebbtide.history import Entry, History
from ebbtide.replaying.verdicts import ReplayVerdict
from ebbtide.storage import Folder
from ebbtide.times import parse_time

_NOT_SHOWN = "the differing rows cannot be shown"


def read_written(
    spark: SparkSession,
    sink: streams.SparkSink[Any],
    pipeline: str,
    entry: Entry,
    schema: StructType,
    origin: Folder,
) -> streams.WrittenRows:
    """The rows that one run of a batch wrote; `origin` is the checkpoint of the first run."""
    if entry.output is not None and entry.output.rows == 0:
        return streams.WrittenRows(sink.as_text(spark.createDataFrame([], schema)))
    started, ended = (
        round(parse_time(at).timestamp() * 1000) for at in (entry.started, entry.ended)
    )
    ids = Backup.query_ids(origin, read_logs(origin).query_id)
    backups = None
    if not _ran_by(Timeline.read(origin), entry):
        backups = tuple(b.id for b in Backup.read_all(origin) if _ran_by(b.timeline, entry))
    run = streams.BatchRun(pipeline, entry.batch, entry.timeline, started, ended, ids, backups)
    return sink.read_batch(spark, run, schema)


def _ran_by(timeline: Timeline, entry: Entry) -> bool:
    return bool(History((entry,)).of(timeline))


def show_rows(
    verdict: ReplayVerdict,
    read_first: Callable[[], streams.WrittenRows],
    read_again: Callable[[], streams.WrittenRows],
    shown: int | None,
) -> ReplayVerdict:
    """A verdict with the rows that differ: those that only one of two runs wrote."""
    try:
        return _with_rows(verdict, read_first(), read_again(), shown)
    except (PySparkException, EbbtideError) as error:
        return replace(verdict, reason=f"{_NOT_SHOWN}: {str(error).strip().splitlines()[0]}")


def _with_rows(
    verdict: ReplayVerdict, first: streams.WrittenRows, now: streams.WrittenRows, shown: int | None
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
