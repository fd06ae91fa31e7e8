"""Follow one run of a query: keep its history, its lease, its metrics and where it writes.

Nothing here may fail or slow the query. Spark's listener only puts texts into a queue; threads of
this module do the rest, and what a store does not take is said once and tried again.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from ebbtide.checkpoint import Journal, Owner, layout, log_files, read_checkpoint
from ebbtide.connectors import connector_of_offset, sinks
from ebbtide.errors import CheckpointError
from ebbtide.history import Recorder, fill_gaps, read_history
from ebbtide.notes import write_note
from ebbtide.registry import note_use
from ebbtide.rewind import lease
from ebbtide.runtime import failures
from ebbtide.runtime import metrics_endpoint as endpoint
from ebbtide.storage import Folder, open_folder
from ebbtide.times import in_utc, parse_time

_TRY_AGAIN_SECONDS = 10
_WAITING_BYTES = 32 * 1024 * 1024
"""How much may wait for a store that does not answer; more is left out."""
_HISTORY, _LEASE = "The history", "The lease of the checkpoint"
_turns: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
"""A query that is stopped and started again waits until its last run is written."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class RunningQuery:
    """A run of a query, as far as Spark tells of it."""

    location: str
    """Of its checkpoint."""
    name: str | None
    is_active: Callable[[], bool]
    has_one_watermark: Callable[[], bool]
    """Whether Spark's own statistics of event times are those of all records."""
    qualify: Callable[[str], str]
    """Give the path of a sink its scheme, as Spark resolves it."""
    recent_progress: Callable[[int], list[str]] = lambda _batch: []
    """The batches after one, of which Spark keeps a hundred: it drops events, or we came late."""
    processes: tuple[int, ...] = ()
    """Other processes that must be gone before the query may start again: its JVM."""
    id: str | None = None
    """What the checkpoint must say whose it is, where Spark does not tell its location."""
    output_mode: str | None = None
    """None where Spark does not tell it."""

    def open_checkpoint(self) -> Folder:
        """The folder of its checkpoint; raises if that is another query's."""
        folder = open_folder(self.location)
        if self.id is not None and (owner := log_files.read_query_id(folder)) != self.id:
            raise CheckpointError(
                f"{folder.url} is the checkpoint of query {owner}, not of {self.id}.",
                "Name the right one: ebbtide.attach(query, checkpoint=…)",
            )
        return folder


