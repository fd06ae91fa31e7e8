"""Snapshots of the known checkpoints, read again when a checkpoint has changed.

A snapshot is kept until a cheap stamp shows that the checkpoint has changed. Kafka and Delta are
asked less often, because what they retain changes slowly. Each checkpoint is read in its own
thread, which a request waits for only briefly: a store may never answer.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookLong
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Generic, TypeVar

from ebbtide.checkpoint import Backup, Checkpoint, Journal, Owner, Timeline, layout, read_checkpoint
from ebbtide.config import Settings
from ebbtide.connectors.kafka import KafkaConnection, answers
from ebbtide.errors import BrokerError, BusyError, CheckpointError, NotFoundError, UsageError
from ebbtide.history import Entry, History, kept_entries, read_history, store
from ebbtide.local import find_connection
from ebbtide.notes import read_lines, read_note
from ebbtide.registry import OPENED, KnownCheckpoint, absolute, is_remote, list_known, note_use
from ebbtide.report import overview
from ebbtide.retention import Retained, Window, Windows, read_windows, restorable
from ebbtide.rewind import lease
from ebbtide.storage import NOTES, Folder, open_folder
from ebbtide.times import EPOCH

_STAMPED = ("", "offsets", "commits", "state", NOTES, store.HISTORY, layout.BACKUPS)
"""Folders whose modification times show that something has changed."""
Marks = tuple[int, ...]
_REMOTE_SECONDS = 5.0
_SETTLED_NS = 2_000_000_000
"""Within this time, another change may get the same timestamp: some disks count in seconds."""
_WINDOWS_SECONDS = 30.0
_BROKER_SECONDS = 10.0
_ANSWER_SECONDS = 1.0
_FORKS_SECONDS = 10.0
_PATIENCE_SECONDS = 5.0
"""How long a request waits for a checkpoint to be read."""
_WAITING = 10
"""Number of requests that may wait for remote stores, each in one of the 40 server threads."""
T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """One checkpoint as it was when it was last read."""

    key: str
    location: str
    name: str
    checkpoint: Checkpoint
    history: History
    entries: Mapping[int, Entry]
    windows: Windows
    owner: Owner
    """The runner's note: pipeline, source, sink."""
    timeline: Timeline
    backups: tuple[Backup, ...]
    audit: tuple[Mapping[str, Any], ...]
    """Its changes, oldest first."""
    forks: tuple[Mapping[str, Any], ...]
    """The notes of known checkpoints that were forked from it."""
    running: str | None
    """Who runs it."""
    interrupted: Journal | None
    stamp: str
    """Differs whenever something has changed."""

    @cached_property
    def ids(self) -> list[int]:
        """Every batch that has a log entry or a history, ascending."""
        return sorted({*self.entries, *self.checkpoint.logs.by_id})


