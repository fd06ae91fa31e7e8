"""Run a query until it is asked to stop or a batch fails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.checkpoint import Timeline
from ebbtide.config import Settings, SparkFlags
from ebbtide.connectors import connector_of
from ebbtide.connectors import kafka as broker
from ebbtide.connectors import progress as batch_progress
from ebbtide.connectors.spark import configure_topics
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.history import Recorder
from ebbtide.notes import LastMode, RunMode
from ebbtide.pipeline import Endpoint, Pipeline
from ebbtide.rewind import lease
from ebbtide.runtime import cluster, profiles
from ebbtide.runtime.dead_letters import DeadLetters
from ebbtide.runtime.failures import Outages, batch_failed, plain_errors
from ebbtide.runtime.late_records import LateCounter
from ebbtide.runtime.metrics_endpoint import Metrics, serve_metrics
from ebbtide.runtime.ownership import claim
from ebbtide.runtime.session import compile_less, open_pipeline_session
from ebbtide.runtime.stopping import StopRequest, finish_and_stop
from ebbtide.runtime.stopping import pause_until as pause_until  # a replay uses these two, too
from ebbtide.runtime.stopping import stop_on_signals as stop_on_signals
from ebbtide.storage import Folder

_POLL_SECONDS = 0.1
_CATCH_UP_SECONDS = 10
_WAITING = "Waiting for data to arrive"
"""Spark's status of a query that has read all there is."""


@dataclass(frozen=True)
class StreamOptions(SparkFlags):
    """How to run: what `ebbtide run` takes as flags."""

    checkpoint: str | None = None
    available_now: bool = False
    trigger: str | None = None
    max_offsets_per_trigger: int | None = None
    metrics_port: int | None = None
    """The port for Prometheus; 0 for any free port, None for none."""
    metrics_host: str | None = None
    assume_stopped: bool = False
    """Nobody else uses the checkpoint; asked for where the store cannot tell."""

    def __post_init__(self) -> None:
        if self.available_now and self.trigger:
            raise UsageError("--available-now and --trigger exclude each other.", "Give one.")
        if self.metrics_host is not None and self.metrics_port is None:
            raise UsageError("--metrics-host alone serves nothing.", "Add --metrics-port N.")


@dataclass(frozen=True)
class BatchReport:
    """What one batch did."""

    id: int
    rows: int
    broken: int
    late: batch_progress.LateRecords | None
    """Those that the watermark had passed; None if the query keeps no state."""
    watermark: str | None
    duration_ms: int
    run_id: str
    """Of the running query; every start has another one."""


@dataclass(frozen=True)
class StreamResult:
    """What a run did in total."""

    pipeline: str
    checkpoint: str
    batches: int = 0
    rows: int = 0
    broken: int = 0
    late: batch_progress.LateRecords | None = None
    last_batch: int | None = None
    run_id: str = ""

    def plus(self, report: BatchReport) -> StreamResult:
        """The result including one more batch."""
        return replace(
            self,
            batches=self.batches + 1,
            rows=self.rows + report.rows,
            broken=self.broken + report.broken,
            late=report.late.plus(self.late) if report.late else self.late,
            last_batch=report.id,
        )


OnBatch = Callable[[BatchReport], None]
Say = Callable[[str], None]


class RunnableQuery(Protocol):
    """A query to run: everything in which a pipeline's stream and its archive differ."""

    pipeline: Pipeline
    """Its name is that of the query, the checkpoint and the log; its sink is where rows go."""
    say: Say
    """How to tell the user something."""

    def prepare(self) -> None:
        """Check and create what the query needs besides its checkpoint."""

    def check(self, folder: Folder) -> None:
        """Refuse a checkpoint from which it cannot continue."""

    def open(self, spark: SparkSession, folder: Folder) -> DataFrame:
        """Do what must come before the first batch; returns the rows to write."""

    def open_writer(self, rows: DataFrame, timeline: str) -> DataStreamWriter:
        """A writer of these rows to the sink; checkpoint, trigger and output mode are not set."""

    def count_late(self, progress: dict[str, Any]) -> batch_progress.LateRecords | None:
        """The records of a batch that the watermark had passed."""

    def follow(self, progress: dict[str, Any], report: BatchReport, *, missed: bool) -> None:
        """React to the end of a batch; `missed` if some before it were not reported."""

    def close(self) -> None:
        """Clean up after the query has stopped normally."""


