"""Let Ebbtide's own code run in simulated processes: its clocks, threads, ids and disk."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

from ebbtide import checkpoint, notes
from ebbtide.config import Settings  # noqa: F401 - loaded before anything is replaced
from ebbtide.errors import EbbtideError
from ebbtide.rewind import (
    apply,
    backups,
    checks,
    fork,
    holders,
    journal,
    lease,
)
from ebbtide.storage import folder, object_stores, stores, writable
from tests.simulation import disk, threads
from tests.simulation.objects import run_now
from tests.simulation.world import World

ROOTS: dict[str, tuple[Any, str]] = {}
"""By the start of a URL: the filesystem, and the path at which it begins."""


class _Datetime(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return datetime.fromtimestamp(threads.Time.time(), tz or timezone.utc)


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=World.current.random.getrandbits(128), version=4)


class _OfProcess:
    """A set or a dict of which each process has its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _own(self) -> Any:
        return getattr(World.current.task.process, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __contains__(self, item: object) -> bool:
        return item in self._own()

    def __getitem__(self, item: object) -> Any:
        return self._own()[item]

    def __setitem__(self, item: object, value: object) -> None:
        self._own()[item] = value


class _Path:
    """`pathlib.Path`, as far as leases on a disk need it."""

    def __init__(self, *parts: str) -> None:
        self._path = "/".join(parts)

    def rmdir(self) -> None:
        disk._disk().rmdir(self._path)

    def samefile(self, other: str) -> bool:
        return self._path.endswith(other)


def locate(location: str) -> tuple[str, Any, str]:
    """As `opening.locate`, for the store of the run."""
    for start, (filesystem, root) in ROOTS.items():
        if location.startswith(start):
            return location, filesystem, root + location.removeprefix(start)
    raise AssertionError(f"not simulated: {location}")


def _has_ended(pid: int, ticks: int) -> bool:
    world = World.current
    here = world.task.process.host
    same = [one for one in world.processes if one.host == here and one.pid == pid]
    return not (same and not same[0].dead and ticks == 1)


def _stalling(self: writable.WritableFolder, what: str, path: str) -> None:
    world = World.current
    faults = getattr(self.filesystem, "faults", None)
    if faults is not None and not path.startswith((".ebbtide/leases", ".ebbtide/tmp")):
        faults.stall(world.task.process)
    _changing(self, what, path)


_changing = writable.WritableFolder.changing


_parsed: dict[object, Any] = {}


def _parse_note(folder: Any, name: str, parse: Any, *advice: str) -> Any:
    """As `notes.parse_note`, but a text that was parsed into a frozen value is not parsed again."""
    text = folder.read(notes.note_path(name))
    if text is None:
        return None
    key = (parse.args, text) if isinstance(parse, partial) else None
    if key not in _parsed:
        found = notes.parse_note(_Read(folder, text), name, parse, *advice)  # type: ignore[arg-type]
        if key is None:
            return found
        if len(_parsed) > 5_000:
            _parsed.clear()
        _parsed[key] = found
    return _parsed[key]


@dataclass(frozen=True)
class _Read:
    """A folder of which a file was read."""

    folder: Any
    text: str

    def read(self, path: str) -> str:
        del path
        return self.text

    def path(self, path: str) -> Any:
        return self.folder.path(path)


def _make_folder(path: Any, flag: str) -> None:
    try:
        disk.Disk.current.makedirs(str(path))  # type: ignore[union-attr]
    except OSError as error:
        raise EbbtideError(f"Cannot write to {path}: {error}.", f"See {flag}.") from None


def _host() -> str:
    return World.current.task.process.host


REPLACED: list[tuple[Any, dict[str, Any]]] = [
    (
        holders,
        {
            "time": threads.Time,
            "parse_note": _parse_note,
            "held_here": _OfProcess("held_here"),
            "given_back": _OfProcess("given_back"),
            "_seen": _OfProcess("seen"),
            "machine": _host,
            "has_ended": _has_ended,
            "find_process": lambda *_: None,
            "socket": SimpleNamespace(gethostname=_host),
            "Path": _Path,
        },
    ),
    (
        lease,
        {
            "time": threads.Time,
            "threading": threads,
            "uuid4": _uuid4,
            "machine": _host,
            "start_ticks": lambda _pid: 1,
            "socket": SimpleNamespace(gethostname=_host),
            "os": disk.Os(),
            "make_folder": _make_folder,
        },
    ),
    (checkpoint.journal, {"parse_note": _parse_note}),
    (checks, {"os": disk.Os()}),
    (backups, {"datetime": _Datetime, "whoami": _host}),
    (journal, {"datetime": _Datetime, "whoami": _host}),
    (
        fork,
        {"datetime": _Datetime, "whoami": _host, "uuid": SimpleNamespace(uuid4=_uuid4)},
    ),
    (apply, {"uuid4": _uuid4}),
    (object_stores, {"time": threads.Time, "sync": run_now}),
    (
        folder,
        {
            "locate": locate,
            "os": disk.Os(),
            "open": disk.open_file,
            "open_regular": disk.open_to_read,
            "read_regular": disk.read_whole,
            "is_inside": lambda *_: True,
            "ThreadPoolExecutor": threads.Pool,
        },
    ),
    (
        writable,
        {"locate": locate, "os": disk.Os(), "uuid4": _uuid4, "ThreadPoolExecutor": threads.Pool},
    ),
    (writable.WritableFolder, {"changing": _stalling}),
    (
        stores,
        {
            "os": disk.Os(),
            "open": disk.open_file,
            "shutil": SimpleNamespace(copy2=disk.copy_file),
        },
    ),
]


@contextmanager
def simulated() -> Iterator[None]:
    """Replace what reaches the real machine; put it back at the end."""
    before = []
    for owner, names in REPLACED:
        for name, value in names.items():
            before.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, value)
    # both have the real one as a default
    held: Any = lease.hold_lease.__wrapped__.__kwdefaults__  # type: ignore[attr-defined]
    waiting: Any = holders.wait_until_free.__kwdefaults__
    held["pause"] = waiting["pause"] = threads.Time.sleep
    log = logging.getLogger("ebbtide")
    level, log.level = log.level, logging.CRITICAL
    try:
        yield
    finally:
        log.level = level
        for owner, name, value in reversed(before):
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        held["pause"] = waiting["pause"] = time.sleep


def seeded(seed: object) -> random.Random:
    """Chance by a seed."""
    return random.Random(str(seed))
