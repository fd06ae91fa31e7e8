"""Prove for each retained batch that it can run again, file by file."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import google_crc32c

from ebbtide.checkpoint.reader import Checkpoint, read_checkpoint
from ebbtide.storage import Folder, Tree

GOOD, GONE, BROKEN = "good", "gone", "broken"
_RETAINED = 100
"""Spark's default for `spark.sql.streaming.minBatchesToRetain`, which no checkpoint records."""
_HADOOP = b"crc\x00"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Proof:
    """One batch and whether it can run again."""

    batch: int
    verdict: str
    """`good`, `gone` (cleaned up by Spark, as it may), or `broken`."""
    reason: str | None = None


@dataclass(frozen=True)
class VerificationReport:
    """What a verification found."""

    checkpoint: str
    query_id: str
    proofs: tuple[Proof, ...]
    next: Proof | None
    """The batch that comes next, not planned yet: can the query go on?"""
    files: int
    """How many files were looked at."""
    bytes: int
    """How many bytes were read and compared with a checksum."""
    unknown: tuple[str, ...] = ()

    @property
    def good(self) -> tuple[Proof, ...]:
        """The batches that can run again."""
        return tuple(proof for proof in self.proofs if proof.verdict == GOOD)

    @property
    def broken(self) -> tuple[Proof, ...]:
        """The batches that should be there and cannot run again."""
        proofs = (*self.proofs, self.next) if self.next else self.proofs
        return tuple(proof for proof in proofs if proof.verdict == BROKEN)


@dataclass
class _Files:
    """The files looked at so far, each once."""

    folder: Folder
    tree: Tree
    problems: dict[str, str | None] = field(default_factory=dict)
    bytes: int = 0

    def problem(self, path: str) -> str | None:
        if path not in self.problems:
            self.problems[path] = self._check(path)
        return self.problems[path]

    def _check(self, path: str) -> str | None:
        """What is wrong with a file, by the checksum files beside it; None if nothing is."""
        directory, _, name = path.rpartition("/")
        members, checks = self.tree[directory].members, {}
        for sums, check in ((f".{name}.crc", _HadoopCheck), (f"{name}.crc", _SparkCheck)):
            if sums in members:
                checks[sums] = check(self.folder.read_bytes(directory, sums) or b"")
        try:
            for chunk in _read_chunks(self.folder, self.tree, path):
                self.bytes += len(chunk)
                for running in checks.values():
                    running.update(chunk)
        except FileNotFoundError:
            return f"{path} is missing"
        wrong = next((sums for sums, running in checks.items() if not running.matches()), None)
        return None if wrong is None else f"{path} does not match its checksum {wrong}"


def verify_checkpoint(
    location: str,
    *,
    retained: int | None = None,
    on_batch: Callable[[int, int], None] = lambda _done, _all: None,
) -> VerificationReport:
    """Prove each batch in the log: its log entries, and the whole chain of each of its stores.

    Every file of a chain is read and compared with its checksums, Hadoop's and Spark's, where it
    has them. `retained` is the query's `spark.sql.streaming.minBatchesToRetain`; unless given it is
    taken from the logs.
    """
    checkpoint = read_checkpoint(location)
    files = _Files(checkpoint.folder, checkpoint.tree)
    promised = first_promised(checkpoint, retained)
    batches = checkpoint.logs.batches
    proofs = []
    for index, batch in enumerate(batches):
        on_batch(index, len(batches) + 1)
        reason = _why_no_logs(checkpoint, files, batch.id)
        reason = reason or _why_no_state(checkpoint, files, batch.id)
        bad = BROKEN if batch.id >= promised else GONE
        proofs.append(Proof(batch.id, bad if reason else GOOD, reason))
    following = None
    if checkpoint.logs.barriers:
        reason = f"offsets/{checkpoint.logs.barriers[0]} is the barrier of an unfinished rewind"
        following = Proof(checkpoint.logs.barriers[0], BROKEN, reason)
    elif batches and batches[-1].committed:
        reason = _why_no_state(checkpoint, files, batches[-1].id + 1)
        following = Proof(batches[-1].id + 1, BROKEN if reason else GOOD, reason)
    on_batch(1, 1)
    return VerificationReport(
        location,
        checkpoint.logs.query_id,
        tuple(proofs),
        following,
        len(files.problems),
        files.bytes,
        checkpoint.unknown,
    )


