"""Identify processes and users across restarts."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_SAME_SECONDS = 1


def find_process(pid: int, started: float) -> psutil.Process | None:
    """Find a process by id and start time; None if it ended or its id was reused.

    >>> find_process(1, started=0) is None
    True
    """
    import psutil

    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < _SAME_SECONDS
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.NoSuchProcess, ValueError):  # a note of others may have a number below 0
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
    import psutil

    return psutil.Process(pid).create_time()


@cache
def machine() -> str | None:
    """Name this boot of this machine and its namespaces; None if that cannot be told.

    Where two processes see the same name, a process id and a start time mean the same process.
    Host names and ids do not say so: the containers of a deployment may share both.
    """
    with suppress(OSError):
        if str(Path("/proc/self").readlink()) == str(os.getpid()):  # else it is the /proc of others
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
            return " ".join((boot, str(Path("/proc/self/ns/pid").readlink()), _time_namespace()))
    return None


def _time_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/time").readlink())
    except OSError:  # before Linux 5.6 there is only one
        return "time"


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks since boot; no clock is set back there.

    >>> start_ticks(os.getpid()) == start_ticks(os.getpid())
    True
    """
    found = _read_stat(pid)
    return found[1] if found else None


def has_ended(pid: int, ticks: int) -> bool | None:
    """Tell whether a process of this machine is gone; None if it is hidden from us.

    >>> has_ended(os.getpid(), start_ticks(os.getpid())), has_ended(os.getpid(), 1)
    (False, True)
    """
    if (found := _read_stat(pid)) is not None:
        state, started = found
        return state in "ZX" or started != ticks
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return None


def _read_stat(pid: int) -> tuple[str, int] | None:
    """The state and the start of a process; None if it is not there or not shown."""
    with suppress(OSError, ValueError, IndexError):
        # the name before it may hold anything, brackets included
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[19])
    return None
