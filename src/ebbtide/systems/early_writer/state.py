"""Encode the open visits of a bucket as bytes for the state store, and decode them.

Layout, little-endian: `EV`, a byte for the version, an empty byte, the number of visits (4 bytes);
then three columns of 8 bytes a visit: ids in ascending order, pages, timers.
"""

from __future__ import annotations

import struct

import numpy as np

from ebbtide.errors import CheckpointError
from ebbtide.systems.early_writer.fold import OpenVisits

_HEAD = "<2sBxI"
"""No `struct.Struct`: that cannot be sent to the workers of a cluster."""
_MAGIC, _VERSION = b"EV", 1
_LONG = np.dtype("<i8")


def encode(visits: OpenVisits) -> bytes:
    """Visits as bytes.

    >>> encode(OpenVisits.of({7: (3, 600_000)})).hex(" ", 8)
    '4556010001000000 0700000000000000 0300000000000000 c027090000000000'
    """
    columns = (visits.ids, visits.pages, visits.timers)
    return struct.pack(_HEAD, _MAGIC, _VERSION, len(visits)) + b"".join(
        column.astype(_LONG).tobytes() for column in columns
    )


def decode(state: bytes) -> OpenVisits:
    """The visits in these bytes; raises if they are not ours, or not complete.

    >>> decode(encode(OpenVisits.of({7: (3, 600_000)}))).by_id()
    {7: (3, 600000)}
    """
    size = struct.calcsize(_HEAD)
    magic, version, count = (
        struct.unpack(_HEAD, state[:size]) if len(state) >= size else (b"", 0, 0)
    )
    if (magic, version) != (_MAGIC, _VERSION) or len(state) != size + 3 * count * _LONG.itemsize:
        raise CheckpointError(
            f"A state of {len(state)} bytes that begins with {state[:size].hex()!r} does not hold "
            f"visits of version {_VERSION}.",
            "Another program wrote it: run that program, or start with a new checkpoint.",
        )
    ids, pages, timers = np.frombuffer(state, _LONG, offset=size).reshape(3, count)
    return OpenVisits(ids.astype(np.int64), pages.astype(np.int64), timers.astype(np.int64))
