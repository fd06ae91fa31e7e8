"""Identify processes and users across restarts."""

from __future__ import annotations

import getpass
import os
import socket

import psutil

_SAME_SECONDS = 1


def find_process(pid: int, started: float) -> psutil.Process | None:
    """Find a process by id and start time; None if it ended or its id was reused.

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
    """Return the current user and host as `ann@host`."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a bare user id
        name = f"uid-{os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def start_time(pid: int) -> float:
    """Return when a process started, in seconds since 1970."""
    return psutil.Process(pid).create_time()
