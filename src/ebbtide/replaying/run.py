"""Recorded batches in, the same batches again out: each with its offsets, watermark and time.

Steps: **1** what is recorded, and how far an earlier replay came; to scratch, a fork of it;
**2** the broker answers, the topics are there; **3** the checkpoint is ours and free; **4** the
session; **5** the query's rows; and for each batch: **6** its log entry put back; **7** that one
batch run; **8** what it did kept, and compared with the first run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from ebbtide.checkpoint import Journal, Timeline, read_logs
from ebbtide.config import Settings
from ebbtide.connectors import connector_of, streams
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.spark import HASH
from ebbtide.errors import UsageError
from ebbtide.history import Entry, Recorder
from ebbtide.pipeline import Pipeline
from ebbtide.replaying.outputs import read_written, show_rows
from ebbtide.replaying.recorded_batches import Recorded, find_range, find_rewound, ran_again
from ebbtide.replaying.verdicts import DIFFERS, ReplayVerdict, judge
from ebbtide.rewind import fork, lease, restore_offsets
from ebbtide.runtime import (
    BatchReport,
    StreamOptions,
    check_owner,
    claim,
    failures,
    session,
    stream,
)
from ebbtide.storage import Folder, open_folder

_POLL_SECONDS = 1


@dataclass(frozen=True)
class ReplayOptions:
    """How to replay: what `ebbtide replay` takes as flags."""

    checkpoint: str | None = None
    to_scratch: bool = False
    """Leave checkpoint, sink and dead letters alone: run a fork, and write beside it."""
    from_batch: int | None = None
    to_batch: int | None = None
    scratch: str | None = None
    """Where to; a folder in the home if none is named."""
    rows: int | None = 5
    """So many differing rows of a batch are kept, each way; None keeps all."""
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        asked = (self.from_batch, self.to_batch, self.scratch)
        if not self.to_scratch and any(flag is not None for flag in asked):
            raise UsageError(
                "--from-batch, --to-batch and --scratch are for a replay to scratch: otherwise "
                "all that was rewound is replayed.",
                "Add --to-scratch.",
            )


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found, batch by batch."""

    pipeline: str
    checkpoint: str
    first_batch: int
    last_batch: int
    verdicts: tuple[ReplayVerdict, ...]
    scratch: str | None = None

    @property
    def finished(self) -> bool:
        """Whether all batches have run; it may have been told to stop."""
        return len(self.verdicts) == self.last_batch - self.first_batch + 1

    def count(self, verdict: str) -> int:
        """How many batches have a verdict."""
        return sum(found.verdict == verdict for found in self.verdicts)


OnBatch = Callable[[int, int], None]
"""How many batches are done, of how many."""


def replay_pipeline(
    pipeline: Pipeline,
    settings: Settings,
    options: ReplayOptions = ReplayOptions(),  # noqa: B008 - frozen
    *,
    on_batch: OnBatch = lambda _done, _all: None,
    say: stream.Say = lambda _line: None,
) -> ReplayResult:
    """Run recorded batches again, in place after a rewind or beside in scratch, and compare."""
    location = options.checkpoint or str(settings.checkpoint(pipeline.name).absolute())
    with stream.stop_on_signals() as (stop, listen):
        # 1
        origin = _open(location, pipeline)
        query: _InPlace
        if options.to_scratch:
            recorded = find_range(origin, options.from_batch, options.to_batch)
            scratch = options.scratch or _new_scratch(pipeline, settings)
            query = _Beside(pipeline, settings, say, origin, scratch)
            folder = _fork(origin, recorded.first, scratch)
        else:
            recorded, scratch, folder = find_rewound(origin), None, origin
            query = _InPlace(pipeline, settings, say, origin)
        verdicts = _judge_done(folder, recorded)
        result = ReplayResult(
            pipeline.name, origin.url, recorded.first, recorded.last, tuple(verdicts), scratch
        )
        on_batch(len(verdicts), len(recorded.offsets))
        if result.finished:
            return result
        # 2
        query.prepare()
        with (
            # 3
            claim(folder.url, pipeline, settings, writes=scratch is None) as claimed,
            # 4
            session.open_pipeline_session(
                pipeline, settings, options.master, options.conf
            ) as spark,
        ):
            listen()
            run = _Replay(spark, query, recorded, claimed, options.rows)
            while not (result.finished or stop.is_set()):
                verdict = run.next(recorded.first + len(result.verdicts))
                result = replace(result, verdicts=(*result.verdicts, verdict))
                on_batch(len(result.verdicts), len(recorded.offsets))
            query.close()
    return result


