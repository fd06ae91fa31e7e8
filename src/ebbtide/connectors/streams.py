"""The interface by which Spark reads a pipeline's source and writes its sink.

Importing this module needs no Spark; opening a source or a sink does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ebbtide.checks import Check
from ebbtide.config import Settings
from ebbtide.errors import UsageError
from ebbtide.pipeline import Pipeline, Sink
from ebbtide.storage import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from ebbtide.checkpoint import Checkpoint
    from ebbtide.connectors.base import SinkPlace
    from ebbtide.connectors.spark import Decoder

S = TypeVar("S", bound=Sink)
PIPELINE_HEADER, TIMELINE_HEADER = "ebbtide-pipeline", "ebbtide-timeline"
BATCH_HEADER = "ebbtide-batch"
"""The pipeline, the timeline (each rewind begins one) and, where the sink knows it, the batch of a
record: by these a reader can tell a record that comes again."""
RUN_HEADER, SOURCE_HEADER = "ebbtide-run-id", "ebbtide-source"
"""Of a reprocessed record: the run, and the archive with its version."""


@dataclass(frozen=True)
class OpenSource:
    """The rows of a source and, where records can be broken, how they are decoded."""

    rows: DataFrame
    decoder: Decoder | None
    read_again: Callable[[Any, Any], DataFrame] | None = None
    """The rows of a batch that do not stream, by its start and end as its progress has them; None
    if a source cannot be read by such a range."""


@dataclass(frozen=True)
class StreamRead:
    """What a query that was not started reads from one source."""

    kind: str
    names: tuple[str, ...] = ()
    """The topics, the table's id or the folder; empty if the plan does not tell."""
    label: str = ""
    pattern: str | None = None
    """Of topics, instead of their names."""
    may_lose_data: bool = False
    """Whether it goes on where data that it should read is gone."""
    partitions: Mapping[str, frozenset[int]] | None = None
    """Of topics, if the query chooses them itself."""
    is_deep: bool = False
    """Of files, whether those in subfolders are read, too."""
    called: str = ""
    """The name that the query gives it (Spark 4.2)."""
    folder: str = ""
    """Its own in the checkpoint's `sources`: a source that is read in two places has one."""

    def __str__(self) -> str:
        return self.label or " ".join((self.kind, *self.names))


@dataclass(frozen=True)
class SourceLog:
    """Where a checkpoint keeps what one of its sources read, and the ends of the last batch."""

    checkpoint: Checkpoint
    name: str
    """Its folder in `sources`: a number, or the name that the query gives it (Spark 4.2)."""
    start: str | None
    end: str


@dataclass(frozen=True)
class LastRead:
    """What a source has read last."""

    names: tuple[str, ...] = ()
    """The topics, the table's id, or the folders of the files."""
    is_compared: bool = True
    """Whether Spark looks at it when a query goes on."""
    is_whole: bool = True
    """Whether the source's own log in the checkpoint has all that Spark looks for."""


def recognize_read(name: str, options: Mapping[str, str]) -> StreamRead:
    """What a plan reads, by Spark's name of the source and its options.

    >>> str(recognize_read("kafka", {"subscribe": "visits"}))
    'topic visits'
    """
    from ebbtide.connectors.registry import all_connectors

    found = (connector.source.recognize(name, options) for connector in all_connectors())
    return next((read for read in found if read), StreamRead(name.lower(), label=name))


def recognize_write(name: str, options: Mapping[str, str]) -> SinkPlace:
    """Where a writer writes, by Spark's name of the sink and its options.

    >>> recognize_write("kafka", {"topic": "totals"}).name
    'topic totals'
    """
    from ebbtide.connectors.base import SinkPlace
    from ebbtide.connectors.registry import all_connectors

    found = (connector.sink.recognize(name, options) for connector in all_connectors())
    return next((place for place in found if place), SinkPlace(name, name))


