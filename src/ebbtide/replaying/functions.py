"""Replay a query that a function of the user's builds, in place or to scratch.

Step 5 of a replay, opening the query, has parts of its own here: import the user's code, call the
function, and refuse a query that cannot go on from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide import attaching
from ebbtide.checkpoint import Owner, Timeline
from ebbtide.compatibility import (
    Written,
    call_build,
    check_written,
    describe_written,
    find_missing,
    load_build,
    read_demands,
)
from ebbtide.config import Settings
from ebbtide.connectors import connector_of, streams
from ebbtide.connectors.spark import digests
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.history import Entry, Recorder, read_history
from ebbtide.replaying.run import (
    OnBatch,
    ReplayedCode,
    ReplayOptions,
    ReplayResult,
    describe_run,
    replay_code,
    rows_of,
)
from ebbtide.rewind import lease, sinks
from ebbtide.runtime import cluster, failures, ownership, session, stream
from ebbtide.storage import Folder

_APP = "replay"
_OBSERVE = "to count them, put ebbtide.observe around what is written"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
Build = Callable[[SparkSession], DataFrame | DataStreamWriter]


def replay_function(
    load: Callable[[], Build],
    settings: Settings,
    options: ReplayOptions,
    *,
    on_batch: OnBatch = lambda _done, _all: None,
    say: stream.Say = lambda _line: None,
) -> ReplayResult:
    """Run recorded batches again with what a function of the Spark session builds.

    `load` gives the function. It is called when there is a session: a script may ask for one when
    it is imported.
    """
    if (location := options.checkpoint) is None:
        raise UsageError("A function has no checkpoint of its own.", "Add --checkpoint CKPT.")
    cluster.share_settings(options.conf)
    options = cluster.resolve(options)
    cluster.require_shared(options.master, {"checkpoint": location})

    def make(origin: Folder, scratch: str | None) -> ReplayedCode:
        if scratch is None:
            return _InPlace(load, settings, say, origin)
        return _Beside(load, settings, say, origin, scratch)

    return replay_code(make, location, _APP, settings, options, on_batch=on_batch)


class _InPlace:
    """The user's own query, with its sink."""

    app, rows_decide = _APP, True

    def __init__(
        self, load: Callable[[], Build], settings: Settings, say: stream.Say, origin: Folder
    ) -> None:
        self._load, self._settings, self._say, self._origin = load, settings, say, origin
        self.name = Owner.read(origin).pipeline or "the query"
        entries = read_history(origin).of(Timeline.read(origin))
        self._first_mode = entries[max(entries)].output_mode if entries else None
        self._sink = _open_sink(sinks.KnownSinks.read(origin), settings)

    def prepare(self) -> None:
        """Nothing: what the query needs is the user's."""

    def claim(
        self, folder: Folder, options: ReplayOptions, pause: lease.Pause
    ) -> AbstractContextManager[lease.Claim]:
        """Hold the checkpoint; whose it is stays as it was noted."""
        return ownership.hold(folder, assume_stopped=options.assume_stopped, pause=pause)

    def open_session(
        self, folder: Folder, options: ReplayOptions
    ) -> AbstractContextManager[SparkSession]:
        """A session that reads the checkpoint's format of state, unless --conf says otherwise."""
        wanted: dict[str, str] = {}
        if find_missing(folder.url) is None:
            _, demands = read_demands(folder.url)
            wanted = {**demands.conf, **({_FORMAT: "2"} if demands.has_state_ids else {})}
        return session.open_safe_session(
            _APP,
            self._settings,
            master=options.master,
            conf=options.conf,
            wanted=wanted,
            locations=[folder.url],
        )

    def open(self, spark: SparkSession, folder: Folder) -> None:
        """Build the query; refuse one that cannot go on from the checkpoint."""
        build = load_build(self._load)
        result = call_build(spark, build)
        attaching.detach(spark)  # a replay keeps its own history, and holds the checkpoint itself
        self._written = describe_written(result)
        self._rows = self._written.rows
        self._is_observed = digests.is_observed(self._rows)
        mode, first = self._written.output_mode, self._first_mode
        if mode and first and mode != first:
            self._say(f"Output mode {mode}, as the function says; the first run had {first}.")
        self._writer = self._open_writer(result)
        if find_missing(folder.url) is None:  # after a rewind to nothing, any code fits
            self._require_fit(folder, spark)
        plan = str(self._rows._jdf.queryExecution().analyzed().toString())
        watermarks = plan.count("EventTimeWatermark")
        mode = self._judged().output_mode
        self._recorder = Recorder.for_function(folder, build, lambda: watermarks == 1, mode)

    def _require_fit(self, folder: Folder, spark: SparkSession) -> None:
        report = check_written(*read_demands(folder.url), self._judged(), spark)
        if report.breaking:
            broken = "; ".join(f"{part.part}: {part.detail}" for part in report.breaking)
            raise CheckpointError(
                f"The new code cannot go on with batch {report.next_batch} of "
                f"{self._origin.url}: {broken}.",
                "For the ways out, type: ebbtide check CKPT path.py:build",
            )

    def _judged(self) -> Written:
        """What must fit to the checkpoint."""
        return self._written

    def _open_writer(self, result: DataFrame | DataStreamWriter) -> DataStreamWriter:
        if isinstance(result, DataStreamWriter):
            return result
        raise UsageError(
            "The function returns rows, so where they go is not known.",
            "Return what .writeStream and its options give, before .start(), or replay with "
            "--to-scratch.",
        )

    def start(self, location: str) -> StreamingQuery:
        """Run one batch."""
        with failures.start_errors(self.name, "Fix it first."):
            writer = self._writer.option("checkpointLocation", location)
            return writer.trigger(once=True).start()

    def record(self, progress: dict[str, Any]) -> Entry:
        """Record what a batch did."""
        return self._recorder.record(progress)

    def read_first(self, spark: SparkSession, entry: Entry) -> streams.WrittenRows:
        """The rows that the first run of a batch wrote."""
        run = describe_run(self._origin, entry, self.name)
        written = self._sink.read_batch(spark, run, self._rows.schema)
        if entry.output is not None:
            return written
        reason, doubt = (
            text and f"{text} ({_OBSERVE})" for text in (written.reason, written.doubt)
        )
        return replace(written, reason=reason, doubt=doubt)

    def read_again(self, spark: SparkSession, entry: Entry) -> streams.WrittenRows:
        """The rows that this run of a batch wrote: to the same sink."""
        return self.read_first(spark, entry)

    def close(self) -> None:
        """Nothing is left to clean up."""


