"""Run recorded batches again, each with its offsets, watermark and time.

Steps: **1** find the recorded batches and those that an earlier replay has run, or make a fork to
replay to scratch; **2** check the broker and the topics; **3** claim the checkpoint; **4** open the
session; **5** open the query; and for each batch: **6** restore its log entry; **7** run it;
**8** record what it did and compare it with the first run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from ebbtide.checkpoint import Backup, Journal, Timeline, read_logs
from ebbtide.config import Settings, SparkFlags
from ebbtide.connectors import connector_of, streams
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.spark import digests
from ebbtide.errors import UsageError
from ebbtide.history import Entry, History, Recorder
from ebbtide.pipeline import Pipeline
from ebbtide.replaying.outputs import show_rows
from ebbtide.replaying.recorded_batches import Recorded, find_range, find_rewound, ran_again
from ebbtide.replaying.verdicts import DIFFERS, ReplayVerdict, judge
from ebbtide.rewind import fork, lease, restore_offsets
from ebbtide.runtime import StreamOptions, cluster, failures, ownership, session, stream
from ebbtide.storage import Folder, open_folder
from ebbtide.times import parse_time

_POLL_SECONDS = 1


@dataclass(frozen=True)
class ReplayOptions(SparkFlags):
    """How to replay: the flags of `ebbtide replay`."""

    checkpoint: str | None = None
    to_scratch: bool = False
    """Run a fork and write to files, without touching the checkpoint, sink and dead letters."""
    from_batch: int | None = None
    to_batch: int | None = None
    scratch: str | None = None
    """The folder for it; by default a new one in the home."""
    rows: int | None = 5
    """Maximum number of new and of old rows to keep of a batch that differs; None keeps all."""
    assume_stopped: bool = False

    def __post_init__(self) -> None:
        if not self.to_scratch and (self.from_batch, self.to_batch, self.scratch) != (None,) * 3:
            raise UsageError(
                "--from-batch, --to-batch and --scratch are for a replay to scratch: otherwise "
                "all that was rewound is replayed.",
                "Add --to-scratch.",
            )


@dataclass(frozen=True)
class ReplayResult:
    """The verdicts of a replay, batch by batch."""

    pipeline: str
    checkpoint: str
    first_batch: int
    last_batch: int
    verdicts: tuple[ReplayVerdict, ...]
    scratch: str | None = None

    @property
    def finished(self) -> bool:
        """Whether all batches have run; a replay may be stopped early."""
        return len(self.verdicts) == self.last_batch - self.first_batch + 1

    def count(self, verdict: str) -> int:
        """The number of batches with a verdict."""
        return sum(each.verdict == verdict for each in self.verdicts)


OnBatch = Callable[[int, int], None]
"""Called with the number of batches that are done, and the number of all."""


def replay_pipeline(
    pipeline: Pipeline,
    settings: Settings,
    options: ReplayOptions = ReplayOptions(),  # noqa: B008 - frozen
    *,
    on_batch: OnBatch = lambda _done, _all: None,
    say: stream.Say = lambda _line: None,
) -> ReplayResult:
    """Run recorded batches again, in place after a rewind or to scratch, and compare them."""
    location = options.checkpoint or settings.location("checkpoints", pipeline.name)
    locations = cluster.find_locations(pipeline, settings, checkpoint=location)
    with stream.stop_on_signals() as (stop, listen):
        # 1
        options = cluster.check_start(pipeline, options, locations)
        origin = _open(location, pipeline)
        query: _InPlace
        if options.to_scratch:
            recorded = find_range(origin, options.from_batch, options.to_batch)
            scratch = options.scratch or _new_scratch(pipeline, settings)
            cluster.require_shared(options.master, {"scratch folder": scratch})
            query = _Beside(pipeline, settings, say, origin, scratch)
            folder = _fork(origin, recorded.first, scratch, assume_stopped=options.assume_stopped)
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
            ownership.claim(
                folder.url,
                pipeline,
                settings,
                writes=scratch is None,
                assume_stopped=options.assume_stopped,
                pause=partial(stream.pause_until, stop),
            ) as claimed,
            # 4
            session.open_pipeline_session(
                pipeline, settings, options.master, options.conf, locations.values()
            ) as spark,
        ):
            listen()
            run = _Replay(spark, query, recorded, claimed, options)
            while not (result.finished or stop.is_set()):
                verdict = run.next(recorded.first + len(result.verdicts))
                result = replace(result, verdicts=(*result.verdicts, verdict))
                on_batch(len(result.verdicts), len(recorded.offsets))
            query.close()
    return result


def _open(location: str, pipeline: Pipeline) -> Folder:
    """The checkpoint to replay; refused if it is invalid, another pipeline's, or half changed."""
    folder = open_folder(location)
    read_logs(folder)
    if (journal := Journal.read(folder)) is not None:
        raise journal.interrupted(folder.url)
    ownership.check_owner(folder, pipeline)
    return folder