class SparkSource:
    """A pipeline's source as Spark reads it; a connector implements `read_stream`."""

    def __init__(self, pipeline: Pipeline, settings: Settings) -> None:
        self.pipeline, self.settings = pipeline, settings

    def read_stream(self, spark: SparkSession) -> DataFrame:
        """Every row, as it comes."""
        raise NotImplementedError

    def open_stream(
        self,
        spark: SparkSession,
        query: Callable[[DataFrame], DataFrame],
        max_offsets: int | None = None,
    ) -> OpenSource:
        """The source as a stream of rows with an event time; `query` is what is asked of them."""
        from ebbtide.connectors.spark.records import require_event_time

        if max_offsets is not None:
            raise UsageError(
                f"--max-offsets-per-trigger is for Kafka sources; pipeline {self.pipeline.name} "
                f"reads {type(self.pipeline.source).__name__.lower()}.",
                'Give the source options={"maxFilesPerTrigger": "…"} instead.',
            )
        return OpenSource(require_event_time(self.read_stream(spark), self.pipeline), None)

    def count_waiting(self, folder: Folder) -> int | None:
        """How many records a checkpoint has not read yet, if the source can tell at once."""
        return None

    def real_time_tasks(self) -> int | None:
        """How many tasks read it in real-time mode; None if it cannot be read so."""
        return None

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of a row."""
        return self.read_stream(spark).schema

    def decode(self, spark: SparkSession, raw: DataFrame) -> DataFrame:
        """Rows from JSON in the column `value`, instead of the source: what a test feeds."""
        from pyspark.sql import functions as F  # noqa: N812

        from ebbtide.connectors.spark.records import require_event_time

        text, options = F.col("value").cast("string"), {"mode": "FAILFAST"}
        record = F.from_json(text, self.schema(spark), options).alias("record")
        return require_event_time(raw.select(record).select("record.*"), self.pipeline)


@dataclass(frozen=True)
class BatchRun:
    """One run of a batch, so that a sink can find what it wrote."""

    pipeline: str
    batch: int
    timeline: str
    started_ms: int
    ended_ms: int
    query_ids: frozenset[str]
    """All ids that the query has had."""
    backups: tuple[str, ...] | None
    """The backups that hold the run; None if it is on the checkpoint's timeline."""


@dataclass(frozen=True)
class WrittenRows:
    """What the sink has of one run of a batch."""

    rows: DataFrame | None
    """The columns `key` and `row`, both text; None if they cannot be told from other rows."""
    reason: str = ""
    doubt: str = ""
    """Why these may not be exactly what that run wrote, so that they cannot decide alone."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Of the columns that became `row`, by name: as text, values of two types may be the same."""


@dataclass(frozen=True)
class OutputPosition:
    """The end of what an output held before: offsets, or a table's version."""

    offsets: dict[int, int] | None = None
    version: int | None = None
    table: str | None = None
    """The id of the table: another one may take its place."""


@dataclass(frozen=True)
class Provenance:
    """The run that wrote results, and its source: goes with every record."""

    run: str
    source: str
    """The archive and its version, `visits@12`."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a record, or the metadata of a commit."""
        return {RUN_HEADER: self.run, SOURCE_HEADER: self.source}


@dataclass(frozen=True)
class ReplacedRange:
    """The part of an output that new results replace."""

    begins: str | None
    """The SQL expression that gives the time at which a result row begins."""
    start: datetime
    end: datetime
    keeps_additions: bool = False
    """Whether rows that the stream has added to the range since the plan stay."""
    doomed: Callable[[DataFrame, DataFrame], DataFrame] | None = None
    """Of held rows and new ones, the held ones that go; None: those that begin in the range."""


