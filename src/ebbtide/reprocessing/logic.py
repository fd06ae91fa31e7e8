"""Compute a pipeline's results over any range of event time from its archive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.archive import Archive, open_table, select_range
from ebbtide.config import Settings
from ebbtide.connectors.spark import Decoder, make_decoder
from ebbtide.errors import UsageError
from ebbtide.pipeline import Pipeline
from ebbtide.reprocessing.compare import belongs
from ebbtide.reprocessing.ranges import Chunk, EventTimeRange, Shape, needed_input
from ebbtide.reprocessing.sessions import END, START, with_sessions
from ebbtide.reprocessing.shape import find_sessions, find_shape
from ebbtide.times import EPOCH

_CUT_OFF = timedelta(milliseconds=1)
"""What the table's log leaves off the newest event time."""


@dataclass(frozen=True)
class Logic:
    """The same transform that the stream runs, over archived records instead."""

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
        """Read the transform's plan; refused if a range of event time would not do."""
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
        """The archived records of a span as they lay in Kafka."""
        return select_range(self._table, reads.start, reads.end)

    def rows(self, reads: EventTimeRange, metrics: str | Observation = "reprocess") -> DataFrame:
        """The archived records of a span, decoded as the stream decodes them."""
        return self.decoder.decode(self.raw(reads), metrics)

    def results(self, reads: EventTimeRange, metrics: str | Observation = "reprocess") -> DataFrame:
        """What the pipeline says of a span; results at its edges may be cut."""
        return self.pipeline.query(self.rows(reads, metrics))

    def chunk_results(self, chunk: Chunk, metrics: str | Observation = "reprocess") -> DataFrame:
        """The results that belong to a chunk, whole."""
        reads, first = self.reach(chunk).reads, chunk.number == 1
        if (sessions := self.pipeline.sessions) is not None:
            # its results do not say when they begin, but its rows do
            rows = with_sessions(self.rows(reads, metrics), self.pipeline, sessions)
            shape = replace(self.shape, start=START, end=END)
            own = rows.where(belongs(shape, chunk.owns, first=first)).drop(START, END)
            return self.pipeline.query(own)
        own_results = belongs(self.shape, chunk.owns, first=first)
        return self.results(reads, metrics).where(_held_back(own_results))

    def reach(self, chunk: Chunk) -> Chunk:
        """A chunk that reads all that its results need.

        A session may begin long before the range and end long after it. So: look one gap further
        than these sessions, and again, until none touches the edge of what was read.
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
            nothing = look * 0
            reads = reads.grown(look if back else nothing, look if ahead else nothing)

    def _touched(self, chunk: Chunk, reads: EventTimeRange) -> tuple[bool, bool, datetime]:
        """Whether a session that a chunk owns may go on before or after what was read.

        And when the last of them has ended, or else the chunk.
        """
        gap, archive = self.shape.size, self.archive
        plain = replace(self.shape, start="start", end="end")
        bounds = (
            self._sessions(reads)
            .where(_held_back(belongs(plain, chunk.owns, first=chunk.number == 1)))
            .agg(
                F.min("start") <= F.lit(reads.start + gap),
                F.max("end") >= F.lit(reads.end),
                F.unix_micros(F.max("end")),
            )
            .collect()[0]
        )
        back, ahead, last = bool(bounds[0]), bool(bounds[1]), bounds[2]
        ended = chunk.owns.end if last is None else EPOCH + timedelta(microseconds=last)
        older = archive.earliest is not None and archive.earliest < reads.start
        newer = archive.latest is not None and archive.latest + _CUT_OFF >= reads.end
        return back and older, ahead and newer, max(ended, chunk.owns.end)

    def _sessions(self, reads: EventTimeRange) -> DataFrame:
        """The sessions of a span: `start`, `end`."""
        if (sessions := self.pipeline.sessions) is None:
            return find_sessions(self.spark, self.results(reads))
        rows = with_sessions(self.rows(reads), self.pipeline, sessions)
        return rows.select(F.col(START).alias("start"), F.col(END).alias("end"))


def _held_back(condition: Column) -> Column:
    """A filter that stays where it is: above the sessions, not among the events they are made of.

    Spark's optimizer (4.2) takes a session for a grouping column like any other, and moves a filter
    on it below the aggregation, where each event is still a session of its own. It leaves alone
    what is not deterministic.
    """
    return F.when(F.monotonically_increasing_id() >= 0, condition)
