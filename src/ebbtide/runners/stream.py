"""A pipeline in, a running query out, until it is told to stop or a batch fails."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ebbtide import kafka as broker
from ebbtide.checkpoint.folder import Folder
from ebbtide.checkpoint.lease import Claim
from ebbtide.config import Settings
from ebbtide.errors import BatchFailedError, EbbtideError, UsageError
from ebbtide.pipeline import Kafka, Pipeline
from ebbtide.records import METRICS
from ebbtide.runners.claim import claim
from ebbtide.runners.dead_letters import TOPIC_CONFIG, DeadLetters, topic_offsets
from ebbtide.runners.stopping import finish_and_stop
from ebbtide.sinks import writer
from ebbtide.sources import open_stream
from ebbtide.spark import build_session, close_session

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class StreamOptions:
    """How to run: what `ebbtide run` takes as flags."""

    checkpoint: str | None = None
    available_now: bool = False
    trigger: str | None = None
    max_offsets_per_trigger: int | None = None
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.available_now and self.trigger:
            raise UsageError("--available-now and --trigger exclude each other.", "Give one.")


@dataclass(frozen=True)
class BatchReport:
    """What one batch did."""

    id: int
    rows: int
    broken: int
    watermark: str | None
    duration_ms: int


@dataclass(frozen=True)
class StreamResult:
    """What a run did, once it has stopped."""

    pipeline: str
    checkpoint: str
    batches: int = 0
    rows: int = 0
    broken: int = 0
    last_batch: int | None = None

    def plus(self, report: BatchReport) -> StreamResult:
        """The result with one more batch."""
        return StreamResult(
            self.pipeline,
            self.checkpoint,
            self.batches + 1,
            self.rows + report.rows,
            self.broken + report.broken,
            report.id,
        )


def run_stream(
    pipeline: Pipeline,
    settings: Settings,
    options: StreamOptions = StreamOptions(),  # noqa: B008 - frozen
    *,
    on_batch: Callable[[BatchReport], None] = lambda _report: None,
    say: Callable[[str], None] = lambda _line: None,
) -> StreamResult:
    """Run a pipeline as a stream.

    Steps: **1** the broker answers, the topics are there; **2** the checkpoint is ours and free;
    **3** the session; **4** the dead letters that an earlier run left; **5** the query; **6** batch
    after batch; **7** the running batch is finished, then the query stopped.
    """
    checkpoint = options.checkpoint or str(settings.checkpoint(pipeline.name).absolute())
    with _stop_on_signals() as (stop, listen):
        # 1
        _prepare_topics(pipeline, settings, say)
        # 2
        with claim(checkpoint, pipeline) as claimed:
            # 3
            spark = build_session(
                pipeline.name,
                settings,
                master=options.master,
                conf=options.conf,
                wanted=pipeline.conf,
            )
            listen()
            try:
                run = _Run(spark, pipeline, settings, options, claimed, on_batch, say)
                return run.until(stop)
            except (Py4JError, ConnectionError) as error:
                raise _jvm_failed(error, settings.logs / f"{pipeline.name}.log") from None
            finally:
                close_session(spark)


class _Run:
    """One running query and what is kept about it."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        settings: Settings,
        options: StreamOptions,
        claimed: Claim,
        on_batch: Callable[[BatchReport], None],
        say: Callable[[str], None],
    ) -> None:
        self._pipeline, self._claimed, self._folder = pipeline, claimed, claimed.folder
        self._on_batch = on_batch
        self._log = settings.logs / f"{pipeline.name}.log"
        self._result = StreamResult(pipeline.name, claimed.folder.url)
        self._seen = -1
        gateway = spark.sparkContext._gateway
        if (jvm := getattr(gateway, "proc", None)) is not None:
            claimed.add_process(jvm.pid)

        def query(rows: DataFrame) -> DataFrame:
            if pipeline.watermark is not None:
                rows = rows.withWatermark(pipeline.event_time, pipeline.watermark)
            return pipeline.transform(rows)

        limit = options.max_offsets_per_trigger
        with _plain_errors(pipeline):
            source = open_stream(spark, pipeline, settings, query, limit)
            result = query(source.rows)
        # 4
        self._dead_letters: DeadLetters | None = None
        if source.decoder is not None:
            self._dead_letters = DeadLetters(
                spark, pipeline, source.decoder, settings, self._folder, say
            )
            if found := self._dead_letters.recover():
                say(f"{found} broken records of an earlier run are now in the dead letters.")
        # 5
        with _plain_errors(pipeline):
            stream = (
                writer(result, pipeline.sink, settings)
                .queryName(pipeline.name)
                .outputMode(pipeline.output_mode)
                .option("checkpointLocation", self._folder.url)
            )
            if options.available_now:
                stream = stream.trigger(availableNow=True)
            elif options.trigger:
                stream = stream.trigger(processingTime=options.trigger)
            self._query = stream.start()

    def until(self, stop: threading.Event) -> StreamResult:
        """Follow the query until it ends or is told to stop."""
        # 6
        try:
            try:
                while not stop.is_set() and self._query.isActive:
                    stop.wait(_POLL_SECONDS)
                    self._follow()
            finally:
                # 7
                finish_and_stop(self._query)
            self._query.awaitTermination()
        except StreamingQueryException as error:
            self._follow()
            raise _batch_failed(self._pipeline, self._folder, error, str(self._log)) from None
        self._follow()
        if self._dead_letters:
            self._dead_letters.close()
        return self._result

    def _follow(self) -> None:
        """Report the batches that ended since the last look; set aside what they found broken."""
        self._claimed.renew()
        for progress in _new_progress(self._query, self._seen):
            report = _report(progress)
            missed = report.id - self._seen > 1 and self._seen >= 0
            self._seen = report.id
            self._result = self._result.plus(report)
            self._on_batch(report)
            self._set_aside(progress, report.broken > 0 or missed)

    def _set_aside(self, progress: dict[str, Any], any_broken: bool) -> None:
        if self._dead_letters is None or not isinstance(self._pipeline.source, Kafka):
            return
        end = progress["sources"][0]["endOffset"]
        offsets = topic_offsets(json.dumps(end) if end else None, self._pipeline.source.topic)
        if any_broken:
            self._dead_letters.write(offsets)
        else:
            self._dead_letters.pass_clean(offsets)