def run_stream(
    pipeline: Pipeline,
    settings: Settings,
    options: StreamOptions = StreamOptions(),  # noqa: B008 - frozen
    *,
    on_batch: OnBatch = lambda _report: None,
    say: Say = lambda _line: None,
) -> StreamResult:
    """Run a pipeline as a stream; the steps are those of `run_query`."""
    query = PipelineQuery(pipeline, settings, options, say)
    return run_query(query, settings, options, on_batch)


def run_query(
    query: RunnableQuery, settings: Settings, options: StreamOptions, on_batch: OnBatch
) -> StreamResult:
    """Run a query until it is asked to stop.

    Steps: **1** refuse local paths with a cluster, check the broker and create missing topics;
    **2** claim the checkpoint and the port for metrics; **3** open the session; **4** do what comes
    before the first batch: the dead letters that an earlier run left, or the archive's table; **5**
    start the query; **6** follow its batches; **7** finish the running batch, then stop the query.
    """
    pipeline = query.pipeline
    checkpoint = options.checkpoint or settings.location("checkpoints", pipeline.name)
    locations = cluster.find_locations(pipeline, settings, checkpoint=checkpoint)
    with stop_on_signals() as (stop, listen):
        # 1
        options = cluster.check_start(pipeline, options, locations)
        query.prepare()
        options = profiles.with_slots(pipeline, settings, options)
        # 2
        pause = partial(pause_until, stop)
        with claim(
            checkpoint, pipeline, settings, assume_stopped=options.assume_stopped, pause=pause
        ) as claimed:
            query.check(claimed.folder)
            port, host = options.metrics_port, options.metrics_host
            with (
                serve_metrics(pipeline.name, port, host, query.say) as metrics,
                # 3
                open_pipeline_session(
                    query.pipeline, settings, options.master, options.conf, locations.values()
                ) as spark,
            ):
                listen()
                try:
                    run = _Run(spark, query, settings, options, claimed, on_batch, metrics)
                    return run.until(stop)
                finally:
                    metrics.running = False