def first_promised(checkpoint: Checkpoint, retained: int | None) -> int:
    """The first batch that Spark's retention promises: what the logs still hold, up to 100.

    Logs and state are cleaned up one after the other, so the first entries promise nothing.
    """
    if not checkpoint.logs.batches:
        return 0
    oldest = latest = checkpoint.logs.batches[-1].id
    while (before := checkpoint.before(oldest)) is not None:
        oldest = before.id
    return max(0 if oldest == 0 else oldest + 3, latest - (retained or _RETAINED) + 2)


def _why_no_logs(checkpoint: Checkpoint, files: _Files, batch: int) -> str | None:
    """Why the log entries do not let a batch run again."""
    if problem := checkpoint.why_no_start(batch):
        return problem
    before = checkpoint.before(batch)
    paths = [f"offsets/{batch}"]
    paths += [f"{log}/{before.id}" for log in ("offsets", "commits")] if before else []
    return next((problem for path in paths if (problem := files.problem(path))), None)


def _why_no_state(checkpoint: Checkpoint, files: _Files, batch: int) -> str | None:
    """Why the state that a batch starts from does not load."""
    if missing := checkpoint.why_no_partition(batch):
        return missing
    for store, chain in checkpoint.chains(batch).items():
        if chain.problem:
            return f"{store}: {chain.problem}"
        for path in (*chain.files, *(path for path, _ in chain.shared)):
            if (problem := files.problem(path)) is not None:
                return f"{store}: {problem}"
    return None


def _read_chunks(folder: Folder, tree: Tree, path: str) -> Iterator[bytes]:
    directory, _, name = path.rpartition("/")
    if tree[directory].size.get(name, _CHUNK) >= _CHUNK:
        return folder.chunks(path, _CHUNK)
    # known to be small: one request, where a file to read from takes two
    if (content := folder.read_bytes(path)) is None:
        raise FileNotFoundError(path)
    return iter((content,))


class _HadoopCheck:
    """Hadoop's local checksums: a header, then one CRC-32 for every so many bytes."""

    def __init__(self, sums: bytes) -> None:
        self._sums, self._at, self._crc = sums, 8, 0
        self._step = self._left = 0
        if len(sums) >= 8 and sums.startswith(_HADOOP):
            (self._step,) = struct.unpack_from(">I", sums, 4)
        self._left = self._step
        self._good = self._step > 0

    def update(self, chunk: bytes) -> None:
        position = 0
        while self._good and position < len(chunk):
            part = memoryview(chunk)[position : position + self._left]
            self._crc = zlib.crc32(part, self._crc)
            self._left -= len(part)
            position += len(part)
            if self._left == 0:
                self._compare()

    def matches(self) -> bool:
        if self._left < self._step:
            self._compare()
        return self._good and self._at == len(self._sums)

    def _compare(self) -> None:
        expected = self._sums[self._at : self._at + 4]
        self._good = self._good and expected == struct.pack(">I", self._crc)
        self._at, self._crc, self._left = self._at + 4, 0, self._step


class _SparkCheck:
    """Spark's own checksums (4.1 on): JSON with the algorithm, a signed value and the size."""

    def __init__(self, sums: bytes) -> None:
        self._crc = self._size = 0
        self._expected: tuple[object, int] | None = None
        with suppress(ValueError, KeyError, TypeError):
            note = json.loads(sums)
            if note["algorithm"] == "CRC32C":
                self._expected = (note["mainFileSize"], int(note["value"]) % 2**32)

    def update(self, chunk: bytes) -> None:
        self._crc = google_crc32c.extend(self._crc, chunk)
        self._size += len(chunk)

    def matches(self) -> bool:
        return self._expected == (self._size, self._crc)
