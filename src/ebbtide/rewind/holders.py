"""Who uses a checkpoint: numbered leases in it, of which the one with the highest number counts.

A lease is a file that is created only if its number is free, and never written again. Beside it,
its holder notes again and again that it is still there, and at last that it gives the lease back.
The clocks of two hosts are never compared: whoever finds a lease of another host waits until it
changes, or for as long as a lease lasts. See docs/adr/020-leases.md.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from ebbtide.checkpoint import log_files
from ebbtide.checks import OK, REFUSE, WARN, Check, CheckKind
from ebbtide.errors import CheckpointError, printable
from ebbtide.notes import Count, Seconds, decode, note_path, parse_note
from ebbtide.processes import find_process, has_ended, machine
from ebbtide.storage import NOTES, TEMPORARY, Folder
from ebbtide.times import format_age, in_utc

RUN, CHANGE, FORK = "run", "change", "fork"
LEASES = "leases"
OLD_NOTES = {RUN: "lease.json", CHANGE: "change-lease.json", FORK: "fork-lease.json"}
"""Where earlier versions kept a lease for each purpose; theirs are respected."""
FILES = frozenset({LEASES, TEMPORARY, "lease.lock", *OLD_NOTES.values()})
"""What a lease leaves among the notes of a checkpoint."""
LASTS_SECONDS = 60
"""A lease that nobody has renewed for so long is free."""
_NUMBERED = re.compile(r"([1-9]\d{0,14})\.json")
HIGHEST = 10**12
"""No lease gets so high a number: a file that has it is not ours."""
ANY = re.compile(r"([1-9]\d{0,14})\.(?:renewed\.)?json")
"""The files of a lease, also what a holder that was stalled has written after it was removed."""
_POLL_SECONDS = 1.0
_JVM_END_SECONDS = 30
_RECENT_SECONDS = 60
_OWN_WRITES_SECONDS = 30
_ATTEMPTS = 20
_log = logging.getLogger("ebbtide.lease")

Pause = Callable[[float], object]
held_here: set[tuple[str, str]] = set()
"""What this process holds now: the address of a checkpoint, and the token of the lease."""
given_back: set[str] = set()
"""The tokens of leases that this process does not hold any more, whatever their notes say."""
_seen: dict[tuple[str, str], tuple[Lease, float]] = {}
"""By address and token: a lease as it was last seen, and since when it is like that."""


@dataclass(frozen=True)
class Renewal:
    """What changes of a lease while it is held."""

    token: str
    processes: tuple[tuple[int, Seconds], ...]
    renewed: Seconds
    renewals: Count = 0
    released: bool = False


@dataclass(frozen=True)
class Lease:
    """Who uses a checkpoint: the Python process and its JVM, on which machine."""

    host: str
    processes: tuple[tuple[int, Seconds], ...]
    """Process id and start of each; an id alone may have been given away since."""
    renewed: Seconds
    """By the clock of its host, for people to read."""
    purpose: str = RUN
    released: bool = False
    """Given back in order; kept to tell our own last writes from those of others."""
    beside_run: bool = False
    """Taken for what does not disturb a running query; see `beside`."""
    location: str | None = None
    """Where the checkpoint lay then."""
    machine: str | None = None
    """Where its process ids mean something; None if that could not be told."""
    token: str = ""
    """A random name of its holder; earlier versions had none."""
    beside: str | None = None
    """The token of the run that goes on meanwhile."""
    run_ended: Seconds | None = None
    """By the store's clock: when the last run before it was seen for the last time, if it ended."""
    renewals: Count = 0
    number: Count = 0
    address: str = ""
    """Where it was read."""

    @property
    def is_here(self) -> bool:
        """Whether its process ids mean something to this process."""
        return self.machine is not None and self.machine == machine()

    def alive(self) -> list[int]:
        """The ids of its processes that are still there; none if that cannot be told from here."""
        if self.is_here:
            return [pid for pid, ticks in self.processes if has_ended(pid, int(ticks)) is False]
        if not self.token and self.host == socket.gethostname():
            return [pid for pid, started in self.processes if find_process(pid, started)]
        return []

    @property
    def ended(self) -> bool:
        """Whether its holder is known to be gone; a silent one on another machine is not."""
        return self.released or (
            self.is_here and all(has_ended(pid, int(ticks)) for pid, ticks in self.processes)
        )

    def is_held(self, at: float | None = None) -> bool | None:
        """Whether somebody holds it; None if only time can tell.

        It may be taken only by what was read: `at` is when that began, as we may have been stalled
        since. Without it the answer is for people to read.
        """
        if self.ended or self.token in given_back or self._is_copied():
            return False
        if (self.address, self.token) in held_here:
            return True
        if self.location in (None, self.address) and self.alive():
            return True
        since = _since(self)
        at = time.monotonic() if at is None else at
        return False if at - since >= LASTS_SECONDS else None

    def _is_copied(self) -> bool:
        """Whether it came here with a copy of the checkpoint, as its holder sees the files.

        Two containers can share process ids, and have different files of one name.
        """
        if self.location in (None, self.address) or not self.is_here:
            return False
        try:
            (driver, _), *_ = self.processes
            return not Path(f"/proc/{driver}/root{self.location}").samefile(self.address)
        except (OSError, ValueError):
            return False

    def is_ending(self) -> bool:
        """Whether its driver is gone, but the JVM of that is not yet."""
        alive = self.alive()
        return bool(alive) and self.processes[0][0] not in alive

    def user(self) -> str | None:
        """Who holds it, in words that stay the same; None if nobody does any more."""
        if self.is_held() is False:
            return None
        alive = self.alive()
        return f"process {alive[0]}" if alive else f"on host {self.host}"

    def holder(self) -> str | None:
        """Who holds it, and on another machine when it said so last."""
        user = self.user()
        if user is None or self.alive():
            return user
        return f"{user}, last renewed {in_utc(int(self.renewed) * 1000)} by its clock"

    def to_note(self) -> dict[str, object]:
        """Its file; number and address are those of the file."""
        return {k: v for k, v in asdict(self).items() if k not in ("number", "address")}