def _open(location: str, pipeline: Pipeline) -> Folder:
    """The checkpoint to replay; refuse what is none, another's, or half changed."""
    folder = open_folder(location)
    read_logs(folder)
    if (journal := Journal.read(folder)) is not None:
        raise journal.interrupted(folder.url)
    check_owner(folder, pipeline)
    return folder


def _judge_done(folder: Folder, recorded: Recorded) -> list[ReplayVerdict]:
    """The verdicts on batches that an earlier replay has run, as far as the history tells."""
    again = ran_again(folder, recorded)
    latest = max(folder.ids("commits"), default=-1)  # Spark may have cleaned up those before
    return [
        judge(batch, recorded.entries.get(batch), again.get(batch))
        for batch in recorded.offsets
        if batch <= latest
    ]


def _fork(origin: Folder, batch: int, scratch: str) -> Folder:
    if names := open_folder(scratch).names():
        raise UsageError(
            f"{scratch} is not empty: it holds {', '.join(names[:3])}.",
            "Name a folder that does not exist yet with --scratch.",
        )
    place = f"{scratch.rstrip('/')}/checkpoint"
    return open_folder(fork.fork_checkpoint(origin.url, place, batch).checkpoint)


def _new_scratch(pipeline: Pipeline, settings: Settings) -> str:
    now = datetime.now(timezone.utc)
    return str((settings.home / "scratch" / f"{pipeline.name}-{now:%Y%m%dT%H%M%S.%fZ}").absolute())


class _InPlace(stream.PipelineQuery):
    """The pipeline's own query: its sink, its dead letters."""

    def __init__(
        self, pipeline: Pipeline, settings: Settings, say: stream.Say, origin: Folder
    ) -> None:
        super().__init__(pipeline, settings, StreamOptions(), say)
        self.settings = settings
        self._origin = origin
        self._timeline = Timeline.read(origin).name
        self.sink = connector_of(pipeline.sink).open_sink(pipeline.sink, settings)

    def write(self, rows: DataFrame) -> DataStreamWriter:
        """A writer of the results."""
        return self.sink.open_writer(rows, self.pipeline, self._timeline)

    def read_first(
        self, spark: SparkSession, entry: Entry, schema: StructType
    ) -> streams.WrittenRows:
        """What the first run of a batch wrote."""
        return read_written(spark, self.sink, self.pipeline.name, entry, schema, self._origin)

    def read_again(
        self, spark: SparkSession, entry: Entry, schema: StructType
    ) -> streams.WrittenRows:
        """What this run of a batch wrote."""
        return self.read_first(spark, entry, schema)


