"""Settings in, the known checkpoints out, and what each of them holds, read when it has changed.

A snapshot is kept until a cheap stamp says that the checkpoint has changed. Kafka and Delta are
asked less often: what they still keep changes slowly. A checkpoint is read in a thread of its own,
which nobody waits for longer than a moment: a store may never answer.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookLong
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, TypeVar

from ebbtide import registry as known
from ebbtide.checkpoint import Backup, Checkpoint, Journal, Owner, Timeline, layout, read_checkpoint
from ebbtide.config import Settings
from ebbtide.connectors.kafka import KafkaConnection, answers
from ebbtide.errors import BrokerError, BusyError, CheckpointError, NotFoundError, UsageError
from ebbtide.history import Entry, History, kept_entries, read_history, store
from ebbtide.local import find_connection
from ebbtide.notes import read_lines, read_note
from ebbtide.report.overview import describe_health
from ebbtide.retention import Retained, Window, Windows, read_windows, restorable
from ebbtide.rewind import lease
from ebbtide.storage import NOTES, Folder, open_folder
from ebbtide.times import EPOCH

_STAMPED = ("", "offsets", "commits", "state", NOTES, store.HISTORY, layout.BACKUPS)
"""Folders in which a name comes or goes when something has changed."""
Marks = tuple[int, ...]
_REMOTE_SECONDS = 5.0
_SETTLED_NS = 2_000_000_000
"""A change so short ago may not be the last under its time: some disks count in seconds."""
_WINDOWS_SECONDS = 30.0
_BROKER_SECONDS = 10.0
_ANSWER_SECONDS = 1.0
_FORKS_SECONDS = 10.0
_PATIENCE_SECONDS = 5.0
"""So long a request waits for a checkpoint to be read."""
_WAITING = 10
"""So many requests wait for stores elsewhere, each in a thread of the page, which has 40."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Known:
    """A checkpoint in the list."""

    key: str
    name: str
    location: str
    source: str


@dataclass(frozen=True)
class Snapshot:
    """One checkpoint as it was when it was last looked at."""

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
    """What was done to it, oldest first."""
    forks: tuple[Mapping[str, Any], ...]
    """What known checkpoints say that were forked from it."""
    running: str | None
    """Who runs it."""
    interrupted: Journal | None
    stamp: str
    """Another one whenever something has changed."""

    @cached_property
    def ids(self) -> list[int]:
        """Every batch of which something is known, ascending."""
        return sorted({*self.entries, *self.checkpoint.logs.by_id})


@dataclass
class _Shelf:
    """What is kept of one checkpoint between two looks."""

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
        """Whether what was read last still holds."""
        now = time.monotonic()
        if self.snapshot is None or now - self.windows_at >= _WINDOWS_SECONDS:
            return False
        if mark is None:
            return now - self.read_at < _REMOTE_SECONDS
        # a process may end without a trace on the disk
        running = self.lease.user() if self.lease else None
        return bool(mark) and mark == self.mark and running == self.snapshot.running