class _WaitingTexts(queue.Queue["str | None"]):
    """A queue that is full by the memory of what waits in it, not by its number."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._bytes = 0

    def _qsize(self) -> int:
        return self._bytes

    def _put(self, item: str | None) -> None:
        super()._put(item)
        self._bytes += sys.getsizeof(item)

    def _get(self) -> str | None:
        item = super()._get()
        self._bytes -= sys.getsizeof(item)
        return item


class Follower:
    """Follows one run of a query, from its start to its end."""

    def __init__(
        self, query: RunningQuery, metrics: endpoint.Metrics, say: Say, on_end: Callable[[], None]
    ) -> None:
        self.query, self.metrics = query, metrics
        self._on_end = on_end
        """Called when the query has ended, and all is written and given back."""
        self._texts = _WaitingTexts(_WAITING_BYTES)
        self._closing, self._ended = threading.Event(), threading.Event()
        self._is_left = False
        """Whether the query goes on: its lease is kept, or it would count as stopped."""
        self._outages = failures.Outages(say)
        self._last = -1
        """The number of the last batch that was recorded."""
        self._noted: str | None = None
        """What Spark calls the sink that is noted in the checkpoint."""
        self._threads = [
            threading.Thread(target=work, name=f"ebbtide-{what}", daemon=True)
            for what, work in (("history", self._follow), ("attached", self._hold))
        ]

    def start(self) -> None:
        """Begin to follow."""
        self.metrics.running = True
        for thread in self._threads:
            thread.start()

    def observe(self, progress: str) -> None:
        """Take the progress of a trigger as JSON; returns at once."""
        try:
            self._texts.put_nowait(progress)
        except queue.Full:
            self._outages.report(_HISTORY, "the store does not answer, and too much waits")

    def end(self) -> None:
        """The query has ended: write what is left, then give the checkpoint back."""
        self.metrics.running = False
        self._closing.set()
        with suppress(queue.Full):
            self._texts.put_nowait(None)  # so that nobody waits for the next text

    def leave(self) -> None:
        """Write what is left, and follow no more; the lease is kept while the query runs."""
        self._is_left = True
        self.end()

    def join(self, deadline: float) -> None:
        """Wait until all is written and given back, by the monotonic clock."""
        history, _holding = self._threads
        for thread in (history,) if self._is_left else self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def drain(self, deadline: float) -> None:
        """Wait until all that is known is written."""
        while self._texts.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)

    def _follow(self) -> None:
        """Write the history until the query ends, after what an earlier run of it left."""
        with _turns[self.query.location, _HISTORY]:
            try:
                if (recorder := self._wait_for_store()) is not None:
                    self._write(recorder)
            finally:
                self._ended.set()

    def _wait_for_store(self) -> Recorder | None:
        """Open the history; what comes meanwhile waits. None if the query ends before."""
        opened: list[Recorder] = []
        while not opened:
            is_last = self._closing.is_set()
            with self._outages.tolerate(_HISTORY):
                opened.append(self._open())
            if is_last:
                break
            if not opened:
                self._closing.wait(_TRY_AGAIN_SECONDS)
        return next(iter(opened), None)

    def _open(self) -> Recorder:
        """Complete what an earlier run that was killed could not write."""
        folder = self.query.open_checkpoint()
        note_use(folder.url)
        with self._outages.tolerate("The history of earlier batches"):
            if folder.exists("metadata") and Journal.read(folder) is None:
                fill_gaps(read_checkpoint(self.query.location))
        return Recorder.for_program(folder, self.query.has_one_watermark, self.query.output_mode)

    def _write(self, recorder: Recorder) -> None:
        is_last, recorded = False, set[tuple[int, str]]()
        with self._outages.tolerate(_HISTORY):
            recorded = self._recorded_before()
        self._catch_up(recorder, recorded)
        while not is_last:
            is_closing = self._closing.is_set()
            try:
                text = self._texts.get(timeout=0 if is_closing else _TRY_AGAIN_SECONDS)
            except queue.Empty:
                text, is_last = "", is_closing
            else:
                is_last = text is None
            with self._outages.tolerate(_HISTORY):
                if text:
                    progress = json.loads(text)
                    progress = progress.get("progress", progress)  # an event has it inside
                    if progress["batchId"] > self._last + 1:
                        self._catch_up(recorder)
                    self._record(recorder, progress)
                else:
                    recorder.catch_up()
            if text != "":
                self._texts.task_done()
        self._catch_up(recorder)

    def _recorded_before(self) -> set[tuple[int, str]]:
        """The batches of this run that were recorded: it may have been followed before."""
        if not self._ask_recent():
            return set()
        entries = read_history(open_folder(self.query.location)).entries
        return {(entry.batch, entry.started) for entry in entries}

    def _ask_recent(self) -> list[dict[str, Any]]:
        recent = list[str]()
        with suppress(Exception):  # a server or a JVM that is gone
            recent = self.query.recent_progress(self._last)
        return [json.loads(text) for text in recent]

    def _catch_up(
        self, recorder: Recorder, recorded: Collection[tuple[int, str]] = frozenset()
    ) -> None:
        """Record the batches of which no event came."""
        for progress in self._ask_recent():
            started = in_utc(parse_time(progress["timestamp"]))
            if (progress["batchId"], started) in recorded:
                self._last = max(self._last, progress["batchId"])
            if self._is_new(progress):
                with self._outages.tolerate(_HISTORY):
                    self._record(recorder, progress)

    def _is_new(self, progress: dict[str, Any]) -> bool:
        """Whether a trigger ran a batch, and that is not recorded yet."""
        return "addBatch" in progress["durationMs"] and progress["batchId"] > self._last

    def _record(self, recorder: Recorder, progress: dict[str, Any]) -> None:
        if not self._is_new(progress):
            recorder.catch_up()  # only then the history is written, as the caller says
            return
        entry = recorder.entry(progress)
        self._last = entry.batch  # from here on, the recorder keeps it
        self.metrics.observe(entry)  # first, as it needs no disk
        recorder.keep(entry)
        description = progress["sink"]["description"]
        if description != self._noted:
            with self._outages.tolerate("The sink"):
                note_owner(open_folder(self.query.location), self.query, progress)
                self._noted = description

    def _hold(self) -> None:
        """Hold the lease of the checkpoint until the query ends."""
        with _turns[self.query.location, _LEASE]:
            is_over = self._is_over(0)
            while not is_over:
                with self._outages.tolerate(_LEASE), suppress(_EndedError):
                    self._take()
                is_over = self._is_over(_TRY_AGAIN_SECONDS)
        self._on_end()

    def _is_over(self, seconds: float) -> bool:
        """Wait for the end of the query, whether or not it is still followed."""
        if not (self._ended.wait(seconds) and self._is_left):
            return self._ended.is_set()
        try:
            is_active = self.query.is_active()
        except Exception:  # a JVM that is gone
            return True
        time.sleep(seconds if is_active else 0)
        return not is_active

    def _take(self) -> None:
        """Hold the lease; raises if another process has the checkpoint, or takes it."""
        folder = self.query.open_checkpoint()
        if (journal := Journal.read(folder)) is not None:
            raise journal.interrupted(self.query.location)
        with lease.hold_lease(folder, lease.RUN, pause=self._pause) as claimed:
            for process in self.query.processes:
                claimed.add_process(process)
            self._outages.report(_LEASE, None)
            while not self._is_over(1):
                claimed.require()

    def _pause(self, seconds: float) -> None:
        if self._is_over(seconds):
            raise _EndedError


class _EndedError(Exception):
    """The query ended while its lease was waited for."""


def note_owner(folder: Folder, query: RunningQuery, progress: dict[str, Any]) -> None:
    """Note in the checkpoint what its query reads and where it writes, as far as Spark tells.

    What is not known is not noted either: an earlier run may have written elsewhere.
    """
    before = Owner.read(folder)
    kinds = {connector_of_offset(source["endOffset"]).kind for source in progress["sources"]}
    source = {"kind": kinds.pop()} if len(kinds) == 1 else None
    if source and (before.source or {}).get("kind") == source["kind"]:
        source = dict(before.source or {})
    place, problem = None, None
    try:
        place = sinks.recognize_sink(progress["sink"]["description"], query.qualify)
    except Exception as error:  # from Spark, or from a store
        problem = error
    sink = asdict(place) if place else None
    known = before.sink_of(folder) or {}
    if place and not place.path and known.get("kind") == place.kind:
        sink = dict(known)  # such as a topic, which Spark does not tell
    owner = replace(
        before,
        pipeline=query.name or before.pipeline,
        source=source,
        sink=sink,
        location=folder.address,
        is_attached=True,
    )
    if owner != before:
        write_note(folder, layout.OWNER, owner.to_dict())
    if problem is not None:
        raise problem
