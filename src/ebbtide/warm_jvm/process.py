"""The process that keeps a JVM warm: it lends it to one command at a time, and ends when idle.

It reads what to start from stdin, so that secrets are in no list of processes,
and listens on a socket that only its own user can open. It ends, its JVM with it, when nobody has
asked for a while, when its socket is gone (somebody deleted the home), when it is told to, and when
a command hangs up without having said that it ended well.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NoReturn

import psutil

from ebbtide.config import Settings
from ebbtide.errors import EbbtideError
from ebbtide.warm_jvm.borrowing import (
    DONE,
    SOCKET,
    socket_address,
    worker_folder,
)

_LOOK_SECONDS = 1.0
_END_SECONDS = 5.0
_KILLS = 600
"""With a tenth of a second between them: a start that is interrupted may take a while to fail."""
_LONGEST_LINE = 1 << 16


class _WarmJvm:
    """A JVM and who uses it."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self._settings = Settings(home=Path(spec["home"]), timezone=spec["timezone"])
        self._folder = worker_folder(self._settings)
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._busy = False
        self._commands = 0
        self._idle_since = time.monotonic()
        self._spark: Any = None

    def serve(self) -> NoReturn:
        """Answer until nobody needs it any more."""
        umask = os.umask(0o177)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_address(self._folder) as address:
            listener.bind(address)
        os.umask(umask)  # that of the command, for what Spark writes
        own = (self._folder / SOCKET).stat().st_ino
        listener.listen()
        listener.settimeout(_LOOK_SECONDS)
        while self._busy or self._is_wanted(own):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()
        self._end()

    def _is_wanted(self, own: int) -> bool:
        try:
            there = (self._folder / SOCKET).stat().st_ino == own
        except OSError:
            return False
        return there and time.monotonic() - self._idle_since < self._spec["seconds"]

    def _talk(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        with connection, connection.makefile("rb") as lines:
            if not _is_same_user(connection):
                return
            with suppress(OSError, ValueError):
                asked = json.loads(lines.readline(_LONGEST_LINE) or b"{}")
                match asked.get("do"):
                    case "status":
                        _reply(connection, self._describe())
                    case "stop" if not self._take():
                        _reply(connection, {"busy": True})
                    case "stop":
                        with suppress(OSError):
                            _reply(connection, self._describe())
                        self._end()
                    case "use":
                        self._lend(connection, lines, asked.get("key"))

    def _describe(self) -> dict[str, Any]:
        idle = time.monotonic() - self._idle_since
        return {
            "pid": os.getpid(),
            "app": self._spec["app"],
            "busy": self._busy,
            "commands": self._commands,
            "ends_in_seconds": max(0, round(self._spec["seconds"] - idle)),
        }

    def _take(self) -> bool:
        """Whether nobody else uses it: from now on, the caller does."""
        with self._lock:
            taken, self._busy = not self._busy, True
            return taken

    def _lend(self, connection: socket.socket, lines: Any, key: str) -> None:
        if not self._take():
            _reply(connection, {"busy": True})
            return
        if key != self._spec["key"] or not self._is_well():
            self._end()  # another one takes its place
        hung_up = threading.Thread(target=self._await_done, args=(connection, lines), daemon=True)
        hung_up.start()
        try:
            place = self._start()
        except EbbtideError as error:
            problem = {"problem": error.problem, "next_step": error.next_step}
            with suppress(OSError):
                _reply(connection, {**problem, "exit_code": error.exit_code})
            self._end()
        except Exception:
            self._end()  # the command starts a JVM of its own, and sees why that fails
        _reply(connection, place)
        hung_up.join()

    def _await_done(self, connection: socket.socket, lines: Any) -> None:
        """Wait until a command has ended well; else end with it, even while Spark starts."""
        try:
            said = json.loads(lines.readline(_LONGEST_LINE) or b"{}")
            ended_well = said["do"] == DONE and self._is_well()
            if ended_well:
                self._clean_up()
        except Exception:
            ended_well = False
        if not ended_well:
            self._end()
        self._idle_since = time.monotonic()
        self._busy = False
        with suppress(OSError):
            _reply(connection, {"done": True})

    def _start(self) -> dict[str, Any]:
        from ebbtide.runtime import session as sessions

        if self._spark is None:
            names = ("master", "conf", "wanted", "locations")
            options = {name: self._spec[name] for name in names}
            with self._starting:
                self._spark = sessions.build_session(self._spec["app"], self._settings, **options)
        self._commands += 1
        parameters = self._spark.sparkContext._gateway.gateway_parameters
        return {
            "port": parameters.port,
            "secret": parameters.auth_token,
            "command": f"{os.getpid()}-{self._commands}",
        }

    def _is_well(self) -> bool:
        try:
            return self._spark is None or not self._spark.sparkContext._jsc.sc().isStopped()
        except Exception:
            return False

    def _clean_up(self) -> None:
        """Forget what the last command has cached: its tables may be others when the next comes."""
        jvm = self._spark._jvm
        self._spark.catalog.clearCache()
        with suppress(Exception):  # not every Spark has Delta
            jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if "pyspark.daemon" in child.cmdline():
                    child.kill()

    def _end(self) -> NoReturn:
        """End as a command does that is killed: nothing of it may go on.

        Steps: **1** let no other command find this worker; **2** ask the JVM to end, which removes
        its temporary files; **3** kill what is left; **4** if Spark was just starting, wait until
        that has failed, which removes the file with its settings.
        """
        # 1
        with suppress(OSError):
            (self._folder / SOCKET).unlink()
        # 2
        _signal_children("terminate", _END_SECONDS)
        # 3, 4
        for _ in range(_KILLS):
            _signal_children("kill", _END_SECONDS)
            if self._starting.acquire(timeout=0.1):
                break
        os._exit(0)


def _signal_children(how: Literal["terminate", "kill"], seconds: float) -> None:
    children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.Error):
            getattr(child, how)()
    # not by waiting for them, which would keep from pyspark that the JVM it is starting has failed
    deadline = time.monotonic() + seconds
    while any(map(_is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _reply(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def _is_same_user(connection: socket.socket) -> bool:
    """The folder is closed to others already; where the system says who asks, that counts."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def main() -> None:
    """Read what to start, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _WarmJvm(json.loads(sys.stdin.buffer.read())).serve()


if __name__ == "__main__":
    main()
