"""Who uses a checkpoint: a note in it that is renewed while a query runs or a rewind changes it."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from filelock import FileLock, Timeout

from ebbtide.checkpoint import log_files
from ebbtide.checks import OK, REFUSE, WARN, Check, CheckKind
from ebbtide.config import make_folder
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.notes import Seconds, decode, parse_note, remove_note, write_note
from ebbtide.processes import find_process, start_time
from ebbtide.storage import NOTES, TEMPORARY, Folder, WritableFolder
from ebbtide.times import format_age

RUN, CHANGE, FORK = "run", "change", "fork"
_NOTES = {RUN: "lease.json", CHANGE: "change-lease.json", FORK: "fork-lease.json"}
_LOCK = "lease.lock"
FILES = frozenset({_LOCK, TEMPORARY, *_NOTES.values()})
"""What a lease leaves among the notes of a checkpoint."""
_RENEW_SECONDS = 10
_FRESH_SECONDS = 60
_JVM_END_SECONDS = 30
_RECENT_SECONDS = 60
_OWN_WRITES_SECONDS = 30
_HELD: set[tuple[str, str]] = set()
"""What this process holds now: the place of a checkpoint, and the purpose."""


@dataclass(frozen=True)
class Lease:
    """Who uses a checkpoint: the Python process and its JVM, on which host, seen when."""

    host: str
    processes: tuple[tuple[int, Seconds], ...]
    """Process id and start time of each; an id alone may have been given away since."""
    renewed: Seconds
    purpose: str = RUN
    released: bool = False
    """Given back in order; kept to tell our own last writes from those of others."""
    beside_run: bool = False
    """Taken for what does not disturb a running query."""
    location: str | None = None
    """Where the checkpoint lay then."""

    def alive(self) -> list[int]:
        """The ids of its processes that are still there; only of use on its own host."""
        return [pid for pid, started in self.processes if find_process(pid, started)]

    @property
    def ended(self) -> bool:
        """Whether its holder is known to be gone; a silent one on another host is not."""
        return self.released or (self.host == socket.gethostname() and not self.alive())

    def user(self) -> str | None:
        """Who holds it now, in words that stay the same; None if nobody does any more."""
        if self.released:
            return None
        if self.host != socket.gethostname():
            fresh = time.time() - self.renewed < _FRESH_SECONDS
            return f"on host {self.host}" if fresh else None
        alive = self.alive()
        return f"process {alive[0]}" if alive else None

    def holder(self) -> str | None:
        """Who holds it now, and on another host since when that is known."""
        user = self.user()
        if user is None or self.host == socket.gethostname():
            return user
        return f"{user}, seen {format_age(time.time() - self.renewed)} ago"


def read_lease(folder: Folder, purpose: str = RUN) -> Lease | None:
    """The last lease of a checkpoint for a purpose: to run its query, to change or to make it."""
    lease = parse_note(folder, _NOTES[purpose], partial(decode, Lease))
    # a copy of a checkpoint has the note of the original, whose query may be running
    return lease if lease and lease.location in (None, folder.address) else None


class Claim:
    """A claimed checkpoint: `folder` to read and to keep notes in, `renew` to keep the lease."""

    def __init__(self, folder: Folder, purpose: str, *, beside_run: bool = False) -> None:
        self.folder = folder
        own = (os.getpid(), start_time(os.getpid()))
        self._lease = Lease(
            *(socket.gethostname(), (own,), 0.0, purpose),
            beside_run=beside_run,
            location=folder.address,
        )
        self._lost, self._written = False, time.time()
        self.problem: str | None = None
        """Why the last attempt to renew it failed; None if it did not."""

    def add_process(self, pid: int) -> None:
        """Name another process, the JVM, that must be gone before the query may start again."""
        processes = (*self._lease.processes, (pid, start_time(pid)))
        self._lease = replace(self._lease, processes=processes)
        self.renew(every_seconds=0)

    def renew(self, every_seconds: float | None = None) -> None:
        """Say that we are still here, if the last time is long enough ago.

        A full disk, or a store that does not answer for a while, is no reason to stop: `problem`
        says so, and a later call tries again. Raises if another process has the lease by then.
        """
        every = _RENEW_SECONDS if every_seconds is None else every_seconds
        if time.time() - self._lease.renewed < every:
            return
        try:
            self._require_ours()
            self._write(replace(self._lease, renewed=time.time()))
        except (OSError, EbbtideError) as error:
            if self._lost:
                raise
            self._lease = replace(self._lease, renewed=time.time())
            self.problem = str(error)
        else:
            self.problem = None

    def _require_ours(self) -> None:
        taken = next(filter(self._is_anothers, map(partial(read_lease, self.folder), _NOTES)), None)
        if taken is None:
            return
        self._lost = True
        who = taken.holder() or f"a process on host {taken.host} that has ended"
        raise CheckpointError(
            f"{self.folder.url} was taken over by {who}, as this process could not renew its lease "
            "in time.",
            "Leave it to that process, or stop that one and start this one again.",
        )

    def _is_anothers(self, note: Lease | None) -> bool:
        """Whether another process took it: it has our note, or changed it while ours was stale."""
        ours = self._lease
        if (
            note is None
            or note.beside_run
            or (note.host, note.processes[:1]) == (ours.host, ours.processes[:1])
        ):
            return False
        return note.purpose == ours.purpose or note.renewed > self._written + _FRESH_SECONDS

    def take(self) -> None:
        """Write the lease over one that has ended."""
        self._write(replace(self._lease, renewed=time.time()))

    @contextmanager
    def renewing(self, every_seconds: float = 10) -> Iterator[None]:
        """Say so again and again while something else takes its time, such as Spark."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(every_seconds):
                with suppress(OSError, EbbtideError):  # the next one outside raises it
                    self.renew(every_seconds=0)

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def release(self) -> None:
        """Give it back; on a full disk by removing it, which takes no room."""
        if self._lost:
            return
        if self._lease.purpose == FORK:  # a new checkpoint has no last use
            remove_note(self.folder, _NOTES[FORK])
            return
        try:
            self._write(replace(self._lease, renewed=time.time(), released=True))
        except (OSError, EbbtideError):
            remove_note(self.folder, _NOTES[self._lease.purpose])

    def _write(self, lease: Lease) -> None:
        self._lease = lease
        write_note(self.folder, _NOTES[lease.purpose], asdict(lease))
        self._written = lease.renewed


