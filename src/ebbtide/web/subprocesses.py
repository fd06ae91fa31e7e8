"""Run a command as a child process, follow its lines, and interrupt it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from ebbtide.formatting import say_bytes

LARGEST = 16 * 1024**2
"""A longer line is not for the web UI."""
_TAIL = 4_000
_PATIENCE_SECONDS = 30
"""How long a command may take to end in order; Spark needs a moment."""
_LAST_SECONDS = 5
MARK = "EBBTIDE_FAMILY"
"""The variable that tells to which tree a process belongs."""


_RUN = "import runpy, sys; sys.path.pop(0); runpy.run_module({!r}, {{}}, '__main__', True)"


def run_module(name: str) -> tuple[str, ...]:
    """The words that run a module, but not what happens to lie in the current folder.

    >>> run_module("ebbtide")[1]
    '-c'
    """
    return sys.executable, "-c", _RUN.format(name)


class ProcessTree:
    """A process and all that it starts, told by a mark in their environment.

    Not by the group: the JVM has one of its own, so that a signal for Python does not end it.
    """

    def __init__(self, mark: str | None = None) -> None:
        self._mark = mark or secrets.token_hex(8)

    @property
    def environment(self) -> dict[str, str]:
        """What its first member is started with."""
        return {MARK: self._mark}

    def members(self) -> list[psutil.Process]:
        """Those that run, without ourselves."""
        return [one for one in psutil.process_iter() if self._has(one) and one.pid != os.getpid()]

    def end(self, patience_seconds: float) -> None:
        """End them; those that do not react are killed."""
        for end in (psutil.Process.terminate, psutil.Process.kill):
            there = self.members()
            for one in there:
                with suppress(psutil.Error):
                    end(one)
            psutil.wait_procs(there, patience_seconds)

    def _has(self, one: psutil.Process) -> bool:
        try:
            return one.environ().get(MARK) == self._mark and one.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False


class Child:
    """A command in a session of its own: what it tells us is on stdout, line by line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has ended
        self._ended = threading.Event()
        self._tree = ProcessTree()
        # a group of its own: Ctrl-C at the web UI's terminal is for the web UI, which then asks us
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._tree.environment},
            start_new_session=True,
        )
        threading.Thread(target=self._outlive, name="outlive", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def follow(self, take: Callable[[str], None]) -> tuple[int, str]:
        """Pass on each line; at the end, the exit code and the last of what stderr got."""
        assert self._process.stdout is not None
        size = 0
        try:
            # not by readline alone: a line may be as long as a hostile value
            while part := self._process.stdout.readline(LARGEST):
                size += len(part)
                if len(part) == LARGEST and not part.endswith(b"\n"):
                    continue  # its rest follows
                if size > len(part):
                    take(f"A line of {say_bytes(size)} is too long for the web UI: not shown.")
                elif text := part.decode("utf-8", "replace").strip():
                    take(text)
                size = 0
            code = self._process.wait()
            self._stderr.seek(-min(_TAIL, self._stderr.seek(0, os.SEEK_END)), os.SEEK_END)
            return code, self._stderr.read().decode("utf-8", "replace")
        finally:
            self._ended.set()
            self._process.stdout.close()
            self._stderr.close()

    def interrupt(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """End it in order, as Ctrl-C does; kill it if it does not react."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._tree.end(_LAST_SECONDS)

    def _outlive(self) -> None:
        """See that nothing outlives it: a JVM that it had just begun to start might."""
        self._process.wait()
        if not self._ended.wait(_LAST_SECONDS):
            self._tree.end(_LAST_SECONDS)
