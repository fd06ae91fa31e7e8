"""Follow one query: keep its history, its lease, its metrics and where it writes.

Nothing here may fail or slow the query. Spark's listener only puts events into a queue; a thread of
this module does the rest, and what a store does not take is said once and tried again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from ebbtide.checkpoint import Journal, Owner, layout, read_checkpoint
from ebbtide.connectors import connector_of_offset, sinks
from ebbtide.errors import EbbtideError
from ebbtide.history import Recorder, fill_gaps
from ebbtide.notes import write_note
from ebbtide.registry import note_use
from ebbtide.rewind import lease
from ebbtide.runtime import failures
from ebbtide.runtime import metrics_endpoint as endpoint
from ebbtide.storage import Folder, open_folder

_TRY_AGAIN_SECONDS = 10
_WAITING = 10_000
"""How many batches may wait for a store that does not answer; more are left out."""
_HISTORY, _LEASE = "The history", "The lease of the checkpoint"
_turns: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
"""A query that is stopped and started again waits until its last run is written."""
Say = Callable[[str], None]


class Follower:
    """Follows one run of a query, from its start to its end."""

    def __init__(
        self,
        location: str,
        name: str | None,
        metrics: endpoint.Metrics,
        say: Say,
        on_end: Callable[[], None],
    ) -> None:
        self._location, self._name, self._metrics = location, name, metrics
        self._on_end = on_end
        """Called when the query has ended, and all is written and given back."""
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue(_WAITING)
        self._closing, self._ended = threading.Event(), threading.Event()
        self._outages = failures.Outages(say)
        self._noted: str | None = None
        """What Spark calls the sink that is noted in the checkpoint."""
        self._threads = [
            threading.Thread(target=work, name=f"ebbtide-{what}", daemon=True)
            for what, work in (("history", self._follow), ("attached", self._hold))
        ]

    def start(self, processes: tuple[int, ...] = ()) -> None:
        """Begin to follow; `processes` must be gone, too, before the query may start again."""
        self._processes = processes
        self._metrics.running = True
        for thread in self._threads:
            thread.start()

    def observe(self, progress: dict[str, Any]) -> None:
        """Take the progress of a trigger; returns at once."""
        if "addBatch" not in progress["durationMs"]:  # a trigger without a batch
            return
        try:
            self._events.put_nowait(progress)
        except queue.Full:
            self._outages.report(_HISTORY, "the store does not answer, and too much waits")

    def end(self) -> None:
        """The query has ended: write what is left, then give the checkpoint back."""
        self._metrics.running = False
        self._closing.set()
        with suppress(queue.Full):
            self._events.put_nowait(None)

    def join(self, seconds: float) -> None:
        """Wait until all is written, at most so long."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(seconds)

    def drain(self, seconds: float) -> None:
        """Wait until all that is known is written, at most so long."""
        deadline = time.monotonic() + seconds
        while self._events.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)

    def _follow(self) -> None:
        """Write the history until the query ends, after what an earlier run of it left."""
        with _turns[self._location, _HISTORY]:
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

    def _write(self, recorder: Recorder) -> None:
        progress: dict[str, Any] | None = {}
        while progress is not None:
            try:
                progress = self._events.get(timeout=_TRY_AGAIN_SECONDS)
            except queue.Empty:
                progress = {}
            with self._outages.tolerate(_HISTORY):
                if progress:
                    self._record(recorder, progress)
                else:
                    recorder.catch_up()
            if progress:
                self._events.task_done()

    def _open(self) -> Recorder:
        """Complete what an earlier run that was killed could not write."""
        folder = open_folder(self._location)
        note_use(folder.url)
        if folder.exists("metadata"):
            with self._outages.tolerate("The history of earlier batches"):
                fill_gaps(read_checkpoint(self._location))
        return Recorder.for_program(folder)

    def _record(self, recorder: Recorder, progress: dict[str, Any]) -> None:
        entry = recorder.entry(progress)
        self._metrics.observe(entry)  # first, as it needs no disk
        recorder.keep(entry)
        description = progress["sink"]["description"]
        if description != self._noted:
            note_owner(open_folder(self._location), self._name, progress)
            self._noted = description

    def _hold(self) -> None:
        """Hold the lease of the checkpoint until the query ends."""
        with _turns[self._location, _LEASE]:
            self._take()
        self._on_end()

    def _take(self) -> None:
        while not self._ended.is_set():
            with self._outages.tolerate(_LEASE):
                folder = open_folder(self._location)
                if (journal := Journal.read(folder)) is not None:
                    raise journal.interrupted(self._location)
                with lease.hold_lease(folder, lease.RUN, pause=self._pause) as claimed:
                    for process in self._processes:
                        claimed.add_process(process)
                    self._outages.report(_LEASE, None)
                    self._keep(claimed)
            self._ended.wait(_TRY_AGAIN_SECONDS)

    def _keep(self, claimed: lease.Claim) -> None:
        """Wait for the end; raise if another process has taken the checkpoint."""
        while not self._ended.wait(1):
            claimed.require()

    def _pause(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise EbbtideError("The query has ended.", "")


def note_owner(folder: Folder, name: str | None, progress: dict[str, Any]) -> None:
    """Note in the checkpoint what its query reads and where it writes, as far as Spark tells."""
    before = Owner.read(folder)
    kinds = {connector_of_offset(source["endOffset"]).kind for source in progress["sources"]}
    source = {"kind": kinds.pop()} if len(kinds) == 1 else None
    if source and (before.source or {}).get("kind") == source["kind"]:
        source = dict(before.source or {})
    place = sinks.recognize_sink(progress["sink"]["description"])
    owner = replace(
        before,
        pipeline=name or before.pipeline,
        source=source,
        sink=asdict(place) if place else None,
        location=folder.address,
    )
    if owner != before:
        write_note(folder, layout.OWNER, owner.to_dict())
