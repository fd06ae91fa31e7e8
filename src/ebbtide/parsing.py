"""Read what others wrote: files, JSON, numbers and paths, each within limits."""

from __future__ import annotations

import errno
import json
import os
import stat
from itertools import chain
from math import isfinite
from typing import Any

from ebbtide.errors import CheckpointError

MAX_BYTES = 1 << 30
"""The largest file that is read at once: lists of files grow with a query."""
MAX_LOG_BYTES = 64 << 20
"""The largest entry of a log, and the largest metadata of a snapshot."""
_MAX_DEPTH = 64
_NESTED = frozenset((dict, list))
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a writer must not block


def parse_json(text: str | bytes) -> Any:
    """A JSON value; a ValueError if it is none, nested too deep, or no Unicode.

    >>> parse_json('{"visits": {"0": 5}}')
    {'visits': {'0': 5}}
    >>> parse_json("[" * 5000)
    Traceback (most recent call last):
    ValueError: nested too deep
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    text = text if isinstance(text, str) else text.decode("utf-8", "replace")
    if text.count("[") + text.count("{") > _MAX_DEPTH:
        _require_shallow(value)
    if "\\u" in text:  # half of a surrogate pair can be neither printed nor hashed
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _require_shallow(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        # a level may have a million values: what can be said of all at once is not asked of each
        inner = level
        if dict in map(type, level):
            inner = [one.values() if type(one) is dict else one for one in level]
        types = set(map(type, chain.from_iterable(inner)))
        if _NESTED.isdisjoint(types):
            return
        level = list(chain.from_iterable(inner))
        if not types <= _NESTED:
            level = [one for one in level if type(one) in _NESTED]
    raise ValueError("nested too deep")


def parse_id(text: str) -> int | None:
    """A number as Spark writes it in file names and as Kafka's partitions; None if it is none.

    >>> parse_id("17"), parse_id("007"), parse_id("²"), parse_id("9" * 30)
    (17, None, None, None)
    """
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        return None
    return int(text) if text[0] != "0" or text == "0" else None


def require_count(number: int) -> int:
    """A number that is not negative."""
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def require_finite(number: float) -> float:
    """A number that is neither infinite nor none at all."""
    if not isfinite(number):
        raise ValueError(f"{number} is not a number")
    return number


def require_name(name: str) -> str:
    """The name of a file or folder; a ValueError if it is a path.

    >>> require_name("20260105T100000Z-rewind-to-5")
    '20260105T100000Z-rewind-to-5'
    >>> require_name("..")
    Traceback (most recent call last):
    ValueError: '..' is not a name
    """
    if "/" in name or name in ("", ".", "..") or not name.isprintable():
        raise ValueError(f"{name!r} is not a name")
    return name


def require_inside(path: str) -> str:
    """A path relative to a folder; a ValueError if it leads out of it.

    >>> require_inside("state/0/1/7.delta")
    'state/0/1/7.delta'
    >>> require_inside("state/../../other")
    Traceback (most recent call last):
    ValueError: 'state/../../other' leads out of its folder
    """
    if path.startswith("/") or "\0" in path or (".." in path and ".." in path.split("/")):
        raise ValueError(f"{path!r} leads out of its folder")
    return path


def is_inside(path: str, root: str) -> bool:
    """Whether a local path lies in a folder, all links resolved; it need not exist.

    >>> is_inside("/a/b/../c", "/a"), is_inside("/a/../c", "/a")
    (True, False)
    """
    real, real_root = os.path.realpath(path), os.path.realpath(root or "/")
    return real == real_root or real.startswith(real_root.rstrip("/") + "/")


def open_regular(path: str, root: str | None = None) -> int:
    """Open a local file to read; an OSError if it is a device, or a link out of `root`.

    A link that leads nowhere, or in a circle, counts as a missing file.
    """
    no_link = os.O_NOFOLLOW if root is not None else 0
    try:
        descriptor = os.open(path, _READ | no_link)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK):
            raise
        target = os.path.realpath(path)
        if root is None or os.path.islink(target):  # noqa: PTH114
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        if not is_inside(target, root):
            raise OSError(errno.EXDEV, f"it is a link that leads out of {root}") from None
        return open_regular(target, root)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"it is {'a folder' if stat.S_ISDIR(mode) else 'not a file'}")


def read_regular(path: str, root: str | None = None, limit: int = MAX_BYTES) -> bytes:
    """The content of a local file, as `open_regular` opens it; an OSError if it is too large."""
    descriptor = open_regular(path, root)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {limit:,} are read")
        content = os.read(descriptor, size)
        while len(content) < size and (more := os.read(descriptor, size - len(content))):
            content += more
        return content
    finally:
        os.close(descriptor)


def leads_out(path: str, root: str) -> CheckpointError:
    """A path that is refused because it leads out of its folder."""
    return CheckpointError(
        f"{path} leads out of {root}.", "Ebbtide follows no path and no link out of a folder."
    )
