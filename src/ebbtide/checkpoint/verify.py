"""A checkpoint in, a proof out: every retained batch can run again, or why not."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import google_crc32c

from ebbtide.checkpoint.folder import Folder, Tree
from ebbtide.checkpoint.reader import Checkpoint, read_checkpoint

GOOD, GONE, BROKEN = "good", "gone", "broken"
_RETAINED = 100
"""Spark's default for `spark.sql.streaming.minBatchesToRetain`, which no checkpoint records."""
_HADOOP = b"crc\x00"


@dataclass(frozen=True)
class Proof:
    """One batch and whether it can run again."""

    batch: int
    verdict: str
    """`good`, `gone` (cleaned up by Spark, as it may), or `broken`."""
    reason: str | None = None


@dataclass(frozen=True)
class Report:
    """What a verification found."""

    checkpoint: str
    query_id: str
    proofs: tuple[Proof, ...]
    files: int
    """How many files were looked at."""
    bytes: int
    """How many bytes were read and compared with a checksum."""
    unknown: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[Proof, ...]:
        """The batches that should be there and cannot run again."""
        return tuple(proof for proof in self.proofs if proof.verdict == BROKEN)


@dataclass
class _Files:
    """The files looked at so far, each once."""

    folder: Folder
    tree: Tree
    problems: dict[str, str | None] = field(default_factory=dict)
    bytes: int = 0

    def problem(self, path: str) -> str | None:
        if path not in self.problems:
            content = self.folder.read_bytes(path)
            self.bytes += len(content or b"")
            self.problems[path] = check_file(self.folder, self.tree, path, content)
        return self.problems[path]


def verify_checkpoint(
    location: str,
    *,
    retained: int | None = None,
    on_batch: Callable[[int, int], None] = lambda _done, _all: None,
) -> Report:
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
        on_batch(index, len(batches))
        reason, purged = _why_not(checkpoint, files, batch.id)
        verdict = GOOD
        if reason is not None:
            verdict = BROKEN if batch.id >= promised and not purged else GONE
        proofs.append(Proof(batch.id, verdict, reason))
    on_batch(len(batches), len(batches))
    return Report(
        location,
        checkpoint.logs.query_id,
        tuple(proofs),
        len(files.problems),
        files.bytes,
        checkpoint.unknown,
    )


def first_promised(checkpoint: Checkpoint, retained: int | None) -> int:
    """The first batch that Spark's retention promises: what the logs still hold, up to 100.

    Logs and state are cleaned up one after the other, so the first two entries promise nothing.
    """
    ids = [batch.id for batch in checkpoint.logs.batches]
    if not ids:
        return 0
    oldest = 0 if ids[0] == 0 else ids[0] + 3
    return max(oldest, ids[-1] - (retained or _RETAINED) + 2)


def _why_not(checkpoint: Checkpoint, files: _Files, batch: int) -> tuple[str | None, bool]:
    """Why a batch cannot run again, and whether Spark's own cleaning up explains it."""
    before = checkpoint.before(batch)
    needed = [f"offsets/{batch}"]
    needed += [f"{log}/{before.id}" for log in ("offsets", "commits")] if before else []
    for path in needed:
        if files.folder.exists(path) and (problem := files.problem(path)) is not None:
            return problem, False
    chains = checkpoint.chains(batch)
    if (reason := checkpoint.why_not(batch)) is not None:
        purged = bool(chains) and any(chain.purged for chain in chains.values())
        return reason, purged and not any(c.problem and not c.purged for c in chains.values())
    for store, chain in chains.items():
        if chain.problem:
            return f"{store}: {chain.problem}", chain.purged
        for path in (*chain.files, *(path for path, _ in chain.shared)):
            if (problem := files.problem(path)) is not None:
                return f"{store}: {problem}", False
    return None, False


def check_file(folder: Folder, tree: Tree, path: str, content: bytes | None) -> str | None:
    """What is wrong with a file, by the checksum files beside it; None if nothing is."""
    if content is None:
        return f"{path} is missing"
    directory, _, name = path.rpartition("/")
    members = tree[directory].members
    if f".{name}.crc" in members:
        sums = folder.read_bytes(directory, f".{name}.crc") or b""
        if not _matches_hadoop(content, sums):
            return f"{path} does not match its checksum .{name}.crc"
    if f"{name}.crc" in members:
        found = folder.read_bytes(directory, f"{name}.crc") or b""
        if not _matches_spark(content, found):
            return f"{path} does not match its checksum {name}.crc"
    return None


def _matches_hadoop(content: bytes, sums: bytes) -> bool:
    """Hadoop's local checksums: a header, then one CRC-32 for every so many bytes."""
    if len(sums) < 8 or not sums.startswith(_HADOOP):
        return False
    (step,) = struct.unpack_from(">I", sums, 4)
    chunks = (content[start : start + step] for start in range(0, len(content), step))
    return sums[8:] == b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)


def _matches_spark(content: bytes, found: bytes) -> bool:
    """Spark's own checksums (4.1 on): JSON with the algorithm, a signed value and the size."""
    try:
        said = json.loads(found)
        algorithm, value, size = said["algorithm"], int(said["value"]), said["mainFileSize"]
    except (ValueError, KeyError, TypeError):
        return False
    if algorithm != "CRC32C" or len(content) != size:
        return False
    return bool(google_crc32c.value(content) == value % 2**32)
