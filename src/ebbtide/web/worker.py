"""Ask a process with a warm Spark session about state, and end it when it has been idle.

Questions and answers are lines of JSON. When the web UI ends, however that happens, the process's
stdin is closed, and the process ends too.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebbtide import errors
from ebbtide.config import Settings, make_folder
from ebbtide.errors import EbbtideError
from ebbtide.web.subprocesses import ProcessTree, run_module

IDLE_SECONDS = 600.0
_LONGEST_SECONDS = 600.0
"""A state that takes longer to read is not for the web UI."""
_END_SECONDS = 20.0


class Worker:
    """The process: started by the first question, ended when it has been idle for a while."""

    def __init__(
        self,
        settings: Settings,
        command: Sequence[str] | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._settings = settings
        self._command = command or (
            *run_module("ebbtide.web.worker_process"),
            *(str(settings.home.absolute()), settings.timezone),
        )
        self._idle = idle_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None
        self._closed = False
        self._family = ProcessTree()

    @property
    def warm(self) -> bool:
        """Whether it is running."""
        return self.pid is not None

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def log(self) -> Path:
        """The file with its stderr."""
        return self._settings.logs / "page-state.err"

    def ask(self, question: Mapping[str, Any]) -> Any:
        """The answer to a question; questions are answered one at a time."""
        with self._lock:
            self._rest(None)
            try:
                answer = self._ask(question)
            finally:
                self._rest(self._idle)
        return _unwrap(answer)

    def close(self) -> None:
        """End the process, even while it works."""
        self._closed = True
        if (process := self._process) is not None:
            self._end(process)
        with self._lock:
            self._rest(None)
            self._process = None

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        line = json.dumps(question).encode() + b"\n"
        for first_time in (True, False):
            process = self._running()
            try:
                return self._exchange(process, line)
            except (OSError, ValueError):
                # it has died: since the last question, or over this one
                self._end(process)
                self._process = None
                if self._closed or not first_time:
                    break
        raise EbbtideError("Spark ended while it read the state.", f"See {self.log}")

    def _exchange(self, process: subprocess.Popen[bytes], line: bytes) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], _LONGEST_SECONDS)
        if not ready:
            self._end(process)
            self._process = None
            raise EbbtideError(
                f"Reading the state took longer than {_LONGEST_SECONDS / 60:.0f} minutes.",
                "Ask at the command line: ebbtide state show",
            )
        return dict(json.loads(process.stdout.readline()))

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise EbbtideError("The web UI is shutting down.", "Type: ebbtide ui")
        if self._process is None or self._process.poll() is not None:
            make_folder(self._settings.logs, "--home")
            with self.log.open("wb") as log:
                # its own session: Ctrl-C in the terminal is for the web UI alone
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, **self._family.environment},
                    start_new_session=True,
                )
        return self._process

    def _rest(self, seconds: float | None) -> None:
        """End the process after some time without questions; None cancels that."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and not self._closed:
            self._timer = threading.Timer(seconds, self._end_idle)
            self._timer.daemon = True
            self._timer.start()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End the process and its children, by force if need be."""
        with suppress(OSError, ValueError):
            assert process.stdin is not None
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        self._family.end(_END_SECONDS)  # usually none is left
        process.wait()
        if process.stdout is not None:
            with suppress(OSError):
                process.stdout.close()

    def _end_idle(self) -> None:
        if self._lock.acquire(blocking=False):  # else a question is being answered
            try:
                if self._process is not None:
                    self._end(self._process)
                    self._process = None
            finally:
                self._lock.release()


def _unwrap(answer: Mapping[str, Any]) -> Any:
    if "answer" in answer:
        return answer["answer"]
    if "bug" in answer:
        raise RuntimeError(f"a bug while the state was read:\n{answer['bug']}")
    kind = getattr(errors, answer["kind"], EbbtideError)
    raise kind(answer["problem"], answer["next_step"])