@dataclass
class _Cached:
    """What is kept of one checkpoint between two requests."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reading: Future[Snapshot] | None = None
    begun: float = 0.0
    snapshot: Snapshot | None = None
    mark: Marks | None = None
    read_at: float = 0.0
    lease: lease.Lease | None = None
    parsed: store.Parsed = field(default_factory=dict)
    windows: Windows | None = None
    windows_of: object = None
    windows_at: float = 0.0
    windows_now: datetime = EPOCH

    def is_fresh(self, mark: Marks | None) -> bool:
        """Whether the snapshot is still valid."""
        now = time.monotonic()
        if self.snapshot is None or now - self.windows_at >= _WINDOWS_SECONDS:
            return False
        if mark is None:
            return now - self.read_at < _REMOTE_SECONDS
        # a process may end without leaving a trace on the disk
        running = self.lease.user() if self.lease else None
        return bool(mark) and mark == self.mark and running == self.snapshot.running


class Snapshots:
    """The known checkpoints and their snapshots."""

    def __init__(self, settings: Settings, opened: Iterable[str] = ()) -> None:
        self.settings = settings
        self._opened = [absolute(location) for location in opened]
        self._cached: dict[str, _Cached] = {}
        self._found: dict[str, KnownCheckpoint] = {}
        self._lock = threading.Lock()
        self._connection: tuple[float, KafkaConnection | None] = (-_BROKER_SECONDS, None)
        self._noted: tuple[float, list[Mapping[str, Any]]] = (-_FORKS_SECONDS, [])
        self._readings: set[Future[Any]] = set()
        self._waiting = threading.BoundedSemaphore(_WAITING)

    def entries(self) -> list[KnownCheckpoint]:
        """Every known checkpoint, sorted by name."""
        listed = list_known(self.settings, self._opened)
        self._found = {one.key: one for one in listed}
        return sorted(listed, key=lambda one: (one.name, one.location))

    def find(self, key: str) -> KnownCheckpoint:
        """One of them; refused if it is unknown."""
        if key not in self._found:
            self.entries()
        if (found := self._found.get(key)) is not None:
            return found
        raise NotFoundError(
            "This checkpoint is not in the list.", "Open it by its path or URL on the list."
        )

    def open(self, location: str) -> KnownCheckpoint:
        """Add a checkpoint; refused if it cannot be read as one."""
        if not location.strip():
            raise UsageError("No checkpoint is named.", "Enter its path, or a URL such as s3://…")
        location = absolute(location.strip())
        self._wait(self._begin(lambda: read_checkpoint(location)), location, _PATIENCE_SECONDS)
        if location not in self._opened:
            self._opened.append(location)
        note_use(location)
        return self.find(KnownCheckpoint(location, OPENED).key)

    def connection(self, *, again: bool = False) -> KafkaConnection | None:
        """The connection to the broker, if it answers at once.

        That it answered a moment ago is enough, unless it is to be asked `again`.
        """
        at, connection = self._connection
        if again or time.monotonic() - at >= _BROKER_SECONDS:
            connection = find_connection(self.settings)
            if connection is not None and not answers(connection, _ANSWER_SECONDS):
                connection = None
            self._connection = (time.monotonic(), connection)
        return connection

    def no_broker(self) -> BrokerError:
        """Why there is no broker to ask."""
        connection = find_connection(self.settings)
        if connection is None:
            return BrokerError.not_running()
        return BrokerError.unreachable(connection.address, _ANSWER_SECONDS)

    def read(self, key: str) -> Snapshot:
        """What a checkpoint holds, read again if it has changed.

        While a store does not answer: what it held before, else refused as busy.
        """
        place, came = self.find(key), time.monotonic()
        with self._lock:
            cached = self._cached.setdefault(key, _Cached())
        while True:
            with cached.lock:
                if cached.reading is None or cached.reading.done():
                    cached.begun = time.monotonic()
                    cached.reading = self._begin(lambda: self._look(place, cached))
                reading, begun = cached.reading, cached.begun
            try:
                left = begun + _PATIENCE_SECONDS - time.monotonic()
                found = self._wait(reading, place.location, left)
            except BusyError:
                if cached.snapshot is None:
                    raise
                return cached.snapshot
            # one that was under way may have missed what has changed since
            if begun >= came:
                return found

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being read just now."""
        return bool(self._readings)

    def _begin(self, read: Callable[[], T]) -> Future[T]:
        """Read something in a thread that does not keep the server from exiting."""
        reading: Future[T] = Future()
        self._readings.add(reading)
        reading.add_done_callback(self._readings.discard)

        def run() -> None:
            try:
                reading.set_result(read())
            except BaseException as error:  # for whoever waits
                reading.set_exception(error)

        threading.Thread(target=run, name="reading", daemon=True).start()
        return reading

    def _wait(self, reading: Future[T], location: str, seconds: float) -> T:
        """Wait for what is being read, but not too long."""
        remote = is_remote(location)
        counted = remote and self._waiting.acquire(blocking=False)
        try:
            return reading.result(max(0.0, seconds) if counted or not remote else 0.0)
        except TookLong:
            raise BusyError(
                f"{location} is still being read.", "It appears as soon as its store has answered."
            ) from None
        finally:
            if counted:
                self._waiting.release()

    def _look(self, place: KnownCheckpoint, cached: _Cached) -> Snapshot:
        folder = open_folder(place.location)
        # taken before reading: what is written meanwhile is seen the next time
        mark = _mark(folder)
        if cached.snapshot is None or not cached.is_fresh(mark):
            cached.snapshot = self._read(place, folder, cached)
            cached.mark, cached.read_at = mark, time.monotonic()
        return cached.snapshot

    def _read(self, place: KnownCheckpoint, folder: Folder, cached: _Cached) -> Snapshot:
        checkpoint = read_checkpoint(place.location)
        owner = Owner.read(folder)
        timeline = Timeline.read(folder)
        cached.lease = lease.read_lease(folder)
        running = cached.lease.user() if cached.lease else None
        history = read_history(folder, cached.parsed)
        entries = kept_entries(checkpoint, history)
        connection = self.connection() if checkpoint.logs.reads_kafka else None
        known = (owner, entries, timeline)
        windows = self._windows(checkpoint, known, connection, cached)
        forks, backups, audit = (
            self._forks(checkpoint),
            Backup.read_all(folder),
            read_lines(folder, layout.AUDIT),
        )
        shown = (
            *(checkpoint.logs.digest, checkpoint.logs.barriers, checkpoint.interrupted),
            *(
                overview.describe_health(checkpoint),
                running,
                timeline,
                forks,
                len(audit),
                audit[-1:],
            ),
            *([one.id for one in backups], owner, connection, history.strange),
            _settle(windows, cached.windows_now),
            [(path, stamp or found) for path, (stamp, found, _) in cached.parsed.items()],
        )
        return Snapshot(
            key=place.key,
            location=checkpoint.location,
            name=place.name,
            checkpoint=checkpoint,
            history=history,
            entries=entries,
            windows=windows,
            owner=owner,
            timeline=timeline,
            backups=tuple(backups),
            audit=audit,
            forks=forks,
            running=running,
            interrupted=checkpoint.interrupted,
            stamp=hashlib.sha256(repr(shown).encode()).hexdigest()[:20],
        )

    def _forks(self, checkpoint: Checkpoint) -> tuple[Mapping[str, Any], ...]:
        """KnownCheckpoint checkpoints on this machine that were forked from this one."""
        at, notes = self._noted
        if time.monotonic() - at >= _FORKS_SECONDS:
            notes = []
            for one in self.entries():
                if not is_remote(one.location):
                    with suppress(CheckpointError):
                        notes.append(read_note(open_folder(one.location), layout.FORK) or {})
            self._noted = (time.monotonic(), notes)
        return tuple(
            note
            for note in notes
            if note.get("origin") == checkpoint.location
            and isinstance(note.get("first_batch"), int)
        )

    def _windows(
        self,
        checkpoint: Checkpoint,
        noted: tuple[Owner, Mapping[int, Entry], Timeline],
        connection: KafkaConnection | None,
        cached: _Cached,
    ) -> Windows:
        """Retention windows, read again after a while or after a rewind."""
        owner, entries, timeline = noted
        of = (timeline, checkpoint.logs.query_id, connection)
        due = time.monotonic() - cached.windows_at >= _WINDOWS_SECONDS
        if cached.windows is None or cached.windows_of != of or due:
            # waiting for a broker that has just gone would take much longer
            connection = self.connection(again=True) if connection else None
            cached.windows_now = now = datetime.now(timezone.utc)
            cached.windows = read_windows(checkpoint, owner, connection, entries=entries, now=now)
            cached.windows_of, cached.windows_at = of, time.monotonic()
        return cached.windows.at(restorable(checkpoint))