def _judge_done(folder: Folder, recorded: Recorded) -> list[ReplayVerdict]:
    """The verdicts on batches that an earlier replay has run."""
    again = ran_again(folder, recorded)
    latest = max(folder.ids("commits"), default=-1)  # Spark may have cleaned up those before
    return [
        judge(batch, recorded.entries.get(batch), again.get(batch))
        for batch in recorded.offsets
        if batch <= latest
    ]


def _fork(origin: Folder, batch: int, scratch: str, *, assume_stopped: bool) -> Folder:
    if names := open_folder(scratch).names():
        raise UsageError(
            f"{scratch} is not empty: it holds {', '.join(names[:3])}.",
            "Name a folder that does not exist yet with --scratch.",
        )
    place = f"{scratch.rstrip('/')}/checkpoint"
    made = fork.fork_checkpoint(origin.url, place, batch, assume_stopped=assume_stopped)
    return open_folder(made.checkpoint)


def _new_scratch(pipeline: Pipeline, settings: Settings) -> str:
    now = datetime.now(timezone.utc)
    return settings.location("scratch", f"{pipeline.name}-{now:%Y%m%dT%H%M%S.%fZ}")


class _InPlace(stream.PipelineQuery):
    """The pipeline's own query, with its sink and its dead letters."""

    def __init__(
        self, pipeline: Pipeline, settings: Settings, say: stream.Say, origin: Folder
    ) -> None:
        super().__init__(pipeline, settings, StreamOptions(), say)
        self.settings = settings
        self._origin = origin
        self._timeline = Timeline.read(origin).name
        self.sink = connector_of(pipeline.sink).open_sink(pipeline.sink, settings)

    def write(self, rows: DataFrame) -> DataStreamWriter:
        """A writer to the sink."""
        return self.sink.open_writer(rows, self.pipeline, self._timeline)

    def read_first(
        self, spark: SparkSession, entry: Entry, schema: StructType
    ) -> streams.WrittenRows:
        """The rows that the first run of a batch wrote."""
        if entry.output is not None and entry.output.rows == 0:
            return streams.WrittenRows(self.sink.as_text(spark.createDataFrame([], schema)))
        start, end = (
            round(parse_time(at).timestamp() * 1000) for at in (entry.started, entry.ended)
        )
        origin, history, backups = self._origin, History((entry,)), None
        ids = Backup.query_ids(origin, read_logs(origin).query_id)
        if not history.of(Timeline.read(origin)):
            backups = tuple(b.id for b in Backup.read_all(origin) if history.of(b.timeline))
        name = self.pipeline.name
        run = streams.BatchRun(name, entry.batch, entry.timeline, start, end, ids, backups)
        return self.sink.read_batch(spark, run, schema)

    read_again = read_first  # both runs wrote to the same sink