@contextmanager
def hold_lease(folder: Folder, purpose: str, *, beside_run: bool = False) -> Iterator[Claim]:
    """Take a checkpoint for oneself, and give it back at the end; refuse while another has it."""
    one_at_a_time: AbstractContextManager[object] = nullcontext()
    if folder.local:
        lock = folder.path(NOTES, _LOCK)
        make_folder(Path(lock).parent, "NEW" if purpose == FORK else "--checkpoint")
        _require_own(lock)
        one_at_a_time = FileLock(lock)
    with one_at_a_time:
        for other in (CHANGE, FORK) if beside_run else _NOTES:
            _wait_until_free(folder, other)
        claimed = Claim(folder, purpose, beside_run=beside_run)
        try:
            claimed.take()
        except OSError as error:
            raise CheckpointError(
                f"Cannot write to {folder.path(NOTES)}: {error.strerror or error}.",
                "Make room or fix the permissions, then try again.",
            ) from None
    held = (folder.address, purpose)
    _HELD.add(held)
    try:
        yield claimed
    finally:
        _HELD.discard(held)
        with suppress(OSError, EbbtideError):  # at the latest it ends with our process
            claimed.release()


def _require_own(lock: str) -> None:
    """Refuse a lock file that is something else: opening it would empty or block on that."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(lock).st_mode):
            raise CheckpointError(f"{lock} is not a file of ours.", "Remove it.")


def _wait_until_free(folder: Folder, purpose: str) -> None:
    lease = read_lease(folder, purpose)
    own = (os.getpid(), start_time(os.getpid()))
    if lease is None or (lease.processes[:1] == (own,) and (folder.address, purpose) not in _HELD):
        return  # ours of before, which could not be given back
    # a driver that was killed leaves its JVM behind for a moment; two must not run at once
    deadline = time.monotonic() + _JVM_END_SECONDS
    while (holder := lease.holder()) is not None:
        ending = lease.host == socket.gethostname() and lease.processes[0][0] not in lease.alive()
        if not ending or time.monotonic() > deadline:
            raise in_use(folder, lease, holder)
        time.sleep(0.1)


def in_use(folder: Folder, lease: Lease, holder: str) -> CheckpointError:
    """Another process has the checkpoint."""
    if lease.purpose == RUN:
        return CheckpointError(
            f"The query of {folder.url} is running already ({holder}).", "Stop it first."
        )
    what = "made by another fork" if lease.purpose == FORK else "rewound"
    return CheckpointError(f"{folder.url} is being {what} ({holder}).", "Wait until that is done.")


def remove_unused(folder: WritableFolder) -> None:
    """Remove a folder in which nothing is but what leases left, unless somebody takes it now."""
    if folder.local and not set(folder.names()) - {NOTES} and not _left(folder):
        with suppress(Timeout, OSError), FileLock(folder.path(NOTES, _LOCK), timeout=0):
            if not _left(folder):
                folder.remove_tree("")


def _left(folder: Folder) -> set[str]:
    """Our notes there, and files that somebody is just writing; locks do not count."""
    names = {*folder.names(NOTES), *folder.names(NOTES, TEMPORARY)}
    return names - {_LOCK, TEMPORARY}


def check_running(folder: Folder, logs: log_files.Logs, *, assume_stopped: bool) -> Check:
    """Whether the query is stopped: our lease says so, or nobody has written for a while."""
    lease, check = read_lease(folder), partial(Check, CheckKind.RUNNING)
    if lease is not None and (holder := lease.holder()) is not None:
        return check(REFUSE, f"the query is running ({holder})", "Stop it first.")
    written = _last_write(folder, logs)
    if lease is not None and lease.ended and written < lease.renewed + _OWN_WRITES_SECONDS:
        return check(OK, "its last run by Ebbtide has ended")
    seconds = time.time() - written
    age = format_age(seconds)
    if seconds >= max(_RECENT_SECONDS, 2 * _longest_pause(logs)):
        return check(OK, f"nothing was written for {age}")
    if assume_stopped:
        return check(WARN, f"written {age} ago; you say it is stopped")
    advice = "Stop it, then add --assume-stopped."
    return check(REFUSE, f"the query may be running: it wrote {age} ago", advice)


def _last_write(folder: Folder, logs: log_files.Logs) -> float:
    paths = [f"offsets/{batch.id}" for batch in logs.batches[-1:]]
    paths += [f"commits/{batch.id}" for batch in (logs.latest_committed,) if batch]
    return max((stat.modified for path in paths if (stat := folder.stat(path))), default=0.0)


def _longest_pause(logs: log_files.Logs) -> float:
    """The longest time between two of the last batches, up to an hour: it may just be waiting."""
    times = [batch.offsets.timestamp_ms for batch in logs.batches[-10:]]
    pauses = [(b - a) / 1000 for a, b in pairwise(times)]
    return min(3600.0, max(pauses, default=0.0))
