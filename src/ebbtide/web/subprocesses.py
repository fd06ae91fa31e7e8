"""Run a command as a child process, follow its output line by line, and interrupt it."""

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
from typing import Any

import psutil

from ebbtide.formatting import format_bytes

LARGEST = 16 * 1024**2
"""A longer line is not for the web UI."""
_TAIL = 4_000
_PATIENCE_SECONDS = 30
"""How long a command may take to end in order; Spark needs a moment."""
_LAST_SECONDS = 5
MARK = "EBBTIDE_FAMILY"
"""The environment variable that names the tree to which a process belongs."""
_RUN = "import runpy, sys; sys.path.pop(0); runpy.run_module({!r}, {{}}, '__main__', True)"


def run_module(name: str) -> tuple[str, ...]:
    """The words that run a module, but none that happens to be in the current folder.

    >>> run_module("ebbtide")[1]
    '-c'
    """
    return sys.executable, "-c", _RUN.format(name)


class ProcessTree:
    """A process and all that it starts, recognized by a mark in their environment.

    Not by the process group: the JVM has its own, so that a signal for Python does not end it.
    """

    def __init__(self, mark: str | None = None) -> None:
        self._mark = mark or secrets.token_hex(8)

    def start(self, command: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
        """Start the first process, in its own session: Ctrl-C is for the web UI alone."""
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", MARK: self._mark},
            start_new_session=True,
            **streams,
        )

    def end(self, patience_seconds: float) -> None:
        """End all of them but ourselves; those that do not react are killed."""
        for end in (psutil.Process.terminate, psutil.Process.kill):
            running = [one for one in psutil.process_iter() if self._has(one)]
            for one in running:
                with suppress(psutil.Error):
                    end(one)
            psutil.wait_procs(running, patience_seconds)

    def _has(self, one: psutil.Process) -> bool:
        try:
            ours = one.pid != os.getpid() and one.environ().get(MARK) == self._mark
            return ours and one.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False


class Child:
    """A command that runs as a child process and reports on stdout, line by line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has ended
        self._ended = threading.Event()
        self._tree = ProcessTree()
        self._process = self._tree.start(command, stdin=subprocess.DEVNULL, stderr=self._stderr)
        threading.Thread(target=self._outlive, name="outlive", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def follow(self, take: Callable[[str], None]) -> tuple[int, str]:
        """Pass on each line; return the exit code and the end of stderr."""
        assert self._process.stdout is not None
        size = 0
        try:
            # with a limit: a line may be as long as a hostile value
            while part := self._process.stdout.readline(LARGEST):
                size += len(part)
                if len(part) == LARGEST and not part.endswith(b"\n"):
                    continue  # the rest of the line follows
                if size > len(part):
                    take(f"A line of {format_bytes(size)} is too long for the web UI: not shown.")
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
        """End what outlives it, such as a JVM that it had just begun to start."""
        self._process.wait()
        if not self._ended.wait(_LAST_SECONDS):
            self._tree.end(_LAST_SECONDS)