def _since(lease: Lease) -> float:
    key = (lease.address, lease.token or lease.purpose)
    if _seen.get(key, (None,))[0] != lease:
        _seen[key] = (lease, time.monotonic())
    return _seen[key][1]


def lease_note(number: int) -> str:
    """The name of the note of a lease, which is written once.

    >>> lease_note(3), renewal_note(3)
    ('leases/3.json', 'leases/3.renewed.json')
    """
    return f"{LEASES}/{number}.json"


def renewal_note(number: int) -> str:
    """The name of the note in which its holder says that it is still there."""
    return f"{LEASES}/{number}.renewed.json"


def list_numbers(folder: Folder, files: re.Pattern[str] = _NUMBERED) -> list[int]:
    """The numbers of all leases, ascending."""
    matches = map(files.fullmatch, folder.names(NOTES, LEASES))
    return sorted({int(match[1]) for match in matches if match})


def read_numbered(folder: Folder, number: int) -> Lease | None:
    """The lease with a number; None if it is not there."""
    advice = "Make sure that nobody else uses the checkpoint, then remove that file."
    lease = parse_note(folder, lease_note(number), partial(decode, Lease), advice)
    if lease is None:
        return None
    lease = _found(lease, folder, number)
    renewal = parse_note(folder, renewal_note(number), partial(decode, Renewal))
    if renewal is None or renewal.token != lease.token:  # of one whose number was free again
        return lease
    return replace(lease, **vars(renewal))


def read_leases(folder: Folder) -> list[Lease]:
    """Those that count: the one with the highest number, what goes beside it, notes of old."""
    for attempt in range(_ATTEMPTS):
        numbers = list_numbers(folder)
        try:
            found = [lease for n in numbers if (lease := read_numbered(folder, n)) is not None]
        except CheckpointError:  # maybe half of it: some filesystems have no links
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            if [lease.number for lease in found[-1:]] == numbers[-1:]:
                return _counting(found) + _read_old(folder)
        time.sleep(_POLL_SECONDS / 20)  # a newer one has come, and removed it
    raise CheckpointError(f"The leases in {folder.url} change all the time.", "Try again.")


