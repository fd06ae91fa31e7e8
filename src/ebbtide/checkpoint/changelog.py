"""Read from a changelog file of state format 2 which files its ancestors are."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import cramjam

_LZ4 = b"LZ4Block"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SNAPPY = b"\x82SNAPPY\x00"


def read_lineage(content: bytes) -> dict[int, str]:
    """The unique ids by version that a change of format version 2 begins with."""
    try:
        version, lineage = _first_texts(_blocks(content))
    except (cramjam.DecompressionError, struct.error) as error:
        raise ValueError(f"it does not decompress ({error})") from None
    if version not in ("v3", "v4"):
        raise ValueError(f"it begins with {version[:10]!r}, not v3 or v4")
    return {int(item["version"]): item["checkpointUniqueId"] for item in json.loads(lineage)}


def _first_texts(blocks: Iterator[bytes]) -> tuple[str, str]:
    """The first two texts, as Java's writeUTF writes them; no more is unpacked than they take."""
    content = b""
    for block in blocks:
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


def _blocks(content: bytes) -> Iterator[bytes]:
    """A compressed change, decompressed block by block: lz4 by default, zstd, snappy."""
    if content.startswith(_LZ4):
        return _unpack_lz4(content)
    if content.startswith(_ZSTD):
        return iter([bytes(cramjam.zstd.decompress(content))])
    if content.startswith(_SNAPPY):
        return _unpack_snappy(content)
    raise ValueError("it is empty, or its compression is none of lz4, zstd and snappy")


def _unpack_lz4(content: bytes) -> Iterator[bytes]:
    """The blocks of lz4-java's stream: magic, token, packed and unpacked length, checksum."""
    position = 0
    while content[position : position + len(_LZ4)] == _LZ4:
        token, packed, length, _ = struct.unpack_from("<BiiI", content, position + len(_LZ4))
        start = position + len(_LZ4) + 13
        block = content[start : start + packed]
        if len(block) < packed:
            raise ValueError("it is cut off")
        if token & 0xF0 == 0x10:
            yield block
        elif length:
            yield bytes(cramjam.lz4.decompress_block(block, output_len=length))
        position = start + packed


def _unpack_snappy(content: bytes) -> Iterator[bytes]:
    """The blocks of snappy-java's stream: a header of 16 bytes, then length and block."""
    position = 16
    while position + 4 <= len(content):
        (length,) = struct.unpack_from(">i", content, position)
        yield bytes(cramjam.snappy.decompress_raw(content[position + 4 : position + 4 + length]))
        position += 4 + length
