"""A checkpoint and a pipeline in, the right to run it out: ours, not another's, not in use."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from ebbtide.checkpoint.folder import NOTES, PARTS, Folder, open_folder
from ebbtide.checkpoint.logs import parse_kafka_offset
from ebbtide.checkpoint.reader import read_checkpoint
from ebbtide.config import make_folder
from ebbtide.errors import CheckpointError
from ebbtide.pipeline import Kafka, Pipeline
from ebbtide.processes import find_process, start_time

_LEASE = "lease.json"
_OWNER = "pipeline.json"
_FRESH_SECONDS = 60
_JVM_END_SECONDS = 30


@dataclass(frozen=True)
class Lease:
    """Who runs a checkpoint's query: the Python process and its JVM, on which host, seen when."""

    host: str
    processes: tuple[tuple[int, float], ...]
    """Process id and start time of each; an id alone may have been given away since."""
    renewed: float

    def alive(self) -> list[int]:
        """The ids of its processes that are still there; only of use on its own host."""
        return [pid for pid, started in self.processes if find_process(pid, started)]


class Claim:
    """A claimed checkpoint: `folder` to read and to keep notes in, `renew` to keep the lease."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._processes = [(os.getpid(), start_time(os.getpid()))]
        self._renewed = 0.0

    def add_process(self, pid: int) -> None:
        """Name another process, the JVM, that must be gone before the query may start again."""
        self._processes.append((pid, start_time(pid)))
        self.renew(every_seconds=0)

    def renew(self, every_seconds: float = 10) -> None:
        """Say that we are still here, if the last time is long enough ago."""
        if time.time() - self._renewed < every_seconds:
            return
        self._renewed = time.time()
        lease = Lease(socket.gethostname(), tuple(self._processes), time.time())
        self.folder.write_note(_LEASE, asdict(lease))


@contextmanager
def claim(location: str, pipeline: Pipeline) -> Iterator[Claim]:
    """Take a checkpoint for a run, and give it back at the end; refuse what is not ours to run."""
    folder = open_folder(location)
    check_owner(folder, pipeline)
    if folder.local:
        make_folder(Path(folder.root) / NOTES, "--checkpoint")
    once = FileLock(folder.path(NOTES, "lease.lock")) if folder.local else nullcontext()
    with once:
        _check_unused(folder)
        claimed = Claim(folder)
        claimed.renew(every_seconds=0)
    folder.write_note(_OWNER, {"pipeline": pipeline.name})
    try:
        yield claimed
    finally:
        folder.remove_note(_LEASE)


def check_owner(folder: Folder, pipeline: Pipeline) -> None:
    """Refuse a folder that is no checkpoint, or the checkpoint of another query."""
    names = set(folder.names()) - {NOTES}
    if not names:
        return
    if not names & set(PARTS):
        raise CheckpointError(
            f"{folder.url} holds {', '.join(sorted(names)[:3])}, which is no checkpoint.",
            "Name an empty folder with --checkpoint.",
        )
    owner = (folder.read_note(_OWNER) or {}).get("pipeline", pipeline.name)
    if owner != pipeline.name:
        raise _another_query(folder, f"of pipeline {owner}", pipeline)
    if "metadata" in names:
        _check_source(folder, pipeline)


def _check_source(folder: Folder, pipeline: Pipeline) -> None:
    batches = read_checkpoint(folder.url).batches
    if not batches:
        return
    offsets = batches[-1].offsets.sources
    if len(offsets) != 1:
        raise _another_query(folder, f"of a query with {len(offsets)} sources", pipeline)
    if not isinstance(pipeline.source, Kafka) or offsets[0] is None:
        return
    try:
        topics = sorted(parse_kafka_offset(offsets[0]))
    except (ValueError, AttributeError):
        raise _another_query(folder, "of a query that does not read Kafka", pipeline) from None
    if topics and topics != [pipeline.source.topic]:
        raise _another_query(folder, f"of a query that reads topic {', '.join(topics)}", pipeline)


def _another_query(folder: Folder, whose: str, pipeline: Pipeline) -> CheckpointError:
    return CheckpointError(
        f"{folder.url} is the checkpoint {whose}, not of {pipeline.name}.",
        "Name another folder with --checkpoint.",
    )


def _check_unused(folder: Folder) -> None:
    note: dict[str, Any] | None = folder.read_note(_LEASE)
    if note is None:
        return
    lease = Lease(note["host"], tuple((pid, at) for pid, at in note["processes"]), note["renewed"])
    if lease.host != socket.gethostname():
        age = time.time() - lease.renewed
        if age < _FRESH_SECONDS:
            raise _in_use(folder, f"on host {lease.host}, seen {age:.0f} s ago")
        return
    # a driver that was killed leaves its JVM behind for a moment; two must not run at once
    deadline = time.monotonic() + _JVM_END_SECONDS
    driver = lease.processes[0][0]
    while alive := lease.alive():
        if driver in alive or time.monotonic() > deadline:
            raise _in_use(folder, f"process {alive[0]}")
        time.sleep(0.1)


def _in_use(folder: Folder, by: str) -> CheckpointError:
    return CheckpointError(
        f"The query of {folder.url} is running already ({by}).", "Stop it first."
    )
