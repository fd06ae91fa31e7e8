"""A process id and its start time in, that very process out, if it is still there."""

from __future__ import annotations

import getpass
import os
import socket

import psutil

_SAME_SECONDS = 1


def find_process(pid: int, started: float) -> psutil.Process | None:
    """The process; None if it has ended, or if its id was given to another since.

    >>> find_process(1, started=0) is None
    True
    """
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < _SAME_SECONDS
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def whoami() -> str:
    """Who we are and where: `ann@host`; in a container, a user may have a number only."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid-{os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def start_time(pid: int) -> float:
    """When a process started, in seconds since 1970."""
    return psutil.Process(pid).create_time()
