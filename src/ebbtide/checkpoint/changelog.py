"""Read from a changelog file of state format 2 which files its ancestors are."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

import cramjam

from ebbtide.notes import INVALID, decode
from ebbtide.parsing import parse_json

_LZ4 = b"LZ4Block"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SNAPPY = b"\x82SNAPPY\x00"
_LARGEST_BLOCK = 1 << 25
"""No more than lz4-java puts into one block."""
_ZSTD_BLOCK = 1 << 17
_MOST_BLOCKS = 2100
"""No more hold two texts, of 64 KB each at the most, even if blocks are as small as lz4's can be.

Each block is unpacked with those before it, so more of them would take the square of the time.
"""


def read_lineage(stream: BinaryIO) -> dict[int, str]:
    """The unique ids by version that a change of format version 2 begins with.

    No more is read and unpacked than they take.
    """
    try:
        version, lineage = _first_texts(_blocks(stream))
    except (cramjam.DecompressionError, struct.error) as error:
        raise ValueError(f"it does not decompress ({error})") from None
    if version not in ("v3", "v4"):
        raise ValueError(f"it begins with {version[:10]!r}, not v3 or v4")
    try:
        items = [(item["version"], item["checkpointUniqueId"]) for item in parse_json(lineage)]
        return {decode(int, version): decode(str, unique_id) for version, unique_id in items}
    except INVALID:
        raise ValueError("it names no ancestors") from None


def _first_texts(blocks: Iterator[bytes]) -> tuple[str, str]:
    """The first two texts, as Java's writeUTF writes them."""
    content = b""
    for number, block in enumerate(blocks):
        if number == _MOST_BLOCKS:
            raise ValueError(f"it does not begin within {_MOST_BLOCKS:,} blocks")
        content += block
        texts: list[str] = []
        position = 0
        while len(texts) < 2 and position + 2 <= len(content):
            (length,) = struct.unpack_from(">H", content, position)
            if len(content) < position + 2 + length:
                break
            texts.append(content[position + 2 : position + 2 + length].decode("utf-8", "replace"))
            position += 2 + length
        if len(texts) == 2:
            return texts[0], texts[1]
    raise ValueError("it is cut off" if content else "it is empty")


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """A compressed change, decompressed block by block: lz4 by default, zstd, snappy."""
    start = stream.read(len(_LZ4))
    if start == _LZ4:
        return _unpack_lz4(stream)
    if start.startswith(_ZSTD):
        stream.seek(0)
        return _unpack_zstd(stream)
    if start == _SNAPPY:
        return _unpack_snappy(stream)
    raise ValueError("it is empty, or its compression is none of lz4, zstd and snappy")


def _read(stream: BinaryIO, length: int) -> bytes:
    if not 0 <= length <= _LARGEST_BLOCK:
        raise ValueError(f"it has a block of {length} bytes")
    content = stream.read(length)
    if len(content) < length:
        raise ValueError("it is cut off")
    return content


def _unpack_lz4(stream: BinaryIO) -> Iterator[bytes]:
    """The blocks of lz4-java's stream: magic, token, packed and unpacked length, checksum."""
    start = _LZ4
    while start == _LZ4:
        token, packed, length, _ = struct.unpack("<BiiI", _read(stream, 13))
        block = _read(stream, packed)
        if token & 0xF0 == 0x10:
            yield block
        elif length:
            if not 0 < length <= _LARGEST_BLOCK:
                raise ValueError(f"it has a block of {length} bytes")
            yield bytes(cramjam.lz4.decompress_block(block, output_len=length))
        start = stream.read(len(_LZ4))


def _unpack_zstd(stream: BinaryIO) -> Iterator[bytes]:
    """The blocks of zstd's frames, each unpacked in a frame of its own with those before it.

    The library unpacks only whole frames, and Spark writes a file as one.
    """
    while stream.read(len(_ZSTD)) == _ZSTD:
        (descriptor,) = _read(stream, 1)
        is_single, has_checksum, size_flag = descriptor & 32, descriptor & 4, descriptor >> 6
        if descriptor & 3:
            raise ValueError("it needs a dictionary of zstd")
        size_bytes = 1 << size_flag if size_flag or is_single else 0
        _read(stream, size_bytes + (0 if is_single else 1))
        blocks, unpacked, is_last = b"", b"", False
        while not is_last:
            header = int.from_bytes(_read(stream, 3), "little")
            is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            if size > _ZSTD_BLOCK:
                raise ValueError(f"it has a block of {size} bytes")
            block = _read(stream, 1 if kind == 1 else size)
            # no checksum, no size, a window of 256 KB, and this block is the last one
            frame = _ZSTD + b"\x00\x40" + blocks + (header | 1).to_bytes(3, "little") + block
            blocks += (header & ~1).to_bytes(3, "little") + block
            before, unpacked = len(unpacked), bytes(cramjam.zstd.decompress(frame))
            yield unpacked[before:]
        _read(stream, 4 if has_checksum else 0)


def _unpack_snappy(stream: BinaryIO) -> Iterator[bytes]:
    """The blocks of snappy-java's stream: a header of 16 bytes, then length and block."""
    _read(stream, 8)
    while len(prefix := stream.read(4)) == 4:
        block = _read(stream, struct.unpack(">i", prefix)[0])
        if cramjam.snappy.decompress_raw_len(block) > _LARGEST_BLOCK:
            raise ValueError("it has a block that is too large")
        yield bytes(cramjam.snappy.decompress_raw(block))
