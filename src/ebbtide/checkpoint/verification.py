"""Prove for each retained batch that it can run again, file by file."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import google_crc32c

from ebbtide.checkpoint.reader import Checkpoint, read_checkpoint
from ebbtide.errors import CheckpointError
from ebbtide.notes import INVALID, decode
from ebbtide.parsing import MAX_LOG_BYTES, parse_json
from ebbtide.storage import Folder, Tree

GOOD, GONE, BROKEN = "good", "gone", "broken"
_RETAINED = 100
"""Spark's default for `spark.sql.streaming.minBatchesToRetain`, which no checkpoint records."""
_HADOOP = b"crc\x00"
_STEP, _STEPS, _MAX_STEP = 512, 2048, 1 << 20
"""Hadoop's default for the bytes per checksum, how many are read at once, and the most we take."""


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
            size, self.problems[path] = check_file(self.folder, self.tree, path)
            self.bytes += size
        return self.problems[path]


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


def check_file(folder: Folder, tree: Tree, path: str) -> tuple[int, str | None]:
    """A file's size, and what is wrong with it by the checksum files beside it, if anything is."""
    directory, _, name = path.rpartition("/")
    members = tree[directory].members
    hadoop, spark = (
        (file, folder.read_bytes(directory, file) or b"") if file in members else None
        for file in (f".{name}.crc", f"{name}.crc")
    )
    step = _bytes_per_checksum(hadoop[1]) if hadoop else _STEP
    size, crc32c, sums = 0, 0, bytearray(hadoop[1][:8] if hadoop and step else b"")
    try:
        for chunk in _read_chunks(folder, tree, path, (step or _STEP) * _STEPS):
            size += len(chunk)
            crc32c = google_crc32c.extend(crc32c, chunk) if spark else 0
            for start in range(0, len(chunk), step) if hadoop and step else ():
                sums += struct.pack(">I", zlib.crc32(chunk[start : start + step]))
    except FileNotFoundError:
        return 0, f"{path} is missing"
    except CheckpointError as error:
        return 0, error.problem.rstrip(".")
    wrong = hadoop[0] if hadoop and sums != hadoop[1] else None
    if wrong is None and spark and not _matches_spark(size, crc32c, spark[1]):
        wrong = spark[0]
    return size, wrong and f"{path} does not match its checksum {wrong}"


def _bytes_per_checksum(sums: bytes) -> int:
    """Hadoop's local checksums: a header, then one CRC-32 for every so many bytes; 0 if damaged."""
    if len(sums) < 8 or not sums.startswith(_HADOOP):
        return 0
    step = int(struct.unpack_from(">I", sums, 4)[0])
    return step if step <= _MAX_STEP else 0


def _matches_spark(size: int, crc32c: int, sums: bytes) -> bool:
    """Spark's own checksums (4.1 on): JSON with the algorithm, a signed value and the size."""
    try:
        checksum = parse_json(sums[:MAX_LOG_BYTES])
        value = decode(int, checksum["value"])
        named = (checksum["algorithm"], checksum["mainFileSize"], value % 2**32)
    except INVALID:
        return False
    return bool(named == ("CRC32C", size, crc32c))


def _read_chunks(folder: Folder, tree: Tree, path: str, most: int) -> Iterator[bytes]:
    directory, _, name = path.rpartition("/")
    if tree[directory].size.get(name, most) >= most:
        return folder.chunks(path, most)
    # known to be small: one request, where a file to read from takes two
    if (content := folder.read_bytes(path)) is None:
        raise FileNotFoundError(path)
    return iter((content,))