class _Run:
    """One running query and its bookkeeping."""

    def __init__(
        self,
        spark: SparkSession,
        query: RunnableQuery,
        settings: Settings,
        options: StreamOptions,
        claimed: lease.Claim,
        on_batch: OnBatch,
        metrics: Metrics,
    ) -> None:
        pipeline = query.pipeline
        self._query, self._claimed, self._folder = query, claimed, claimed.folder
        self._on_batch, self._metrics = on_batch, metrics
        self._log = settings.logs / f"{pipeline.name}.log"
        self._seen, self._waits = -1, not options.available_now
        self._recorder = Recorder.for_pipeline(self._folder, pipeline)
        self._outages = Outages(query.say)
        self._committed = max(self._folder.ids("commits"), default=None)
        self._caught_up = time.monotonic()
        gateway = spark.sparkContext._gateway
        if (jvm := getattr(gateway, "proc", None)) is not None:
            claimed.add_process(jvm.pid)
        # 4
        rows = query.open(spark, self._folder)
        # 5
        claimed.check()
        timeline = Timeline.read(self._folder).name
        with plain_errors(pipeline):
            chosen = self._choose_mode(rows, settings, options)
            self._mode = chosen.mode
            location = cluster.spark_location(self._folder, options.master)
            stream = (
                query.open_writer(rows, timeline)
                .queryName(pipeline.name)
                .outputMode(pipeline.output_mode)
                .option("checkpointLocation", location)
            )
            trigger = options.trigger or pipeline.trigger
            stream = chosen.apply(stream, available_now=options.available_now, trigger=trigger)
            self._running = stream.start()
        # a rewind asks for it
        first = 0 if self._committed is None else self._committed + 1
        LastMode(chosen.mode, first).write(self._folder)
        metrics.running = True
        self._result = StreamResult(
            pipeline.name, self._folder.url, run_id=str(self._running.runId)
        )

    def _choose_mode(
        self, rows: DataFrame, settings: Settings, options: StreamOptions
    ) -> profiles.Chosen:
        """How Spark runs the batches, said where the user asked for something."""
        pipeline = self._query.pipeline
        chosen = profiles.choose_mode(
            pipeline,
            settings,
            rows,
            available_now=options.available_now,
            is_limited=options.max_offsets_per_trigger is not None,
            trigger=options.trigger or pipeline.trigger,
        )
        if chosen.line is not None:
            self._query.say(chosen.line)
        return chosen

    def until(self, stop: StopRequest) -> StreamResult:
        """Follow the query until it ends or is asked to stop."""
        # 6
        try:
            try:
                while not stop.is_set() and self._running.isActive:
                    stop.wait(_POLL_SECONDS)
                    self._require_lease()
                    # before: the line of the last batch comes first
                    waiting = self._waits and self._running.status["message"] == _WAITING
                    self._follow()
                    self._catch_up()
                    if waiting:
                        self._say_waiting()
            finally:
                # 7
                logs_first = self._mode == RunMode.BATCHES
                finish_and_stop(self._running, self._claimed.require, logs_first=logs_first)
            self._running.awaitTermination()
        except StreamingQueryException as error:
            self._follow()
            self._catch_up(every_seconds=0)
            name = self._query.pipeline.name
            raise batch_failed(name, self._folder, error, self._log) from None
        self._follow()
        self._catch_up(every_seconds=0)
        self._query.close()
        return self._result

    def _require_lease(self) -> None:
        """If another process may have the lease, stop at once, in the middle of a batch."""
        try:
            self._claimed.require()
        except EbbtideError:
            self._running.stop()
            raise

    def _follow(self) -> None:
        """Report the batches that ended since the last call."""
        for progress in new_progress(self._running, self._seen):
            report = report_of(progress, self._query.count_late(progress))
            missed = report.id - self._seen > 1 and self._seen >= 0
            self._seen = report.id
            self._result = self._result.plus(report)
            self._on_batch(report)
            self._record(progress, report.late)
            self._query.follow(progress, report, missed=missed)

    def _record(self, progress: dict[str, Any], late: batch_progress.LateRecords | None) -> None:
        """Record what the batch did; a failure here must not stop the stream."""
        with self._outages.tolerate("The history"):
            entry = self._recorder.entry(progress, late)
            self._metrics.observe(entry)  # first, as it needs no disk
            self._recorder.keep(entry)

    def _catch_up(self, every_seconds: float = _CATCH_UP_SECONDS) -> None:
        """Now and then, write what could not be written before, also if no batch comes."""
        if time.monotonic() - self._caught_up >= every_seconds:
            self._caught_up = time.monotonic()
            with self._outages.tolerate("The history"):
                self._recorder.catch_up()

    def _say_waiting(self) -> None:
        """Say once that all there is has been read."""
        self._waits = False
        last = self._committed if self._seen < 0 else self._seen
        done = "No batch has run yet" if last is None else f"Batch {last} is the last"
        self._query.say(f"{done}; waiting for records.")


