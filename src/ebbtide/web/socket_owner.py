"""Find the user of this machine who opened a connection (on Linux only)."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

Address = tuple[str, int]

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def find_user(near: Address, far: Address) -> int | None:
    """The user id that opened a connection from `near` to `far`; None if it is unknown."""
    for table in _TABLES:
        try:
            wanted = [_format_address(near), _format_address(far)]
            lines = table.read_text("ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            fields = line.split()
            if fields[1:3] == wanted:
                return int(fields[7])
    return None


def _format_address(address: Address) -> str:
    """As the kernel writes it: words of four bytes in its byte order, then the port."""
    host, port = address
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
