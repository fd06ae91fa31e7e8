"""A change of format version 2 in, its ancestors out: by version, the unique id of each file."""

from __future__ import annotations

import json
import struct

import cramjam

_LZ4 = b"LZ4Block"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SNAPPY = b"\x82SNAPPY\x00"


def read_lineage(content: bytes) -> dict[int, str]:
    """The unique ids by version that a change of format version 2 begins with."""
    text = _decompress_start(content)
    version, rest = _java_text(text)
    if version not in ("v3", "v4"):
        raise ValueError(f"it begins with {version[:10]!r}, not v3 or v4")
    lineage, _ = _java_text(rest)
    return {int(item["version"]): item["checkpointUniqueId"] for item in json.loads(lineage)}


def _java_text(content: bytes) -> tuple[str, bytes]:
    """A text as Java's writeUTF writes it, and what follows."""
    if len(content) < 2:
        raise ValueError("it is empty")
    (length,) = struct.unpack_from(">H", content)
    if len(content) < 2 + length:
        raise ValueError("it is cut off")
    return content[2 : 2 + length].decode("utf-8", errors="replace"), content[2 + length :]


def _decompress_start(content: bytes) -> bytes:
    """A compressed change, decompressed: lz4 as Spark writes it by default, zstd, snappy."""
    try:
        if content.startswith(_LZ4):
            return _unpack_lz4(content)
        if content.startswith(_ZSTD):
            return bytes(cramjam.zstd.decompress(content))
        if content.startswith(_SNAPPY):
            return _unpack_snappy(content)
    except (cramjam.DecompressionError, struct.error) as error:
        raise ValueError(f"it does not decompress ({error})") from None
    raise ValueError("its compression is none of lz4, zstd and snappy")


def _unpack_lz4(content: bytes) -> bytes:
    """The blocks of lz4-java's stream: magic, token, packed and unpacked length, checksum."""
    unpacked = b""
    position = 0
    while content[position : position + len(_LZ4)] == _LZ4:
        token, packed, length, _ = struct.unpack_from("<BiiI", content, position + len(_LZ4))
        start = position + len(_LZ4) + 13
        block = content[start : start + packed]
        if len(block) < packed:
            raise ValueError("it is cut off")
        if token & 0xF0 == 0x10:
            unpacked += block
        elif length:
            unpacked += bytes(cramjam.lz4.decompress_block(block, output_len=length))
        position = start + packed
    return unpacked


def _unpack_snappy(content: bytes) -> bytes:
    """The blocks of snappy-java's stream: a header of 16 bytes, then length and block."""
    unpacked = b""
    position = 16
    while position + 4 <= len(content):
        (length,) = struct.unpack_from(">i", content, position)
        block = content[position + 4 : position + 4 + length]
        unpacked += bytes(cramjam.snappy.decompress_raw(block))
        position += 4 + length
    return unpacked
