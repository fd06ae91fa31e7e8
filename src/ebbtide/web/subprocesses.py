"""A command in, its lines as they come and its result at the end out; it can be interrupted."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from ebbtide.formatting import say_bytes

LARGEST = 16 * 1024**2
"""A result beyond this is not for a page."""
_LONGEST_LINE = 2_000
_PATIENCE_SECONDS = 30
"""How long a command may take to end in order; Spark needs a moment."""
_LAST_SECONDS = 5
MARK = "EBBTIDE_FAMILY"
"""The variable that tells to which family a process belongs."""


_RUN = "import runpy, sys; sys.path.pop(0); runpy.run_module({!r}, {{}}, '__main__', True)"


def run_module(name: str) -> tuple[str, ...]:
    """The words that run a module, but not what happens to lie in the current folder.

    >>> run_module("ebbtide")[1]
    '-c'
    """
    return sys.executable, "-c", _RUN.format(name)


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code and what it wrote as JSON, None if nothing."""

    code: int
    result: Any


class Family:
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
        """End them, those that do not heed by force."""
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
    """A command in a session of its own: lines on stderr, one JSON value on stdout."""

    def __init__(self, command: Sequence[str]) -> None:
        self._result = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has ended
        self._ended = threading.Event()
        self._family = Family()
        # a group of its own: Ctrl-C at the page's terminal is for the page, which then asks us
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._result,
            stderr=subprocess.PIPE,
            env={**_plain_environment(), "PYTHONUNBUFFERED": "1", **self._family.environment},
            start_new_session=True,
        )
        threading.Thread(target=self._outlive, name="outlive", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def follow(self, say: Callable[[str], None]) -> Outcome:
        """Pass on each line, and wait for the end."""
        assert self._process.stderr is not None
        try:
            # not by readline alone: a line may be as long as a hostile value
            while line := self._process.stderr.readline(_LONGEST_LINE):
                if text := line.decode("utf-8", "replace").strip():
                    say(text)
            code = self._process.wait()
            return Outcome(code, self._read(say))
        finally:
            self._ended.set()
            self._process.stderr.close()
            self._result.close()

    def interrupt(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """End it in order, as Ctrl-C does; if it does not heed, by force."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._family.end(_LAST_SECONDS)

    def _outlive(self) -> None:
        """See that nothing outlives it: a JVM that it had just begun to start might."""
        self._process.wait()
        if not self._ended.wait(_LAST_SECONDS):
            self._family.end(_LAST_SECONDS)

    def _read(self, say: Callable[[str], None]) -> Any:
        size = self._result.seek(0, os.SEEK_END)
        if size > LARGEST:  # what was done is done all the same
            say(f"The result takes {say_bytes(size)}, too much for a page: it is not shown.")
            return None
        self._result.seek(0)
        try:
            return json.loads(self._result.read()) if size else None
        except ValueError:
            return None  # it was cut off


def _plain_environment() -> dict[str, str]:
    """Ours, without what would put colours into the lines."""
    return {n: v for n, v in os.environ.items() if n not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