class SparkSink(Generic[S]):
    """A sink as Spark writes it, and what it holds; a connector implements `stream_writer`."""

    is_output = True
    """Whether the rows that it gets are what it keeps or shows."""
    is_exact = False
    """Whether values that differ also differ in rows as text; else times have milliseconds."""
    allows_real_time = False
    """Whether Spark writes to it in real-time mode and with asynchronous progress."""

    def __init__(self, sink: S, settings: Settings) -> None:
        self.sink, self.settings = sink, settings

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        """A writer of `observed` rows."""
        raise NotImplementedError

    def open_writer(self, rows: DataFrame, pipeline: Pipeline, timeline: str) -> DataStreamWriter:
        """A writer of a pipeline's results; checkpoint, trigger and output mode are the runner's.

        The rows are results already, unless the pipeline sees one batch at a time. `timeline` is
        the checkpoint's: records in Kafka carry its name.
        """
        headers = {PIPELINE_HEADER: pipeline.name, TIMELINE_HEADER: timeline}
        if pipeline.scope == "stream":
            return self.stream_writer(self.observed(rows, headers))

        def write(batch: DataFrame, number: int) -> None:
            self.write_batch(pipeline.query(batch), number, headers)

        return rows.writeStream.foreachBatch(write)

    def observed(self, rows: DataFrame, headers: Mapping[str, str] | None = None) -> DataFrame:
        """What the sink gets; where that is the output, its digest is in each batch's progress."""
        from ebbtide.connectors.spark.digests import HASH, observe_output, with_hash

        return observe_output(with_hash(rows)).drop(HASH) if self.is_output else rows

    def write_batch(self, rows: DataFrame, number: int, headers: Mapping[str, str]) -> None:
        """Write one batch of a pipeline of scope `batch`."""
        raise NotImplementedError

    def to_output(self, rows: DataFrame) -> DataFrame:
        """Result rows in the form in which the sink takes them."""
        return rows

    def as_text(self, rows: DataFrame) -> DataFrame:
        """Result rows as `key` and `row`: as the sink writes them, or as JSON."""
        from pyspark.sql import functions as F  # noqa: N812

        from ebbtide.connectors.spark.rows import quote_column, sort_maps, to_json

        none = F.lit(None).cast("string").alias("key")
        columns = [F.col(quote_column(name)) for name in rows.columns]
        if self.is_exact:
            columns = [
                sort_maps(column, f.dataType).alias(f.name)
                for column, f in zip(columns, rows.schema, strict=True)
            ]
        return rows.select(none, to_json(*columns, exact=self.is_exact).alias("row"))

    def read_batch(self, spark: SparkSession, run: BatchRun, schema: StructType) -> WrittenRows:
        """The rows that one run of a batch wrote."""
        return WrittenRows(None, "its sink does not show which rows it wrote")

    def as_written(self, rows: DataFrame | None, schema: StructType) -> WrittenRows:
        """Rows of a batch that a sink's log names; None if it does not."""
        from ebbtide.connectors.spark.rows import quote_column

        if rows is None:
            return WrittenRows(None, "the log of its sink does not show which rows it wrote")
        if set(rows.columns) == set(schema.names):
            rows = rows.select(*map(quote_column, schema.names))
        doubt = "" if self.is_exact else "as text, times have milliseconds only"
        types = {f.name: f.dataType.simpleString() for f in rows.schema}
        return WrittenRows(self.as_text(rows), doubt=doubt, types=types)

    def read_held(
        self, spark: SparkSession, at: OutputPosition, schema: StructType, run: str
    ) -> DataFrame:
        """The rows that the output held before a reprocessing run, typed as the results are."""
        return spark.createDataFrame([], schema)

    def check_writers(self, spark: SparkSession) -> Check | None:
        """Why a reprocess must not write beside the stream; None if it may."""
        return None

    def write_chunk(self, rows: DataFrame, by: Provenance, number: int) -> None:
        """Write a chunk's results, or stage them where all chunks must appear at once."""
        raise NotImplementedError

    def publish(
        self, spark: SparkSession, by: Provenance, replaced: ReplacedRange, at: OutputPosition
    ) -> None:
        """Put all staged chunks in place of the range, in one commit; a second time, do nothing."""

    def discard(self, spark: SparkSession, by: Provenance) -> None:
        """Throw away what is staged: the output holds it already."""
