"""The keeper of a warm JVM: it starts the JVM, lends it to one command at a time, and ends it.

The JVM and its settings have no other owner. The keeper is one thread that waits for all that can
happen, so it can end the JVM at any moment, also while that starts: when a command hangs up without
having said that it ended well, when nobody has asked for a while, when it is told to, and when its
socket is gone, because somebody deleted the home.

It is run by its path and imports only the standard library, so that it starts in milliseconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SOCKET = "socket"
_SOCKET = Path(SOCKET)
STATUS, STOP, USE, DONE = "status", "stop", "use", "done"
"""What a keeper is asked, and how a command says that it ended well."""
_LOCK = "lock"
_START = "start"
_GATEWAY = "gateway"
_GATEWAY_MODE = {"SPARK_CONNECT_MODE": "0"}
_LOOK_SECONDS = 1.0
_START_LOOK_SECONDS = 0.02
_END_SECONDS = 5.0
_LOCK_SECONDS = 3 * _END_SECONDS
_QUESTION_SECONDS = 1.0
_LONGEST_QUESTION = 1 << 12


class JvmProcess:
    """A JVM with pyspark's gateway and no Spark context, from the first moment of its start."""

    def __init__(self, command: list[str], properties: str, folder: str) -> None:
        self._folder = Path(_START).absolute()
        self._folder.mkdir()
        gateway = str(self._folder / _GATEWAY)
        path, settings = self._hold(properties.encode())
        try:
            self.process = subprocess.Popen(
                [command[0], "--properties-file", path, *command[1:]],
                stdin=subprocess.PIPE,  # when it is closed, the JVM ends
                cwd=folder,
                env={**os.environ, **_GATEWAY_MODE, "_PYSPARK_DRIVER_CONN_INFO_PATH": gateway},
                pass_fds=[settings],
                start_new_session=True,
            )
        except OSError:
            self._forget()
            raise
        finally:
            os.close(settings)

    def _hold(self, properties: bytes) -> tuple[str, int]:
        """Spark's settings, with passwords, in memory if the system can; else in a private file."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("settings")
            path = f"/proc/self/fd/{descriptor}"
        else:
            path = str(self._folder / "settings")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(properties)
        return path, descriptor

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended by itself."""
        return self.process.poll() is None

    def read_gateway(self) -> dict[str, Any]:
        """The port and the secret of its gateway, once; nothing before that listens."""
        try:
            told = (self._folder / _GATEWAY).read_bytes()
        except OSError:
            return {}
        port, length = struct.unpack_from(">ii", told)
        self._forget()
        return {"port": port, "secret": told[8 : 8 + length].decode()}

    def _forget(self) -> None:
        """Delete what was there only for its start."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def end(self) -> None:
        """Ask it to end, which deletes its temporary files, then kill it."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        for how in (signal.SIGTERM, signal.SIGKILL):
            with suppress(OSError):
                os.killpg(self.process.pid, how)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS)
        self._forget()


