"""Take a checkpoint for oneself, keep it while one works on it, and give it back."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from ebbtide.config import make_folder
from ebbtide.errors import CheckpointError, EbbtideError, StorageError
from ebbtide.notes import note_path, remove_note, write_note
from ebbtide.processes import machine, start_ticks
from ebbtide.rewind import holders
from ebbtide.rewind.activity import describe_activity
from ebbtide.rewind.holders import (
    CHANGE,
    FORK,
    LEASES,
    RUN,
    InUseError,
    Lease,
    Pause,
    Renewal,
    check_running,
    is_idle,
    read_lease,
    remove_unused,
    wait_until_free,
)
from ebbtide.storage import NOTES, Folder, WritableFolder

__all__ = [
    "CHANGE",
    "FORK",
    "LEASES",
    "RUN",
    "Claim",
    "InUseError",
    "Lease",
    "LeaseLostError",
    "Pause",
    "check_running",
    "describe_activity",
    "hold_lease",
    "is_idle",
    "read_lease",
    "remove_unused",
    "wait_until_free",
]
_RENEW_SECONDS = 10
_EXPIRES_SECONDS = 50
"""A holder stops earlier than others may take over: a change that has begun must be done by then.
"""
_ANSWER_SECONDS = 5
"""So long a store may take to answer a holder that has to know."""
_FAILURES = (OSError, EbbtideError)
_Written = TypeVar("_Written")
_log = logging.getLogger("ebbtide.lease")


class LeaseLostError(CheckpointError):
    """The checkpoint is not ours any more: nothing may be changed, not even to clean up."""


def _now() -> float:
    """Seconds that also pass while the machine is suspended, and no clock sets back."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Claim:
    """A claimed checkpoint, whose lease a thread renews; once it is lost, changes are refused.

    A store that does not answer for a while is no reason to stop: that is logged, and tried again
    until the lease would expire.
    """

    def __init__(self, folder: WritableFolder, lease: Lease, taken: float) -> None:
        self.writable = replace(folder, guard=self.require)
        self.folder: Folder = self.writable
        """The same, to read and to keep notes in."""
        self.problem: str | None = None
        """Why the last attempt to renew it failed; None if it did not."""
        self._plain, self._lease = folder, lease
        self._confirmed = taken
        """When the last renewal began that others have certainly seen."""
        self._lost: tuple[str, str] | None = None
        self._lock, self._done = threading.Lock(), threading.Event()
        self._asked, self._answered, self._answers = threading.Event(), threading.Condition(), 0

    def add_process(self, pid: int) -> None:
        """Name another process, the JVM, that must be gone before the query may start again."""
        ticks = start_ticks(pid) or 0
        with self._lock:
            self._lease = replace(self._lease, processes=(*self._lease.processes, (pid, ticks)))
        self.renew()

    def require(self) -> None:
        """Raise if the checkpoint is not ours any more; asks the store only if it must.

        A store that hangs does not keep us from stopping: it is asked by the thread that renews.
        """
        if self._lost is None and self._is_expired():
            with self._answered:
                before = self._answers
                self._asked.set()
                self._answered.wait_for(lambda: self._answers > before, _ANSWER_SECONDS)
        if self._lost is not None:
            raise LeaseLostError(*self._lost)
        if self._is_expired():
            seconds, why = _now() - self._confirmed, self.problem or "the store does not answer"
            raise LeaseLostError(
                f"The lease of {self._plain.url} could not be renewed for {seconds:.0f} s: "
                f"{why.rstrip('.')}. Another process may take over now.",
                "Look whether one has. If not, start this again when the store answers.",
            )

    def _is_expired(self) -> bool:
        return _now() - self._confirmed >= _EXPIRES_SECONDS

    def check(self) -> None:
        """Look whether the checkpoint is still ours, before the next step of a change."""
        self.require()
        with self._lock:
            try:
                self._require_ours()
            except _FAILURES as error:
                self._tolerate(error)

    def renew(self) -> None:
        """Say that we are still here. Raises only if the lease is lost."""
        try:
            with self._lock:
                if not self._done.is_set():
                    self._renew()
                    if self.problem is not None:
                        _log.warning("The lease of %s is renewed again.", self._plain.url)
                    self.problem = None
        except _FAILURES as error:
            self._tolerate(error)
        finally:
            with self._answered:
                self._answers += 1
                self._answered.notify_all()

    def _tolerate(self, error: Exception) -> None:
        if isinstance(error, LeaseLostError):
            raise error
        if self.problem is None:
            _log.warning(
                "Warning: The lease of %s cannot be renewed: %s. This process tries again, and "
                "stops if that fails for %.0f s; this warning is not repeated.",
                *(self._plain.url, str(error).rstrip("."), _EXPIRES_SECONDS),
            )
        self.problem = str(error)

    def _renew(self) -> None:
        began = _now()
        self._require_ours()
        self._write(replace(self._lease, renewals=self._lease.renewals + 1, renewed=time.time()))
        if self._is_expired():  # others may have seen it too late
            self._take_again()
        else:
            self._confirmed = began

    def _require_ours(self) -> None:
        """Raise if a higher number is not beside ours, or if ours is another's."""
        ours = self._lease
        numbers = holders.list_numbers(self._plain)
        for number in (n for n in numbers if n >= ours.number):
            other = holders.read_numbered(self._plain, number)
            if other is not None and not holders.is_beside(other, ours):
                raise self._lose(other)
        if ours.number not in numbers:
            self._take_again()

    def _take_again(self) -> None:
        """Take the next number, as others would; only one of us gets it."""
        began, ours = _now(), self._lease
        numbers = [n for n in holders.list_numbers(self._plain) if n >= ours.number]
        for number in numbers:
            other = holders.read_numbered(self._plain, number)
            if other is not None and not holders.is_beside(other, ours):
                raise self._lose(other)
        again = replace(ours, number=max([ours.number, *numbers]) + 1, renewed=time.time())
        if not _create(self._plain, again, assume_stopped=True):
            raise self._lose(holders.read_numbered(self._plain, again.number))
        self._lease, self._confirmed = again, began
        _remove(self._plain, ours.number)

    def _lose(self, taken: Lease | None) -> LeaseLostError:
        by = "another process"
        if taken is not None:
            user = taken.user() or f"on host {taken.host} that has ended"
            by = user if taken.alive() else f"a process {user}"
        self._lost = (
            f"{self._plain.url} was taken over by {by}: this process did not renew its lease.",
            "Leave it to that process, or stop that one and start this one again.",
        )
        return LeaseLostError(*self._lost)

    def _write(self, lease: Lease) -> None:
        self._lease = lease
        renewal = Renewal(
            lease.token, lease.processes, lease.renewed, lease.renewals, lease.released
        )
        note = holders.renewal_note(lease.number)
        _write_again_if_tidied(self._plain, lambda: write_note(self._plain, note, vars(renewal)))

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew it in the background, whatever takes its time: Spark, a sink, a last batch."""

        def renew() -> None:
            with suppress(LeaseLostError):  # the next change raises it
                while not self._done.is_set():
                    self._asked.wait(_RENEW_SECONDS / (5 if self.problem else 1))
                    self._asked.clear()
                    self.renew()

        thread = threading.Thread(target=renew, name="ebbtide-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            self._asked.set()

    def remove_older(self) -> None:
        """Remove the leases that do not count any more, and notes of earlier versions."""
        ours = self._lease
        for number in holders.list_numbers(self._plain, holders.ANY):
            if number < ours.number:
                other = holders.read_numbered(self._plain, number)
                if other is None or other.token == ours.token or not holders.is_beside(other, ours):
                    _remove(self._plain, number)
        for purpose, name in holders.OLD_NOTES.items():
            if not (ours.beside_run and purpose == RUN) and self._plain.exists(note_path(name)):
                remove_note(self._plain, name)

    def release(self) -> None:
        """Give it back, unless it is another's by now.

        That of a fork that has failed is removed if it was the first: whoever comes next takes
        number 1 again, and only one of them gets it.
        """
        self._done.set()
        failures: list[BaseException] = []

        def give_back() -> None:
            try:
                self._give_back()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=give_back, name="ebbtide-release", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # Python 3.12 starts no thread while it ends
            give_back()
        else:
            thread.join(_ANSWER_SECONDS)  # a store that hangs does not keep us from ending
        if failures:
            raise failures[0]
        if thread.is_alive():
            raise TimeoutError("the store does not answer")

    def _give_back(self) -> None:
        if self._lost is None and self._lock.acquire(timeout=_ANSWER_SECONDS):
            try:
                self._require_ours()
                ours = self._lease
                is_first = ours.purpose == FORK and ours.number == 1 and not self._is_expired()
                if is_first and holders.is_unused(self._plain):
                    _remove(self._plain, ours.number)
                else:
                    self._write(replace(ours, renewed=time.time(), released=True))
            finally:
                self._lock.release()


@contextmanager
def hold_lease(
    folder: Folder,
    purpose: str,
    *,
    beside_run: bool = False,
    assume_stopped: bool = False,
    pause: Pause = time.sleep,
) -> Iterator[Claim]:
    """Take a checkpoint for oneself, and give it back at the end; refuse while another has it.

    Steps: **1** wait until nobody has it; **2** create the lease with the next number, or begin
    again if somebody was faster; **3** remove older ones; **4** renew it until the end; **5** give
    it back. `assume_stopped` says that nobody else uses it, where a store cannot tell.
    """
    if not isinstance(folder, WritableFolder):
        folder = WritableFolder(folder.url, folder.filesystem, folder.root, folder.made)
    if folder.local:
        notes = Path(folder.path(NOTES, LEASES))
        make_folder(notes, "NEW" if purpose == FORK else "--checkpoint")
    # 1, 2
    token = uuid4().hex
    try:
        claimed = _take(
            folder, token, purpose, beside_run=beside_run, stopped=assume_stopped, pause=pause
        )
        held = (folder.address, token)
        holders.held_here.add(held)
    except BaseException:
        holders.given_back.add(token)  # the store may have created it nevertheless
        raise
    try:
        # 3
        with suppress(*_FAILURES):  # the next one removes them
            claimed.remove_older()
        # 4
        with claimed.renewing():
            yield claimed
    finally:
        # 5
        holders.held_here.discard(held)
        holders.given_back.add(token)
        try:
            claimed.release()
        except LeaseLostError:
            pass
        except _FAILURES as error:
            _log.warning(
                "Warning: The lease of %s could not be given back: %s. On other hosts, the next "
                "command waits up to %.0f s.",
                *(folder.url, str(error).rstrip("."), holders.LASTS_SECONDS),
            )


def _take(
    folder: WritableFolder,
    token: str,
    purpose: str,
    *,
    beside_run: bool,
    stopped: bool,
    pause: Pause,
) -> Claim:
    found: list[Lease] | None = None
    while True:
        beside = (RUN,) if beside_run else ()
        found = wait_until_free(folder, beside=beside, before=found, pause=pause)
        runs = [one for one in found if one.purpose == RUN and not one.ended]
        taken = _now()
        lease = Lease(
            host=socket.gethostname(),
            processes=((os.getpid(), start_ticks(os.getpid()) or 0),),
            renewed=time.time(),
            purpose=purpose,
            beside_run=beside_run,
            location=folder.address,
            machine=machine(),
            token=token,
            beside=runs[0].token if beside_run and runs else None,
            run_ended=holders.find_run_end(folder, found),
            number=_next_number(folder, found),
        )
        try:
            if _create(folder, lease, assume_stopped=stopped):
                return Claim(folder, lease, taken)
        except OSError as error:
            raise CheckpointError(
                f"Cannot write to {folder.path(NOTES)}: {error.strerror or error}.",
                "Make room or fix the permissions, then try again.",
            ) from None


def _next_number(folder: Folder, found: list[Lease]) -> int:
    number = max((one.number for one in found), default=0) + 1
    if number > holders.HIGHEST:
        raise CheckpointError(
            f"{folder.url}/{note_path(holders.lease_note(number - 1))} is no lease of Ebbtide: no "
            "lease gets so high a number.",
            "Make sure that nobody else uses the checkpoint, then remove that file.",
        )
    return number


def _create(folder: WritableFolder, lease: Lease, *, assume_stopped: bool) -> bool:
    """Create a lease; returns whether it is ours, and the newest.

    A number that was taken and removed meanwhile could be created again: there is a higher one
    then, because the highest is never removed.
    """
    path, text = note_path(holders.lease_note(lease.number)), json.dumps(lease.to_note())
    if not folder.creates_exclusively:
        _require_stopped(folder, assume_stopped=assume_stopped)
        folder.write(path, text)
        return True
    try:
        created = _write_again_if_tidied(folder, lambda: folder.create(path, text))
    except StorageError as error:
        if not isinstance(error.__cause__, NotImplementedError):
            raise
        _require_stopped(folder, assume_stopped=assume_stopped)
        folder.write(path, text)
        return True
    if not created:  # or the answer to an earlier request of ours was lost
        there = holders.read_numbered(folder, lease.number)
        created = there is not None and there.token == lease.token
    elif not folder.local and folder.create(path, text):  # some servers ignore the condition
        _require_stopped(folder, assume_stopped=assume_stopped)
    if created and holders.list_numbers(folder)[-1:] != [lease.number]:
        _remove(folder, lease.number)
        return False
    return created


def _write_again_if_tidied(folder: WritableFolder, write: Callable[[], _Written]) -> _Written:
    """Write, and once more if the end of a change has just removed all temporary files."""
    try:
        return write()
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        folder.made.clear()
        return write()


def _require_stopped(folder: WritableFolder, *, assume_stopped: bool) -> None:
    if not assume_stopped:
        raise CheckpointError(
            f"The store of {folder.url} cannot create a file on condition that there is none, so "
            "two processes could take the checkpoint at once.",
            "Make sure that nobody else uses it, then add --assume-stopped.",
        )


def _remove(folder: WritableFolder, number: int) -> None:
    for name in (holders.renewal_note(number), holders.lease_note(number)):
        if folder.exists(note_path(name)):
            remove_note(folder, name)