class PipelineQuery:
    """A pipeline's own query; its broken records become dead letters."""

    def __init__(
        self, pipeline: Pipeline, settings: Settings, options: StreamOptions, say: Say
    ) -> None:
        self.pipeline = pipeline
        self._settings, self._options, self.say = settings, options, say
        self._dead_letters: DeadLetters | None = None
        self._late: LateCounter | None = None

    def prepare(self) -> None:
        """Check the broker and create missing topics."""
        require_topics(self._settings, configure_topics(self.pipeline), self.say)

    def check(self, folder: Folder) -> None:
        """Accept any checkpoint that is the pipeline's own; find out whether the run is short."""
        if self._options.available_now:
            source = connector_of(self.pipeline.source).open_source(self.pipeline, self._settings)
            self.pipeline = compile_less(self.pipeline, source.count_waiting(folder))

    def open(self, spark: SparkSession, folder: Folder) -> DataFrame:
        """Apply the transform to the source; complete the dead letters of an earlier run."""
        pipeline, settings = self.pipeline, self._settings
        with plain_errors(pipeline):
            limit = self._options.max_offsets_per_trigger
            opened = connector_of(pipeline.source).open_source(pipeline, settings)
            source = opened.open_stream(spark, pipeline.query, limit)
            result = source.rows if pipeline.scope == "batch" else pipeline.query(source.rows)
        self._late = LateCounter(spark, pipeline, source, result, folder, self.say)
        if source.decoder is not None:
            self._dead_letters = DeadLetters(
                spark, pipeline, source.decoder, settings, folder, self.say, Outages(self.say)
            )
            if letters := self._dead_letters.recover():
                self.say(f"{letters} broken records of an earlier run are now in the dead letters.")
        return result

    def open_writer(self, rows: DataFrame, timeline: str) -> DataStreamWriter:
        """A writer of the results to the pipeline's sink."""
        sink = connector_of(self.pipeline.sink).open_sink(self.pipeline.sink, self._settings)
        return sink.open_writer(rows, self.pipeline, timeline)

    def count_late(self, progress: dict[str, Any]) -> batch_progress.LateRecords | None:
        """The records of a batch that the watermark had passed; an archive drops none."""
        return self._late.count(progress) if self._late else None

    def follow(self, progress: dict[str, Any], report: BatchReport, *, missed: bool) -> None:
        """Write the broken records of the batch to the dead letters."""
        if self._dead_letters is None:
            return
        source = progress["sources"][0]
        offsets = self._dead_letters.offsets(source["endOffset"])
        moved = source["endOffset"] != source["startOffset"]
        unread = moved and not _read_metric(progress, "records")
        if report.broken or missed or unread or not batch_progress.was_read_whole(progress):
            self._dead_letters.write(offsets)
        else:
            self._dead_letters.pass_clean(offsets)

    def close(self) -> None:
        """Save up to where the dead letters are complete."""
        if self._dead_letters:
            self._dead_letters.save()


def require_topics(
    settings: Settings, wanted: Iterable[tuple[Endpoint, Mapping[str, str]]], say: Say
) -> None:
    """Raise if a broker does not answer; create the topics that it lacks."""
    created: list[str] = []
    with_topics = [(endpoint, config) for endpoint, config in wanted if endpoint.topics]
    broker.require_brokers(settings, [endpoint for endpoint, _ in with_topics])
    for endpoint, config in with_topics:
        connection = settings.connect(endpoint.connection)
        created += broker.create_missing_topics(connection, endpoint.topics, config=config)
    if created:
        topics = "topic" if len(created) == 1 else "topics"
        say(f"Created {topics} {', '.join(created)} with {broker.DEFAULT_PARTITIONS} partitions.")


def new_progress(query: StreamingQuery, seen: int) -> Iterator[dict[str, Any]]:
    """The progress of the batches after `seen`, oldest first; triggers may have run no batch."""
    recent = query._jsq.recentProgress()
    unseen: list[dict[str, Any]] = []
    for index in range(len(recent) - 1, -1, -1):
        if recent[index].batchId() <= seen:
            break
        progress = json.loads(recent[index].json())
        if "addBatch" in progress["durationMs"]:
            unseen.append(progress)
    yield from reversed(unseen)


def report_of(progress: dict[str, Any], late: batch_progress.LateRecords | None) -> BatchReport:
    """What a batch did, from its progress as Spark's JSON has it."""
    return BatchReport(
        id=progress["batchId"],
        rows=progress["numInputRows"],
        broken=_read_metric(progress, "broken"),
        late=late,
        watermark=progress.get("eventTime", {}).get("watermark"),
        duration_ms=progress["durationMs"]["triggerExecution"],
        run_id=progress["runId"],
    )


def _read_metric(progress: dict[str, Any], what: str) -> int:
    """A count of the decoder's; 0 if the batch was not read."""
    return int(progress.get("observedMetrics", {}).get(batch_progress.METRICS, {}).get(what, 0))