def _counting(leases: list[Lease]) -> list[Lease]:
    """The newest lease and those that go on beside it, each as it was taken last.

    >>> run = Lease("a", (), 0.0, token="r", number=1)
    >>> prune = replace(run, token="p", beside="r", number=2)
    >>> [lease.number for lease in _counting([run, prune])]
    [2, 1]
    >>> [lease.number for lease in _counting([run, prune, replace(run, number=3)])]
    [3, 2]
    >>> [lease.number for lease in _counting([run, replace(prune, beside=None)])]
    [2]
    """
    if not leases:
        return []
    newest = leases[-1]
    beside = {
        one.token: one for one in leases if one.token != newest.token and is_beside(one, newest)
    }
    return [newest, *beside.values()]


def is_beside(one: Lease, other: Lease) -> bool:
    """Whether two leases do not exclude each other, or are the same one, taken again."""
    return one.token in (other.token, other.beside) or one.beside == other.token


def _read_old(folder: Folder) -> list[Lease]:
    notes = (parse_note(folder, name, partial(decode, Lease)) for name in OLD_NOTES.values())
    return [_found(note, folder) for note in notes if note is not None]


def _found(lease: Lease, folder: Folder, number: int = 0) -> Lease:
    """A lease with the place of its file; its host is printed, and could be anything."""
    host = printable(" ".join(lease.host.split()))
    return replace(lease, number=number, address=folder.address, host=host)


def read_lease(folder: Folder, purpose: str = RUN) -> Lease | None:
    """The last lease of a checkpoint for a purpose: to run its query, to change or to make it."""
    for lease in read_leases(folder):
        # a copy of a checkpoint has the note of the original, whose query may be running
        if lease.purpose == purpose and lease.location in (None, folder.address):
            return lease
    return None


def wait_until_free(
    folder: Folder,
    *,
    beside: Iterable[str] = (),
    before: list[Lease] | None = None,
    pause: Pause = time.sleep,
) -> list[Lease]:
    """Raise while somebody uses a checkpoint; return the leases that count, none of them held.

    A lease of another host that does not change for as long as one lasts is not held. `beside` are
    the purposes that do not disturb, `before` leases that were seen earlier: what has changed since
    is held.
    """
    jvm_ends, is_said = time.monotonic() + _JVM_END_SECONDS, False
    while True:
        at, leases = time.monotonic(), read_leases(folder)
        excluding = [lease for lease in leases if lease.purpose not in beside]
        states = [(lease, _is_held(lease, before, at)) for lease in excluding]
        held = next((lease for lease, state in states if state), None)
        if held and not (held.is_ending() and time.monotonic() < jvm_ends):
            raise in_use(folder, held)
        unsure = next((lease for lease, state in states if state is None), None)
        if unsure and not is_said:
            is_said = True
            _log.warning(
                "%s has a lease (%s) that was not given back. Waiting up to %.0f s to see whether "
                "it is renewed …",
                *(folder.url, unsure.holder(), LASTS_SECONDS),
            )
        if not (held or unsure):
            return leases
        before = leases
        pause(min(_POLL_SECONDS, LASTS_SECONDS / 20) if unsure else 0.1)


def _is_held(lease: Lease, before: list[Lease] | None, at: float) -> bool | None:
    state = lease.is_held(at)
    is_new = before is not None and lease not in before
    return True if state is None and is_new else state


class InUseError(CheckpointError):
    """Another process has the checkpoint."""


def in_use(folder: Folder, lease: Lease) -> InUseError:
    """Say who has the checkpoint."""
    holder = lease.holder() or f"on host {lease.host}"
    if lease.purpose == RUN:
        return InUseError(
            f"The query of {folder.url} is running already ({holder}).", "Stop it first."
        )
    # a later version may have other purposes
    what = {FORK: "made by another fork", CHANGE: "rewound"}.get(lease.purpose, "changed")
    what = "pruned" if lease.beside_run else what
    return InUseError(f"{folder.url} is being {what} ({holder}).", "Wait until that is done.")


