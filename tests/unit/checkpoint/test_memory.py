"""Large files are read piece by piece."""

from __future__ import annotations

import io
import json
import resource
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cramjam
import pytest

from ebbtide.checkpoint import read_checkpoint
from ebbtide.checkpoint.changelog import _blocks, read_lineage
from tests.trees import Shape, make

LARGE = 200 << 20
MOST = 64 << 20
"""What reading may take: some chunks, not the file."""
VERIFY = """
import json, resource, sys
from ebbtide.checkpoint.verification import verify_checkpoint
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = verify_checkpoint(sys.argv[1])
taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([taken * 1024, report.bytes, len(report.broken)]))
"""


def verify_in_a_child(folder: Path) -> tuple[int, int, int]:
    """The memory that it took, the bytes that it read, the batches that are broken."""
    command = [sys.executable, "-c", VERIFY, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken, read, broken = json.loads(done.stdout)
    return taken, read, broken


@pytest.mark.parametrize("is_whole", [True, False])
def test_verify_compares_a_large_file_with_its_checksums_in_little_memory(
    is_whole: bool, tmp_path: Path
) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", batches=3, partitions=1))
    file = folder / "state/0/0/3.snapshot"
    with file.open("wb") as stream:
        stream.truncate(LARGE + 7)  # sparse: it takes no room
    step = 512
    last = zlib.crc32(bytes(7)) if is_whole else 0
    sums = struct.pack(">I", zlib.crc32(bytes(step))) * (LARGE // step) + struct.pack(">I", last)
    (folder / "state/0/0/.3.snapshot.crc").write_bytes(b"crc\0" + struct.pack(">I", step) + sums)
    taken, read, broken = verify_in_a_child(folder)
    assert (read > LARGE, broken) == (True, 0 if is_whole else 1)
    assert taken < MOST


def test_of_a_large_changelog_only_the_beginning_is_unpacked(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("v2", batches=4, partitions=1, hadoop_checksums=False))
    (chain,) = read_checkpoint(str(folder)).chains(3).values()
    file = folder / chain.files[-1]
    assert file.name.endswith(".changelog")
    small = b"".join(_blocks(io.BytesIO(file.read_bytes())))
    file.write_bytes(bytes(cramjam.zstd.compress(small + bytes(LARGE))))
    assert list(read_checkpoint(str(folder)).chains(3).values()) == [chain]
    taken, _, broken = verify_in_a_child(folder)
    assert broken == 0
    assert taken < MOST


@pytest.mark.parametrize("level", [1, 3, 19])
@pytest.mark.parametrize("flush", [10, 60_000])
def test_zstd_is_unpacked_block_by_block(level: int, flush: int) -> None:
    """As the library unpacks it whole, whatever the frames and blocks are."""
    versions = [{"version": n, "checkpointUniqueId": f"{n * 7919:036}"} for n in range(800)]
    lineage = json.dumps(versions).encode()
    content = b"\0\2v4" + struct.pack(">H", len(lineage)) + lineage
    frames = [content[:flush], content[flush:] + b"state" * 20_000]
    packed = b"".join(bytes(cramjam.zstd.compress(frame, level)) for frame in frames)
    assert len(read_lineage(io.BytesIO(packed))) == 800
    unpacked = b""
    for block in _blocks(io.BytesIO(packed)):
        unpacked += block
    assert unpacked == b"".join(frames)
    for broken in (packed[:-3], packed[:9], packed[:40] + b"\xff" * 40 + packed[80:]):
        with pytest.raises((ValueError, cramjam.DecompressionError)):
            list(_blocks(io.BytesIO(broken)))


@pytest.mark.parametrize(
    "content",
    [
        b"LZ4Block" + struct.pack("<BiiI", 0x26, 4, 2**31 - 1, 0) + b"abcd",
        b"LZ4Block" + struct.pack("<BiiI", 0x26, 2**31 - 1, 4, 0) + b"abcd",
        b"LZ4Block" + struct.pack("<BiiI", 0x26, -1, 4, 0) + b"abcd",
        b"\x82SNAPPY\0" + bytes(8) + struct.pack(">i", 6) + b"\xff\xff\xff\xff\x0fa",
    ],
)
def test_a_block_that_claims_to_be_huge_is_refused(content: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"it has a block|it is cut off"):
        read_lineage(io.BytesIO(content))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST // 1024
