"""Snapshots of the known checkpoints, read again when a checkpoint has changed.

A snapshot is valid until a cheap mark shows that the checkpoint has changed. Kafka and Delta are
asked less often, because what they retain changes slowly. Each checkpoint is read in its own
thread, and a request waits for that only briefly: a store may never answer.
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
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, TypeVar

from ebbtide.checkpoint import Backup, Checkpoint, Journal, Owner, Timeline, layout, read_checkpoint
from ebbtide.config import Settings
from ebbtide.connectors import SinkPlace
from ebbtide.connectors.kafka import KafkaConnection, find_problem
from ebbtide.errors import (
    BrokerError,
    BusyError,
    CheckpointError,
    EbbtideError,
    NotFoundError,
    UsageError,
)
from ebbtide.history import Entry, History, kept_entries, read_history, store
from ebbtide.local import find_connection
from ebbtide.notes import read_lines, read_note
from ebbtide.registry import (
    OPENED,
    KnownCheckpoint,
    absolute,
    forget,
    is_remote,
    list_known,
    note_use,
    remember,
)
from ebbtide.report import overview
from ebbtide.retention import Retained, Window, Windows, read_windows, restorable
from ebbtide.rewind import lease, sinks
from ebbtide.storage import NOTES, Folder, open_folder
from ebbtide.times import EPOCH

_LEASES = f"{NOTES}/{lease.LEASES}"
_STAMPED = ("", "offsets", "commits", "state", NOTES, _LEASES, store.HISTORY, layout.BACKUPS)
"""Folders whose modification times show that something has changed."""
Marks = tuple[int, ...]
_REMOTE_SECONDS = 5.0
_SETTLED_NS = 2_000_000_000
"""Within this time, another change may get the same timestamp: some disks count in seconds."""
_WINDOWS_SECONDS = 30.0
_BROKER_SECONDS = 10.0
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
    """The end of its location that tells it from the other known ones."""
    checkpoint: Checkpoint
    history: History
    entries: Mapping[int, Entry]
    owner: Owner
    """The runner's note: pipeline, source, sink."""
    sinks: tuple[SinkPlace, ...]
    """Where the query writes, as noted or as somebody named it; empty if it is not known."""
    timeline: Timeline
    backups: tuple[Backup, ...]
    audit: tuple[Mapping[str, Any], ...]
    """Its changes, oldest first."""
    forks: tuple[Mapping[str, Any], ...]
    """The notes of known checkpoints that were forked from it."""
    running: str | None
    """Who runs it."""
    is_idle: bool
    """Whether a rewind would take the query for stopped."""
    interrupted: Journal | None
    activity: tuple[str, ...] = ()
    """By what it is taken for running, if no process here runs it."""
    windows: Windows = field(default_factory=lambda: Windows({}))
    stamp: str = ""
    """Changes whenever something that is shown has changed."""

    @property
    def title(self) -> str:
        """Its query and its name, for titles."""
        return overview.make_title(self.owner.pipeline, self.name)

    @cached_property
    def ids(self) -> list[int]:
        """Every batch that has a log entry or a history, ascending."""
        return sorted({*self.entries, *self.checkpoint.logs.by_id})