def _new_progress(query: StreamingQuery, seen: int) -> Iterator[dict[str, Any]]:
    """The progress of the batches after `seen`, oldest first; triggers without a batch left out."""
    recent = query._jsq.recentProgress()
    found: list[dict[str, Any]] = []
    for index in range(len(recent) - 1, -1, -1):
        if recent[index].batchId() <= seen:
            break
        progress = json.loads(recent[index].json())
        if "addBatch" in progress["durationMs"]:
            found.append(progress)
    yield from reversed(found)


def _report(progress: dict[str, Any]) -> BatchReport:
    return BatchReport(
        id=progress["batchId"],
        rows=progress["numInputRows"],
        broken=progress.get("observedMetrics", {}).get(METRICS, {}).get("broken", 0),
        watermark=progress.get("eventTime", {}).get("watermark"),
        duration_ms=progress["durationMs"]["triggerExecution"],
    )


def _prepare_topics(pipeline: Pipeline, settings: Settings, say: Callable[[str], None]) -> None:
    if not pipeline.topics:
        return
    servers = settings.servers
    broker.require_broker(servers)
    letters = pipeline.dead_letter_sink
    dead = (
        [letters.topic] if isinstance(letters, Kafka) and letters.topic in pipeline.topics else []
    )
    plain = [topic for topic in pipeline.topics if topic not in dead]
    made = broker.create_missing_topics(servers, plain)
    made += broker.create_missing_topics(servers, dead, config=TOPIC_CONFIG)
    if made:
        say(f"Created topic {', '.join(made)} with {broker.DEFAULT_PARTITIONS} partitions.")


@contextmanager
def _stop_on_signals() -> Iterator[tuple[threading.Event, Callable[[], None]]]:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C does not wait.

    Spark takes over SIGINT when a session starts, so `listen` is called again after that.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop, lambda: None
        return
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in signals}

    def handle(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    def listen() -> None:
        for number in signals:
            signal.signal(number, handle)

    listen()
    try:
        yield stop, listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _plain_errors(pipeline: Pipeline) -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise UsageError(
            f"Pipeline {pipeline.name} does not run as a stream: {_first_line(str(error))}",
            "Mend its transform, watermark, output mode or trigger.",
        ) from None


def _jvm_failed(error: Exception, log: Path) -> EbbtideError:
    java = getattr(error, "java_exception", None)
    cause = f"failed: {_first_line(java.toString())}" if java else "ended without a word"
    return EbbtideError(f"Spark's JVM {cause}.", f"See {log}, then start again.")


def _batch_failed(
    pipeline: Pipeline, folder: Folder, error: StreamingQueryException, log: str
) -> BatchFailedError:
    done = folder.ids("commits")
    planned = folder.ids("offsets")
    batch = max(planned, default=-1)
    if done and done[-1] >= batch:
        batch = done[-1] + 1
    return BatchFailedError(
        f"Batch {max(batch, 0)} of {pipeline.name} failed: {root_cause(error)}.",
        f"The next start runs it again. Details: {log}",
    )


def root_cause(error: StreamingQueryException) -> str:
    """The innermost cause in one line."""
    cause = getattr(error, "_origin", None)
    message = str(error)
    while cause is not None:
        message = cause.getMessage() or cause.getClass().getSimpleName() or message
        cause = cause.getCause()
    # a Python function failed: after its indented frames comes the exception
    message = message.rpartition("Traceback (most recent call last):")[2]
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith(" ")]
    return lines[0].split(" SQLSTATE: ")[0].strip(" .") if lines else "no cause was given"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason was given"
