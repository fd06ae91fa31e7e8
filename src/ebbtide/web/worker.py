"""Ask a process with a warm Spark session about state.

Questions and answers are lines of JSON. The process ends when it has been idle for a while. When
the web UI ends, however that happens, the process's stdin is closed, and the process ends too.
"""

from __future__ import annotations

import json
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
    """The process: the first question starts it, and it ends when it has been idle for a while."""

    def __init__(self, settings: Settings, command: Sequence[str] | None = None) -> None:
        self._settings = settings
        self._command = command or (
            *run_module("ebbtide.web.worker_process"),
            *(str(settings.home.absolute()), settings.timezone, str(IDLE_SECONDS)),
        )
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._tree = ProcessTree()

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
            answer = self._ask(json.dumps(question).encode() + b"\n")
        if "answer" in answer:
            return answer["answer"]
        if "bug" in answer:
            raise RuntimeError(f"a bug while the state was read:\n{answer['bug']}")
        kind = getattr(errors, answer["kind"], EbbtideError)
        raise kind(answer["problem"], answer["next_step"])

    def close(self) -> None:
        """End the process, even while it works."""
        self._closed = True
        self._end()
        with self._lock:
            self._end()

    def _ask(self, line: bytes) -> dict[str, Any]:
        for _ in range(2):  # the process may have died since the last question, or over this one
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(OSError, ValueError):
                process.stdin.write(line)
                process.stdin.flush()
                if not select.select([process.stdout], [], [], _LONGEST_SECONDS)[0]:
                    self._end()
                    raise EbbtideError(
                        f"Reading the state took longer than {_LONGEST_SECONDS / 60:.0f} minutes.",
                        "Ask at the command line: ebbtide state show",
                    )
                return dict(json.loads(process.stdout.readline()))
            self._end()
            if self._closed:
                break
        raise EbbtideError("Spark ended while it read the state.", f"See {self.log}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise EbbtideError("The web UI is shutting down.", "Type: ebbtide ui")
        if self._process is None or self._process.poll() is not None:
            self._end()  # what an idle one has left
            make_folder(self._settings.logs, "--home")
            with self.log.open("wb") as log:
                self._process = self._tree.start(self._command, stdin=subprocess.PIPE, stderr=log)
        return self._process

    def _end(self) -> None:
        """End the process and its children, by force if need be."""
        if (process := self._process) is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError, ValueError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        self._tree.end(_END_SECONDS)  # usually none is left
        process.wait()
        with suppress(OSError):
            process.stdout.close()
        self._process = None