@dataclass
class _Cached:
    """What is remembered of one checkpoint between two requests."""

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
        self._known: dict[str, KnownCheckpoint] = {}
        self._forgotten: dict[str, KnownCheckpoint] = {}
        self._lock = threading.Lock()
        self._connection: tuple[float, KafkaConnection | None] = (-_BROKER_SECONDS, None)
        self._problem: EbbtideError | None = None
        self._noted: tuple[float, list[Mapping[str, Any]]] = (-_FORKS_SECONDS, [])
        self._in_home: tuple[float, list[str]] = (-_REMOTE_SECONDS, [])
        self._readings: set[Future[Any]] = set()
        self._waiting = threading.BoundedSemaphore(_WAITING)

    def entries(self) -> list[KnownCheckpoint]:
        """Every known checkpoint, sorted by name."""
        listed = list_known(self.settings, self._opened, self._list_home())
        self._known = {one.key: one for one in listed}
        return sorted(listed, key=lambda one: (one.name, one.location))

    def _list_home(self) -> list[str]:
        """The checkpoints in a home that is a URL, as far as its store answers."""
        at, found = self._in_home
        if self.settings.url and time.monotonic() - at >= _REMOTE_SECONDS:
            place = self.settings.location("checkpoints")
            with suppress(EbbtideError):
                names = self._begin(lambda: open_folder(place).folders())
                found = [f"{place}/{n}" for n in self._wait(names, place, _PATIENCE_SECONDS)]
            self._in_home = (time.monotonic(), found)
        return found

    def find(self, key: str) -> KnownCheckpoint:
        """Find a known checkpoint by its key; raises if it is unknown."""
        if key not in self._known:
            self.entries()
        if key not in self._known:
            raise NotFoundError(
                "This checkpoint is not in the list.", "Open it by its path or URL on the list."
            )
        return self._known[key]

    def open(self, location: str) -> KnownCheckpoint:
        """Add a checkpoint; raises if it cannot be read as one."""
        if not location.strip():
            raise UsageError("No checkpoint is named.", "Enter its path, or a URL such as s3://…")
        location = absolute(location.strip())
        self._wait(self._begin(lambda: read_checkpoint(location)), location, _PATIENCE_SECONDS)
        if location not in self._opened:
            self._opened.append(location)
        note_use(location)
        return self.find(KnownCheckpoint(location, OPENED).key)

    def forget(self, key: str) -> KnownCheckpoint:
        """Leave a checkpoint out of the list; it itself is not changed."""
        place = self.find(key)
        forget(place.location)
        self._opened = [one for one in self._opened if one != place.location]
        self._forgotten[key] = place
        return place

    def remember(self, key: str) -> KnownCheckpoint:
        """List a checkpoint again that was forgotten since the start."""
        if place := self._forgotten.pop(key, None):
            remember(place.location)
            self._opened.append(place.location)
        return self.find(key)

    def connection(self, *, again: bool = False) -> KafkaConnection | None:
        """The connection to the broker, if it answers; it is asked `again`, or once in a while."""
        at, connection = self._connection
        if again or time.monotonic() - at >= _BROKER_SECONDS:
            connection, self._problem = self._ask_broker()
            self._connection = (time.monotonic(), connection)
        return connection

    def _ask_broker(self) -> tuple[KafkaConnection | None, EbbtideError | None]:
        """The connection to a broker that answers, or why there is none."""
        problem: EbbtideError | None = BrokerError.not_running()
        try:
            connection = find_connection(self.settings)
            if connection is not None:
                problem = find_problem(connection, connection.glance_seconds)
        except UsageError as error:
            problem = error
        return (None, problem) if problem else (connection, None)

    def no_broker(self) -> EbbtideError:
        """Why there is no broker to ask."""
        return self._problem or BrokerError.not_running()

    def read(self, key: str) -> Snapshot:
        """What a checkpoint holds, read again if it has changed.

        While a store does not answer: what it held before, or `BusyError`.
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
                snapshot = self._wait(reading, place.location, left)
            except BusyError:
                if cached.snapshot is None:
                    raise
                return _named(cached.snapshot, place.label)
            # a read that began before we came may have missed the latest change
            if begun >= came:
                return _named(snapshot, place.label)

    def changes(self) -> Mapping[str, tuple[Mapping[str, Any], ...]]:
        """The changes in the audit log of each known checkpoint, without waiting for a store."""
        found = dict[str, tuple[Mapping[str, Any], ...]]()
        for one in self.entries():
            cached = self._cached.get(one.key)
            if not is_remote(one.location):
                with suppress(EbbtideError):
                    found[one.location] = read_lines(open_folder(one.location), layout.AUDIT)
            elif cached and cached.snapshot:
                found[one.location] = cached.snapshot.audit
        return found

    def waited(self, key: str) -> float:
        """For how many seconds a checkpoint is being read by now."""
        cached = self._cached.get(key)
        reading = cached is not None and cached.reading is not None and not cached.reading.done()
        return time.monotonic() - cached.begun if cached and reading else 0.0

    def title_of(self, place: KnownCheckpoint) -> str:
        """The query and the label of a checkpoint, without waiting for a store."""
        cached = self._cached.get(place.key)
        query = cached.snapshot.owner.pipeline if cached and cached.snapshot else None
        if query is None and not is_remote(place.location):
            with suppress(EbbtideError):
                query = Owner.read(open_folder(place.location)).pipeline
        return overview.make_title(query, place.label)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being read right now."""
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
        # taken before reading: what is written meanwhile is noticed the next time
        mark = _mark(folder)
        if cached.snapshot is None or not cached.is_fresh(mark):
            cached.snapshot = self._read(place, folder, cached)
            cached.mark, cached.read_at = mark, time.monotonic()
        return cached.snapshot

    def _read(self, place: KnownCheckpoint, folder: Folder, cached: _Cached) -> Snapshot:
        checkpoint = read_checkpoint(place.location)
        cached.lease = run = lease.read_lease(folder)
        idle = lease.is_idle(folder, checkpoint.logs)
        history = read_history(folder, cached.parsed)
        connection = self.connection() if checkpoint.logs.reads_kafka else None
        snapshot = Snapshot(
            key=place.key,
            location=checkpoint.location,
            name=place.label,
            checkpoint=checkpoint,
            history=history,
            entries=kept_entries(checkpoint, history),
            owner=Owner.read(folder),
            sinks=sinks.KnownSinks.read(folder).places,
            timeline=Timeline.read(folder),
            backups=tuple(Backup.read_all(folder)),
            audit=read_lines(folder, layout.AUDIT),
            forks=self._forks(checkpoint.location),
            running=run.user() if run else None,
            is_idle=idle,
            interrupted=checkpoint.interrupted,
            activity=lease.describe_activity(folder, checkpoint.logs, run, is_idle=idle),
        )
        windows = self._windows(snapshot, connection, cached)
        shown = (
            *(checkpoint.logs.digest, checkpoint.logs.barriers, checkpoint.interrupted),
            *(overview.describe_health(checkpoint), history.strange, connection),
            *(
                snapshot.running,
                snapshot.is_idle,
                snapshot.timeline,
                snapshot.forks,
                snapshot.owner,
                snapshot.sinks,
            ),
            *(len(snapshot.audit), snapshot.audit[-1:], [one.id for one in snapshot.backups]),
            _settle(windows, cached.windows_now),
            [(path, stamp or entry) for path, (stamp, entry, _) in cached.parsed.items()],
        )
        stamp = hashlib.sha256(repr(shown).encode()).hexdigest()[:20]
        return replace(snapshot, windows=windows, stamp=stamp)

    def _forks(self, location: str) -> tuple[Mapping[str, Any], ...]:
        """The notes of known checkpoints on this machine that were forked from this one."""
        at, notes = self._noted
        if time.monotonic() - at >= _FORKS_SECONDS:
            notes = []
            for one in self.entries():
                if not is_remote(one.location):
                    with suppress(CheckpointError):
                        notes.append(read_note(open_folder(one.location), layout.FORK) or {})
            self._noted = (time.monotonic(), notes)
        ours = (note for note in notes if note.get("origin") == location)
        return tuple(note for note in ours if isinstance(note.get("first_batch"), int))

    def _windows(
        self, snapshot: Snapshot, connection: KafkaConnection | None, cached: _Cached
    ) -> Windows:
        """Retention windows, read again after a while or after a rewind."""
        checkpoint = snapshot.checkpoint
        of = (snapshot.timeline, checkpoint.logs.query_id, connection, snapshot.is_idle)
        due = time.monotonic() - cached.windows_at >= _WINDOWS_SECONDS
        if cached.windows is None or cached.windows_of != of or due:
            # waiting for a broker that has just gone would take much longer
            connection = self.connection(again=True) if connection else None
            cached.windows_now = now = datetime.now(timezone.utc)
            cached.windows = read_windows(
                checkpoint,
                snapshot.owner,
                connection,
                entries=snapshot.entries,
                now=now,
                stopped=snapshot.is_idle,
            )
            cached.windows_of, cached.windows_at = of, time.monotonic()
        return cached.windows.at(restorable(checkpoint))


def _named(snapshot: Snapshot, name: str) -> Snapshot:
    """A snapshot by its current name: another checkpoint with a similar one may have come."""
    return snapshot if snapshot.name == name else replace(snapshot, name=name)


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
    times = [0] * len(_STAMPED)
    for index, part in enumerate(_STAMPED):
        with suppress(OSError):
            times[index] = os.stat(folder.path(part)).st_mtime_ns  # noqa: PTH116 - faster
    return tuple(times) if abs(time.time_ns() - max(times)) > _SETTLED_NS else ()