class PerSnapshot(Generic[T]):
    """A value that is computed from a snapshot, once per stamp of each checkpoint."""

    def __init__(self, compute: Callable[[Snapshot], T]) -> None:
        self._compute = compute
        self._values: dict[str, tuple[str, T]] = {}
        self._lock = threading.Lock()

    def get(self, snapshot: Snapshot) -> T:
        """The value of a snapshot."""
        with self._lock:
            if self._values.get(snapshot.key, ("",))[0] != snapshot.stamp:
                self._values[snapshot.key] = (snapshot.stamp, self._compute(snapshot))
            return self._values[snapshot.key][1]


def _settle(windows: Windows, now: datetime) -> object:
    """Windows in a form that stays equal while nothing changes, for an hour at most.

    Estimates move with the clock, and so do windows that may close at any moment.
    """

    def settle(one: Window | Retained) -> object:
        if one.until is None or (one.until > now and not one.estimate):
            return one.until
        return round((one.until - now).total_seconds()), f"{now:%d %H}"

    return (
        [(batch, w.closes_first, w.gone, settle(w)) for batch, w in windows.by_batch.items()],
        [(one.keeper, one.from_batch, settle(one)) for one in windows.retained],
        windows.remarks,
    )


def _mark(folder: Folder) -> Marks | None:
    """Equal as long as nothing has changed; empty if unknown, None if remote."""
    if not folder.local:
        return None
    times = [_modified(folder.path(part)) for part in _STAMPED]
    return tuple(times) if abs(time.time_ns() - max(times)) > _SETTLED_NS else ()


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - half the time of Path.stat
    except OSError:
        return 0