class Keeper:
    """A JVM and the command that uses it, at first the one that has started the keeper."""

    def __init__(self, starter: socket.socket, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self._gateway: dict[str, Any] = {}
        self._borrower: socket.socket | None = starter
        self._commands = 1
        self._idle_since = time.monotonic()
        self._is_told_to_end = False
        self._waiting: list[socket.socket] = []
        """Who has made it end hears from the end of the connection that it has."""

    def stop(self, *_: object) -> None:
        """End within a second; a signal calls this."""
        self._is_told_to_end = True

    def serve(self, listener: socket.socket, folder: str) -> None:
        """Start the JVM in a folder, lend it until nobody needs it any more, and end it."""
        self._jvm = JvmProcess(self._spec["command"], self._spec["properties"], folder)
        try:
            while self._is_needed():
                self._attend(listener)
        finally:
            with suppress(OSError):
                _SOCKET.unlink()
            self._jvm.end()

    def _attend(self, listener: socket.socket) -> None:
        users = [self._borrower] if self._borrower else []
        seconds = _LOOK_SECONDS if self._gateway else _START_LOOK_SECONDS
        ready, _, _ = select.select([listener, *users], [], [], seconds)
        # the borrower first: the next command may come as soon as it has said that it is done
        if self._borrower in ready:
            self._hear_borrower()
        if not self._gateway:
            self._offer()
        if listener in ready:
            self._answer(listener.accept()[0])

    def _is_needed(self) -> bool:
        if self._is_told_to_end or not self._jvm.is_alive:
            return False
        idle = time.monotonic() - self._idle_since
        return self._borrower is not None or (idle < self._spec["seconds"] and _SOCKET.exists())

    def _hear_borrower(self) -> None:
        assert self._borrower is not None
        try:
            said = self._borrower.recv(_LONGEST_QUESTION)
        except OSError:
            said = b""
        # a signal may have come before
        self._is_told_to_end |= json.loads(said or b"{}") != {"do": DONE}
        if self._is_told_to_end:
            self._waiting.append(self._borrower)
        else:
            self._borrower.close()
        self._borrower = None
        self._idle_since = time.monotonic()

    def _offer(self) -> None:
        """Tell the command that has started the keeper as soon as the JVM listens."""
        self._gateway = self._jvm.read_gateway()
        if self._gateway and self._borrower:
            _reply(self._borrower, self._gateway)

    def _answer(self, asker: socket.socket) -> None:
        asker.settimeout(_QUESTION_SECONDS)
        try:
            asked = json.loads(asker.recv(_LONGEST_QUESTION) or b"{}")
        except (OSError, ValueError):
            asked = {}
        match asked.get("do"):
            case "status":
                _reply(asker, self._describe())
            case "stop" | "use" if self._borrower:
                _reply(asker, {"busy": True})
            case "use" if asked.get("key") == self._spec["key"] and self._can_lend():
                self._borrower, self._commands = asker, self._commands + 1
                _reply(asker, self._gateway)
                return
            case "stop" | "use" as word:  # whoever wants another JVM gets room for it
                if word == STOP:
                    _reply(asker, self._describe())
                self._is_told_to_end = True
                self._waiting.append(asker)
                return
        asker.close()

    def _can_lend(self) -> bool:
        """Whether the JVM stays: what ends it may have come a moment before the question."""
        return not self._is_told_to_end and self._jvm.is_alive

    def _describe(self) -> dict[str, Any]:
        idle = 0 if self._borrower else time.monotonic() - self._idle_since
        return {
            "pid": self._jvm.process.pid,
            "app": self._spec["app"],
            "busy": self._borrower is not None,
            "commands": self._commands,
            "ends_in_seconds": max(0, round(self._spec["seconds"] - idle)),
        }


def _reply(asker: socket.socket, answer: Mapping[str, Any]) -> None:
    with suppress(OSError):
        asker.sendall(json.dumps(answer).encode() + b"\n")


def _take_lock() -> int | None:
    """Be the only keeper of a home; None if there is one. One that ends is waited for."""
    descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            # the first thing that goes at its end is the socket
            if _SOCKET.exists() or time.monotonic() > deadline:
                os.close(descriptor)
                return None
        time.sleep(_START_LOOK_SECONDS)


def main() -> None:
    """Read from the starting command what to start, and keep it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which hangs up then
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    starter = socket.socket(fileno=os.dup(0))
    with starter.makefile("rb") as lines:
        told = lines.readline()
    if not told.endswith(b"\n"):
        return  # the command has ended
    spec = json.loads(told)
    folder = str(Path.cwd())
    os.chdir(spec["folder"])  # the path of a socket must be short
    if (lock := _take_lock()) is None:
        _reply(starter, {"busy": True})
        return
    _SOCKET.unlink(missing_ok=True)  # of a keeper that was killed
    shutil.rmtree(_START, ignore_errors=True)
    keeper = Keeper(starter, spec)
    signal.signal(signal.SIGTERM, keeper.stop)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(SOCKET)
        _SOCKET.chmod(0o600)
        listener.listen()
        keeper.serve(listener, folder)
    os.close(lock)


if __name__ == "__main__":
    main()