def check_running(folder: Folder, logs: log_files.Logs, *, assume_stopped: bool) -> Check:
    """Whether the query is stopped: our lease says so, or nobody has written for a while."""
    leases, check = read_leases(folder), partial(Check, CheckKind.RUNNING)
    run = next((lease for lease in leases if lease.purpose == RUN), None)
    state = run.is_held() if run else False
    if run and state:
        return check(REFUSE, f"the query is running ({run.holder()})", "Stop it first.")
    written, ended = last_write(folder, logs), find_run_end(folder, leases)
    if written is None:
        return _check_untimed(check, assume_stopped=assume_stopped)
    if ended is not None and written < ended + _OWN_WRITES_SECONDS:
        return check(OK, "its last run has ended")
    seconds = _store_time(folder, leases) - written
    age = format_age(seconds)
    if seconds >= quiet_seconds(logs):
        if run and state is None:
            return check(
                WARN,
                f"nothing was written for {age}, but its last run has not ended in order "
                f"({run.holder()}): the change waits to see whether that is still there",
            )
        return check(OK, f"nothing was written for {age}")
    if assume_stopped:
        return check(WARN, f"written {age} ago; you say it is stopped")
    advice = "Stop it, then add --assume-stopped."
    return check(REFUSE, f"the query may be running: it wrote {age} ago", advice)


def is_idle(folder: Folder, logs: log_files.Logs) -> bool:
    """Whether nobody runs the query, or it has written nothing for a while."""
    return check_running(folder, logs, assume_stopped=False).verdict == OK


def find_run_end(folder: Folder, leases: list[Lease]) -> float | None:
    """When the last run by us was seen last, by the store's clock; None unless it has ended."""
    own = [lease for lease in leases if lease.location in (None, folder.address)]
    run = next((lease for lease in own if lease.purpose == RUN), None)
    if run is None:
        return own[0].run_ended if own else None
    if not run.ended or not run.number:
        return run.renewed if run.ended else None
    return _last_renewal(folder, run.number)


def _store_time(folder: Folder, leases: list[Lease]) -> float:
    """Now by the clock of the store, if we have just written a lease there; else by our own."""
    ours = [one.number for one in leases if (one.address, one.token) in held_here]
    return next(filter(None, (_last_renewal(folder, number) for number in ours)), time.time())


def _last_renewal(folder: Folder, number: int) -> float | None:
    """When a lease was last written, by the clock of the store."""
    stats = map(folder.stat, map(note_path, (renewal_note(number), lease_note(number))))
    return next((stat.modified for stat in stats if stat), None)


def _check_untimed(check: Callable[..., Check], *, assume_stopped: bool) -> Check:
    what = "the filesystem does not say when the query last wrote"
    if assume_stopped:
        return check(WARN, f"{what}; you say it is stopped")
    return check(REFUSE, what, "Stop the query, then add --assume-stopped.")


def last_write(folder: Folder, logs: log_files.Logs) -> float | None:
    """When the query last wrote, 0 if it never did; None where the filesystem does not say."""
    paths = [f"offsets/{batch.id}" for batch in logs.batches[-1:]]
    paths += [f"commits/{batch.id}" for batch in (logs.latest_committed,) if batch]
    times = [stat.modified for path in paths if (stat := folder.stat(path))]
    known = [at for at in times if at is not None]
    return max(known, default=0.0) if len(known) == len(times) else None


def quiet_seconds(logs: log_files.Logs) -> float:
    """How long nothing must have been written before a query is taken for stopped."""
    return max(_RECENT_SECONDS, 2 * _longest_pause(logs))


def _longest_pause(logs: log_files.Logs) -> float:
    """The longest time between two of the last batches, up to an hour: it may just be waiting."""
    times = [batch.offsets.timestamp_ms for batch in logs.batches[-10:]]
    pauses = [(b - a) / 1000 for a, b in pairwise(times)]
    return min(3600.0, max(pauses, default=0.0))


def is_unused(folder: Folder) -> bool:
    """Whether nothing is in a folder on disk but leases."""
    notes = set(folder.names(NOTES))
    return folder.local and set(folder.names()) <= {NOTES} and notes <= FILES


def remove_unused(folder: Folder) -> None:
    """Remove a folder on disk in which nothing is, not even a lease.

    Folders are only removed empty: if somebody takes it just now, theirs stays.
    """
    if is_unused(folder):
        with suppress(OSError):
            for parts in ((NOTES, LEASES), (NOTES, TEMPORARY), (NOTES,), ()):
                with suppress(FileNotFoundError):
                    Path(folder.root, *parts).rmdir()
