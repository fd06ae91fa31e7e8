"""Compute a pipeline's results over any range of event time from its archive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.archive import Archive, open_table, select_range
from ebbtide.config import Settings
from ebbtide.connectors.spark import Decoder, make_decoder
from ebbtide.errors import UsageError
from ebbtide.pipeline import Pipeline, Sessions
from ebbtide.reprocessing.compare import belongs
from ebbtide.reprocessing.ranges import Chunk, EventTimeRange, Shape, needed_input
from ebbtide.reprocessing.shape import find_sessions, find_shape
from ebbtide.times import EPOCH

_MILLISECOND = timedelta(milliseconds=1)
"""The table's log rounds event times down to this."""
_START, _END = "_ebbtide_start", "_ebbtide_end"
_NUMBER, _MS = "_ebbtide_number", "_ebbtide_ms"


@dataclass(frozen=True)
class Logic:
    """The transform of the stream over archived records."""

    spark: SparkSession
    pipeline: Pipeline
    settings: Settings
    archive: Archive
    decoder: Decoder
    shape: Shape

    @classmethod
    def of(
        cls, spark: SparkSession, pipeline: Pipeline, settings: Settings, archive: Archive
    ) -> Logic:
        """Read the transform's plan; refused if results depend on more than a range."""
        decoder = make_decoder(spark, pipeline, pipeline.query)
        shape = find_shape(spark, pipeline, decoder.schema)
        if pipeline.sessions is not None and pipeline.sessions.key not in decoder.used:
            raise UsageError(
                f"Pipeline {pipeline.name} has sessions by {pipeline.sessions.key}, a field that "
                "its transform does not use.",
                f"It uses: {', '.join(decoder.used)}.",
            )
        return cls(spark, pipeline, settings, archive, decoder, shape)

    @cached_property
    def _table(self) -> DataFrame:
        return open_table(self.spark, self.archive)

    def raw(self, reads: EventTimeRange) -> DataFrame:
        """The archived records of a range as they were in Kafka."""
        return select_range(self._table, reads.start, reads.end)

    def rows(self, reads: EventTimeRange, metrics: str | Observation = "reprocess") -> DataFrame:
        """The archived records of a range, decoded as the stream decodes them."""
        return self.decoder.decode(self.raw(reads), metrics)

    def results(self, reads: EventTimeRange, metrics: str | Observation = "reprocess") -> DataFrame:
        """The results of the pipeline over a range; those at its edges may be incomplete."""
        return self.pipeline.query(self.rows(reads, metrics))

    def chunk_results(self, chunk: Chunk, metrics: str | Observation = "reprocess") -> DataFrame:
        """The complete results that belong to a chunk."""
        reads, first = self.reach(chunk).reads, chunk.number == 1
        if (sessions := self.pipeline.sessions) is not None:
            # the results do not tell when they begin, but the rows do
            rows = _with_sessions(self.rows(reads, metrics), self.pipeline, sessions)
            shape = replace(self.shape, start=_START, end=_END)
            own = rows.where(belongs(shape, chunk.owns, first=first)).drop(_START, _END)
            return self.pipeline.query(own)
        own_results = belongs(self.shape, chunk.owns, first=first)
        return self.results(reads, metrics).where(_not_pushed_down(own_results))

    def reach(self, chunk: Chunk) -> Chunk:
        """The chunk with a range to read that holds everything its results need.

        A session may begin long before the chunk and end long after it, so what is read grows
        until no session of the chunk touches its edges.
        """
        if self.shape.kind != "session":
            return chunk
        reads = needed_input(chunk.owns, self.shape)
        look = self.shape.size * 2
        while True:
            back, ahead, last = self._touched(chunk, reads)
            if not back and not ahead:
                return replace(chunk, reads=EventTimeRange(reads.start, last))
            look *= 2
            reads = reads.grown(look * back, look * ahead)

    def _touched(self, chunk: Chunk, reads: EventTimeRange) -> tuple[bool, bool, datetime]:
        """Whether sessions of a chunk may go on before and after what was read; and their end."""
        gap, archive = self.shape.size, self.archive
        plain = replace(self.shape, start="start", end="end")
        bounds = (
            self._sessions(reads)
            .where(_not_pushed_down(belongs(plain, chunk.owns, first=chunk.number == 1)))
            .agg(
                F.min("start") <= F.lit(reads.start + gap),
                F.max("end") >= F.lit(reads.end),
                F.unix_micros(F.max("end")),
            )
            .collect()[0]
        )
        back, ahead, last = bounds
        ended = chunk.owns.end if last is None else EPOCH + timedelta(microseconds=last)
        older = archive.earliest is not None and archive.earliest < reads.start
        newer = archive.latest is not None and archive.latest + _MILLISECOND >= reads.end
        return bool(back and older), bool(ahead and newer), max(ended, chunk.owns.end)

    def _sessions(self, reads: EventTimeRange) -> DataFrame:
        """The sessions of a range: `start`, `end`."""
        if (sessions := self.pipeline.sessions) is None:
            return find_sessions(self.spark, self.results(reads))
        rows = _with_sessions(self.rows(reads), self.pipeline, sessions)
        return rows.select(F.col(_START).alias("start"), F.col(_END).alias("end"))


def _with_sessions(rows: DataFrame, pipeline: Pipeline, sessions: Sessions) -> DataFrame:
    """Rows with the first event time of their session, and the time at which it ends."""
    key, gap_ms = F.col(f"`{sessions.key}`"), sessions.gap // _MILLISECOND
    time = F.col(f"`{pipeline.event_time}`").cast("timestamp")
    in_order = Window.partitionBy(key).orderBy(_MS)
    begins = F.col(_MS) - F.lag(_MS).over(in_order) >= gap_ms
    session = Window.partitionBy(key, _NUMBER)
    return (
        rows.withColumn(_MS, F.unix_millis(time))
        .withColumn("_ebbtide_begins", F.coalesce(begins, F.lit(False)).cast("int"))
        .withColumn(_NUMBER, F.sum("_ebbtide_begins").over(in_order))
        .withColumn(_START, F.min(time).over(session))
        .withColumn(_END, F.timestamp_millis(F.max(_MS).over(session) + gap_ms))
        .drop(_MS, _NUMBER, "_ebbtide_begins")
    )


def _not_pushed_down(condition: Column) -> Column:
    """A filter on sessions that Spark's optimizer does not push down.

    Spark 4.2 treats a session like any grouping column and pushes a filter on it below the
    aggregation, where each event is still its own session. It does not push down what is not
    deterministic.
    """
    return F.when(F.monotonically_increasing_id() >= 0, condition)
