"""Run recorded batches again, each with its offsets, watermark and time.

Steps: **1** find the recorded batches and those that an earlier replay has run, or make a fork to
replay to scratch; **2** check what the query needs, such as a broker; **3** claim the checkpoint;
**4** open the session; **5** open the query; and for each batch: **6** restore its log entry;
**7** run it; **8** record what it did and compare it with the first run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Protocol

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ebbtide.checkpoint import Backup, Journal, Timeline, read_logs
from ebbtide.config import Settings, SparkFlags
from ebbtide.connectors import streams
from ebbtide.errors import UsageError
from ebbtide.history import Entry, History
from ebbtide.replaying.outputs import compare_runs
from ebbtide.replaying.recorded_batches import Recorded, find_range, find_rewound, ran_again
from ebbtide.replaying.verdicts import NOT_COMPARED, ReplayVerdict, judge
from ebbtide.rewind import fork, lease, restore_offsets
from ebbtide.runtime import cluster, failures, stream
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


class ReplayedCode(Protocol):
    """The code to replay: everything in which a pipeline and a function of the user's differ."""

    name: str
    """Of the query, as messages have it."""
    app: str
    """Of the session, its log and the scratch folder."""
    rows_decide: bool
    """Whether rows are compared where a batch has no digest."""

    def prepare(self) -> None:
        """Check and create what the query needs besides its checkpoint."""

    def claim(
        self, folder: Folder, options: ReplayOptions, pause: lease.Pause
    ) -> AbstractContextManager[lease.Claim]:
        """Hold the checkpoint; refused if it is in use."""

    def open_session(
        self, folder: Folder, options: ReplayOptions
    ) -> AbstractContextManager[SparkSession]:
        """The session in which it runs."""

    def open(self, spark: SparkSession, folder: Folder) -> None:
        """Do what comes before the first batch."""

    def start(self, location: str) -> StreamingQuery:
        """Start the query on a checkpoint for one batch."""

    def record(self, progress: dict[str, Any]) -> Entry:
        """Record what a batch did; returns its entry in the history."""

    def read_first(self, spark: SparkSession, entry: Entry) -> streams.WrittenRows:
        """The rows that the first run of a batch wrote."""

    def read_again(self, spark: SparkSession, entry: Entry) -> streams.WrittenRows:
        """The rows that this run of a batch wrote."""

    def close(self) -> None:
        """Clean up after the last batch."""


Make = Callable[[Folder, str | None], ReplayedCode]
"""The code over a checkpoint; it writes to a scratch folder if one is given."""


def replay_code(
    make: Make,
    location: str,
    app: str,
    settings: Settings,
    options: ReplayOptions,
    *,
    on_batch: OnBatch = lambda _done, _all: None,
) -> ReplayResult:
    """Run recorded batches again, in place after a rewind or to scratch, and compare them."""
    with stream.stop_on_signals() as (stop, listen):
        # 1
        origin, scratch = _open(location), None
        if options.to_scratch:
            scratch = options.scratch or _new_scratch(app, settings)
            cluster.require_shared(options.master, {"scratch folder": scratch})
        code, folder = make(origin, scratch), origin
        if scratch is None:
            recorded = find_rewound(origin)
        else:
            recorded = find_range(origin, options.from_batch, options.to_batch)
            folder = _fork(origin, recorded.first, scratch, assume_stopped=options.assume_stopped)
        again = ran_again(folder, recorded)
        verdicts = _judge_done(folder, recorded, again)
        result = ReplayResult(
            code.name, origin.url, recorded.first, recorded.last, tuple(verdicts), scratch
        )
        on_batch(len(verdicts), len(recorded.offsets))
        if result.finished and not (code.rows_decide and result.count(NOT_COMPARED)):
            return result
        # 2
        code.prepare()
        with (
            # 3
            code.claim(folder, options, partial(stream.pause_until, stop)) as claimed,
            # 4
            code.open_session(folder, options) as spark,
        ):
            listen()
            run = _Replay(spark, code, recorded, claimed, options, settings)
            if code.rows_decide:
                decided = [run.decide(done, again.get(done.batch)) for done in result.verdicts]
                result = replace(result, verdicts=tuple(decided))
            while not (result.finished or stop.is_set()):
                verdict = run.next(recorded.first + len(result.verdicts))
                result = replace(result, verdicts=(*result.verdicts, verdict))
                on_batch(len(result.verdicts), len(recorded.offsets))
            code.close()
    return result


def _open(location: str) -> Folder:
    """The checkpoint to replay; refused if it is invalid or half changed."""
    folder = open_folder(location)
    read_logs(folder)
    if (journal := Journal.read(folder)) is not None:
        raise journal.interrupted(folder.url)
    return folder


def _judge_done(
    folder: Folder, recorded: Recorded, again: Mapping[int, Entry]
) -> list[ReplayVerdict]:
    """The verdicts by digests on batches that an earlier replay has run."""
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


def _new_scratch(app: str, settings: Settings) -> str:
    now = datetime.now(timezone.utc)
    return settings.location("scratch", f"{app}-{now:%Y%m%dT%H%M%S.%fZ}")


def describe_run(origin: Folder, entry: Entry, name: str) -> streams.BatchRun:
    """One run of a batch, so that a sink can find what it wrote."""
    start, end = (round(parse_time(at).timestamp() * 1000) for at in (entry.started, entry.ended))
    history, backups = History((entry,)), None
    ids = Backup.query_ids(origin, read_logs(origin).query_id)
    if not history.of(Timeline.read(origin)):
        backups = tuple(b.id for b in Backup.read_all(origin) if history.of(b.timeline))
    return streams.BatchRun(name, entry.batch, entry.timeline, start, end, ids, backups)


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
        code: ReplayedCode,
        recorded: Recorded,
        claimed: lease.Claim,
        options: ReplayOptions,
        settings: Settings,
    ) -> None:
        self._spark, self._code, self._recorded = spark, code, recorded
        self._claimed, self._folder, self._shown = claimed, claimed.folder, options.rows
        self._location = cluster.spark_location(claimed.folder, options.master)
        self._log = settings.logs / f"{code.app}.log"
        if (jvm := getattr(spark.sparkContext._gateway, "proc", None)) is not None:
            claimed.add_process(jvm.pid)
        # 5
        code.open(spark, self._folder)

    def next(self, batch: int) -> ReplayVerdict:
        """Run one batch as it was planned, and compare it with its first run."""
        # 6
        self._claimed.check()
        restore_offsets(self._claimed.writable, batch, self._recorded.offsets[batch])
        # 7
        progress = self._run()
        # 8
        now = None if progress is None else self._code.record(progress)
        return self.decide(judge(batch, self._recorded.entries.get(batch), now), now)

    def decide(self, verdict: ReplayVerdict, now: Entry | None) -> ReplayVerdict:
        """A verdict by digests, with the rows that differ; without digests, the rows decide."""
        first = self._recorded.entries.get(verdict.batch)
        if first is None or now is None:
            return verdict
        read_first = partial(self._code.read_first, self._spark, first)
        read_again = partial(self._code.read_again, self._spark, now)
        return compare_runs(verdict, read_first, read_again, self._shown)

    def _run(self) -> dict[str, Any] | None:
        """Let Spark run the batch that is planned and not committed; returns its progress."""
        running = self._code.start(self._location)
        try:
            while not running.awaitTermination(_POLL_SECONDS):
                self._claimed.require()
        except StreamingQueryException as error:
            raise failures.batch_failed(self._code.name, self._folder, error, self._log) from None
        finally:
            running.stop()
        return next(iter(stream.new_progress(running, -1)), None)