class _Beside(_InPlace):
    """The query over a fork, with its results in files; it writes no dead letters."""

    def __init__(
        self, pipeline: Pipeline, settings: Settings, say: stream.Say, origin: Folder, scratch: str
    ) -> None:
        super().__init__(pipeline, settings, say, origin)
        self._scratch = scratch
        self._kept: StructType | None = None

    def prepare(self) -> None:
        """Check the broker, but create no topic."""
        broker.require_brokers(self.settings, self.pipeline.endpoints)

    def open(self, spark: SparkSession, folder: Folder) -> DataFrame:
        """Apply the transform to the source; broken records are counted and left out."""
        del folder
        pipeline = self.pipeline
        with failures.plain_errors(pipeline):
            source = connector_of(pipeline.source).open_source(pipeline, self.settings)
            rows = source.open_stream(spark, pipeline.query).rows
            return rows if pipeline.scope == "batch" else pipeline.query(rows)

    def write(self, rows: DataFrame) -> DataStreamWriter:
        """A writer of each batch to its own files."""
        if self.pipeline.scope == "stream":
            rows = self.sink.observed(rows).drop(digests.HASH)
        self._kept = rows.schema

        def keep(batch: DataFrame, number: int) -> None:
            result = self.pipeline.query(batch) if self.pipeline.scope == "batch" else batch
            result.write.mode("overwrite").parquet(rows_of(self._scratch, number))

        return rows.writeStream.foreachBatch(keep)

    def read_again(
        self, spark: SparkSession, entry: Entry, schema: StructType
    ) -> streams.WrittenRows:
        """The rows that this run of a batch wrote."""
        rows = spark.read.schema(self._kept or schema).parquet(rows_of(self._scratch, entry.batch))
        return streams.WrittenRows(self.sink.as_text(rows))


def rows_of(scratch: str, batch: int) -> str:
    """The folder in which a replay to scratch keeps the rows of a batch.

    >>> rows_of("s3://bucket/scratch", 7)
    's3://bucket/scratch/rows/7'
    """
    return f"{scratch.rstrip('/')}/rows/{batch}"


class _Replay:
    """A query that is started once for each batch."""

    def __init__(
        self,
        spark: SparkSession,
        query: _InPlace,
        recorded: Recorded,
        claimed: lease.Claim,
        options: ReplayOptions,
    ) -> None:
        self._spark, self._query, self._recorded = spark, query, recorded
        self._claimed, self._folder, self._shown = claimed, claimed.folder, options.rows
        self._location = cluster.spark_location(claimed.folder, options.master)
        self._recorder = Recorder.for_pipeline(self._folder, query.pipeline)
        self._log = query.settings.logs / f"{query.pipeline.name}.log"
        if (jvm := getattr(spark.sparkContext._gateway, "proc", None)) is not None:
            claimed.add_process(jvm.pid)
        # 5
        self._rows = query.open(spark, self._folder)

    def next(self, batch: int) -> ReplayVerdict:
        """Run one batch as it was planned, and compare it with its first run."""
        # 6
        self._claimed.check()
        restore_offsets(self._claimed.writable, batch, self._recorded.offsets[batch])
        # 7
        progress = self._run()
        # 8
        query, first, now = self._query, self._recorded.entries.get(batch), None
        if progress is not None:
            late = query.count_late(progress)
            now = self._recorder.record(progress, late)
            query.follow(progress, stream.report_of(progress, late), missed=False)
        verdict = judge(batch, first, now)
        if verdict.verdict != DIFFERS or first is None or now is None:
            return verdict
        read_first = partial(query.read_first, self._spark, first, self._rows.schema)
        read_again = partial(query.read_again, self._spark, now, self._rows.schema)
        return show_rows(verdict, read_first, read_again, self._shown)

    def _run(self) -> dict[str, Any] | None:
        """Let Spark run the batch that is planned and not committed; returns its progress."""
        pipeline = self._query.pipeline
        with failures.plain_errors(pipeline):
            running = (
                self._query.write(self._rows)
                .queryName(pipeline.name)
                .outputMode(pipeline.output_mode)
                .option("checkpointLocation", self._location)
                .trigger(once=True)
                .start()
            )
        try:
            while not running.awaitTermination(_POLL_SECONDS):
                self._claimed.require()
        except StreamingQueryException as error:
            raise failures.batch_failed(pipeline.name, self._folder, error, self._log) from None
        finally:
            running.stop()
        return next(iter(stream.new_progress(running, -1)), None)