class _Beside(_InPlace):
    """The query over a fork, with its results in files."""

    def __init__(
        self,
        load: Callable[[], Build],
        settings: Settings,
        say: stream.Say,
        origin: Folder,
        scratch: str,
    ) -> None:
        super().__init__(load, settings, say, origin)
        self._scratch = scratch

    def _judged(self) -> Written:
        """Without its sink: the rows go to files of ours."""
        return replace(self._written, sink=None, output_mode=self._mode)

    def _open_writer(self, result: DataFrame | DataStreamWriter) -> DataStreamWriter:
        """A writer of each batch to its own files."""
        del result
        self._mode = self._find_mode()
        rows = self._rows
        if not self._is_observed:  # Spark allows it once
            rows = digests.observe_output(digests.with_hash(rows)).drop(digests.HASH)

        def keep(batch: DataFrame, number: int) -> None:
            batch.write.mode("overwrite").parquet(rows_of(self._scratch, number))

        return rows.writeStream.outputMode(self._mode).foreachBatch(keep)

    def _find_mode(self) -> str:
        """That of the writer, or of the first run."""
        if mode := self._written.output_mode or self._first_mode:
            return mode
        self._say(
            "Output mode append, Spark's default: the function returns rows, and the first run did "
            "not note its mode. For another, return rows.writeStream.outputMode(…)."
        )
        return "append"

    def read_again(self, spark: SparkSession, entry: Entry) -> streams.WrittenRows:
        """The rows that this run of a batch wrote."""
        schema = self._rows.schema
        rows = spark.read.schema(schema).parquet(rows_of(self._scratch, entry.batch))
        return self._sink.as_written(rows, schema)


def _open_sink(known: sinks.KnownSinks, settings: Settings) -> streams.SparkSink[Any]:
    """The sink that the query wrote to, to read what it holds; of several, none is the output."""
    sink: streams.SparkSink[Any] = streams.SparkSink(None, settings)
    place = known.places[0] if len(known.places) == 1 else None
    connector = connector_of(place.kind) if place else None
    if place and connector and (value := connector.sink.as_value(place)) is not None:
        sink = connector.open_sink(value, settings)
    sink.is_exact = True  # where no digest decides, the rows do
    return sink