class Catalogue:
    """The known checkpoints."""

    def __init__(self, settings: Settings, opened: Iterable[str] = ()) -> None:
        self.settings = settings
        self._opened = [known.absolute(location) for location in opened]
        self._shelves: dict[str, _Shelf] = {}
        self._found: dict[str, Known] = {}
        self._lock = threading.Lock()
        self._connection: tuple[float, KafkaConnection | None] = (-_BROKER_SECONDS, None)
        self._noted: tuple[float, list[Mapping[str, Any]]] = (-_FORKS_SECONDS, [])
        self._readings: set[Future[Any]] = set()
        self._waiting = threading.BoundedSemaphore(_WAITING)

    def entries(self) -> list[Known]:
        """Every known checkpoint, by its name."""
        found = known.list_known(self.settings, self._opened)
        keyed = [Known(key_of(one.location), one.name, one.location, one.source) for one in found]
        self._found = {one.key: one for one in keyed}
        return sorted(keyed, key=lambda one: (one.name, one.location))

    def find(self, key: str) -> Known:
        """One of them; refused if it is not known."""
        if key not in self._found:
            self.entries()
        if (found := self._found.get(key)) is not None:
            return found
        raise NotFoundError(
            "There is no such checkpoint in the list.", "Open it by its path or URL on the list."
        )

    def open(self, location: str) -> Known:
        """Add a checkpoint; refused if it cannot be read as one."""
        if not location.strip():
            raise UsageError("No checkpoint is named.", "Give its path, or a URL such as s3://…")
        location = known.absolute(location.strip())
        self._wait(self._begin(lambda: read_checkpoint(location)), location, _PATIENCE_SECONDS)
        if location not in self._opened:
            self._opened.append(location)
        known.note_use(location)
        return self.find(key_of(location))

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

    def snapshot(self, key: str) -> Snapshot:
        """What a checkpoint holds, read again if it has changed.

        While a store does not answer: what it held before, else refused as busy.
        """
        place, came = self.find(key), time.monotonic()
        with self._lock:
            shelf = self._shelves.setdefault(key, _Shelf())
        while True:
            with shelf.lock:
                if shelf.reading is None or shelf.reading.done():
                    shelf.begun = time.monotonic()
                    shelf.reading = self._begin(lambda: self._look(place, shelf))
                reading, begun = shelf.reading, shelf.begun
            try:
                left = begun + _PATIENCE_SECONDS - time.monotonic()
                found = self._wait(reading, place.location, left)
            except BusyError:
                if shelf.snapshot is None:
                    raise
                return shelf.snapshot
            # one that was under way may have missed what has changed since
            if begun >= came:
                return found

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being read just now."""
        return bool(self._readings)

    def _begin(self, read: Callable[[], _T]) -> Future[_T]:
        """Have something read by a thread that does not keep the page from ending."""
        reading: Future[_T] = Future()
        self._readings.add(reading)
        reading.add_done_callback(self._readings.discard)

        def run() -> None:
            try:
                reading.set_result(read())
            except BaseException as error:  # for whoever waits
                reading.set_exception(error)

        threading.Thread(target=run, name="reading", daemon=True).start()
        return reading

    def _wait(self, reading: Future[_T], location: str, seconds: float) -> _T:
        """What is being read, if that does not take too long."""
        remote = known.is_remote(location)
        counted = remote and self._waiting.acquire(blocking=False)
        try:
            return reading.result(max(0.0, seconds) if counted or not remote else 0.0)
        except TookLong:
            raise BusyError(
                f"{location} is still being read.", "It is shown as soon as its store has answered."
            ) from None
        finally:
            if counted:
                self._waiting.release()

    def _look(self, place: Known, shelf: _Shelf) -> Snapshot:
        folder = open_folder(place.location)
        # taken before the reading: what is written in between is seen the next time
        mark = _mark(folder)
        if shelf.snapshot is None or not shelf.is_fresh(mark):
            shelf.snapshot = self._read(place, folder, shelf)
            shelf.mark, shelf.read_at = mark, time.monotonic()
        return shelf.snapshot

    def _read(self, place: Known, folder: Folder, shelf: _Shelf) -> Snapshot:
        checkpoint = read_checkpoint(place.location)
        owner = Owner.read(folder)
        timeline = Timeline.read(folder)
        shelf.lease = lease.read_lease(folder)
        running = shelf.lease.user() if shelf.lease else None
        history = read_history(folder, shelf.parsed)
        entries = kept_entries(checkpoint, history)
        connection = self.connection() if checkpoint.logs.reads_kafka else None
        known = (owner, entries, timeline)
        windows = self._windows(checkpoint, known, connection, shelf)
        forks, backups, audit = (
            self._forks(checkpoint),
            Backup.read_all(folder),
            read_lines(folder, layout.AUDIT),
        )
        shown = (
            *(checkpoint.logs.digest, checkpoint.logs.barriers, checkpoint.interrupted),
            *(describe_health(checkpoint), running, timeline, forks, len(audit), audit[-1:]),
            *([one.id for one in backups], owner, connection, history.strange),
            _settle(windows, shelf.windows_now),
            [(path, stamp or found) for path, (stamp, found, _) in shelf.parsed.items()],
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
        """What was forked from a checkpoint, among the known ones on this machine."""
        at, notes = self._noted
        if time.monotonic() - at >= _FORKS_SECONDS:
            notes = []
            for one in self.entries():
                if not known.is_remote(one.location):
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
        shelf: _Shelf,
    ) -> Windows:
        """What is kept how long; asked anew after a while, or after a rewind."""
        owner, entries, timeline = noted
        of = (timeline, checkpoint.logs.query_id, connection)
        due = time.monotonic() - shelf.windows_at >= _WINDOWS_SECONDS
        if shelf.windows is None or shelf.windows_of != of or due:
            # a broker that has just gone would be waited for much longer
            connection = self.connection(again=True) if connection else None
            shelf.windows_now = now = datetime.now(timezone.utc)
            shelf.windows = read_windows(checkpoint, owner, connection, entries=entries, now=now)
            shelf.windows_of, shelf.windows_at = of, time.monotonic()
        return shelf.windows.at(restorable(checkpoint))


def key_of(location: str) -> str:
    """What stands in addresses for a checkpoint: its name as far as that is plain, and a digest.

    >>> key_of("/data/<b>Visits")
    'b-visits-e690146b01eb'
    """
    name = re.sub(r"[^a-z0-9]+", "-", known.Known(location, "").name.lower()).strip("-")[:40]
    digest = hashlib.sha256(location.encode()).hexdigest()[:12]
    return f"{name}-{digest}" if name else digest


def _settle(windows: Windows, now: datetime) -> object:
    """Windows in a form that stays the same while nothing happens, for an hour at most.

    An estimate counts from now on, and so does what a keeper may let go of at any moment.
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
    """What is the same as long as nothing has changed: empty if one cannot say, None if remote."""
    if not folder.local:
        return None
    times = [_modified(folder.path(part)) for part in _STAMPED]
    return tuple(times) if abs(time.time_ns() - max(times)) > _SETTLED_NS else ()


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - half the time of Path.stat
    except OSError:
        return 0