class _Beside(_InPlace):
    """The same query over a fork: results in files of its own, nothing of it anywhere else."""

    def __init__(
        self, pipeline: Pipeline, settings: Settings, say: stream.Say, origin: Folder, scratch: str
    ) -> None:
        super().__init__(pipeline, settings, say, origin)
        self._scratch = scratch
        self._kept: StructType | None = None

    def prepare(self) -> None:
        """The broker answers; no topic is made."""
        if self.pipeline.topics:
            broker.require_broker(self.settings.kafka)

    def open(self, spark: SparkSession, folder: Folder) -> DataFrame:
        """The transform over the source; broken records are counted and left out."""
        del folder
        pipeline = self.pipeline
        with failures.plain_errors(pipeline):
            source = connector_of(pipeline.source).open_source(pipeline, self.settings)
            rows = source.open_stream(spark, pipeline.query).rows
            return rows if pipeline.scope == "batch" else pipeline.query(rows)

    def write(self, rows: DataFrame) -> DataStreamWriter:
        """Each batch to files of its own."""
        if self.pipeline.scope == "stream":
            rows = self.sink.observed(rows).drop(HASH)
        self._kept = rows.schema

        def keep(batch: DataFrame, number: int) -> None:
            result = self.pipeline.query(batch) if self.pipeline.scope == "batch" else batch
            result.write.mode("overwrite").parquet(rows_of(self._scratch, number))

        return rows.writeStream.foreachBatch(keep)

    def read_again(
        self, spark: SparkSession, entry: Entry, schema: StructType
    ) -> streams.WrittenRows:
        """What this run of a batch wrote."""
        rows = spark.read.schema(self._kept or schema).parquet(rows_of(self._scratch, entry.batch))
        return streams.WrittenRows(self.sink.as_text(rows))

    def follow(self, progress: dict[str, Any], report: BatchReport, *, missed: bool) -> None:
        """No dead letters."""

    def close(self) -> None:
        """All is in the files."""


def rows_of(scratch: str, batch: int) -> str:
    """Where a replay to scratch puts the rows of a batch.

    >>> rows_of("s3://bucket/scratch", 7)
    's3://bucket/scratch/rows/7'
    """
    return f"{scratch.rstrip('/')}/rows/{batch}"


class _Replay:
    """One query that is started for each of its batches."""

    def __init__(
        self,
        spark: SparkSession,
        query: _InPlace,
        recorded: Recorded,
        claimed: lease.Claim,
        shown: int | None,
    ) -> None:
        self._spark, self._query, self._recorded = spark, query, recorded
        self._claimed, self._folder, self._shown = claimed, claimed.folder, shown
        self._recorder = Recorder(self._folder, query.pipeline)
        self._log = query.settings.logs / f"{query.pipeline.name}.log"
        gateway = spark.sparkContext._gateway
        if (jvm := getattr(gateway, "proc", None)) is not None:
            claimed.add_process(jvm.pid)
        # 5
        self._rows = query.open(spark, self._folder)

    def next(self, batch: int) -> ReplayVerdict:
        """Run one batch as it was planned, and compare it with its first run."""
        # 6
        restore_offsets(self._folder.url, batch, self._recorded.offsets[batch])
        # 7
        progress = self._run()
        # 8
        first, now = self._recorded.entries.get(batch), None
        if progress is not None:
            now = self._recorder.record(progress)
            self._query.follow(progress, stream.report_of(progress), missed=False)
        verdict = judge(batch, first, now)
        if verdict.verdict != DIFFERS or first is None or now is None:
            return verdict
        query, schema = self._query, self._rows.schema
        return show_rows(
            verdict,
            partial(query.read_first, self._spark, first, schema),
            partial(query.read_again, self._spark, now, schema),
            self._shown,
        )

    def _run(self) -> dict[str, Any] | None:
        """Have Spark run the one batch that is planned and not committed; returns its progress."""
        pipeline = self._query.pipeline
        with failures.plain_errors(pipeline):
            running = (
                self._query.write(self._rows)
                .queryName(pipeline.name)
                .outputMode(pipeline.output_mode)
                .option("checkpointLocation", self._folder.url)
                .trigger(once=True)
                .start()
            )
        try:
            while not running.awaitTermination(_POLL_SECONDS):
                self._claimed.renew()
        except StreamingQueryException as error:
            raise failures.batch_failed(pipeline.name, self._folder, error, self._log) from None
        finally:
            running.stop()
        return next(iter(stream.new_progress(running, -1)), None)
