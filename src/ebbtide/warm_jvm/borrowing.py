"""Borrow a JVM that stays warm between commands (docs/adr/030-warm-worker.md).

A worker process of the home keeps a JVM with a Spark context. A command that needs the very same
one runs in its own Python as always, and only attaches to that JVM. If it ends well, the JVM waits
for the next command; otherwise it ends with the command, as a JVM of its own would.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.config import Settings, make_folder
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_SECONDS = 600.0
SOCKET = "socket"
STATUS, STOP, USE, DONE = "status", "stop", "use", "done"
"""What a worker is asked, and how a command says that it ended well."""
_ANSWER_SECONDS = 10.0
_END_SECONDS = 30.0
_START_SECONDS = 180.0
_LONGEST_PATH = 100
"""Of a socket: longer ones do not fit into its address."""
_UNIMPORTANT = frozenset({"_", "SHLVL", "OLDPWD", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"})
"""Variables that change with each command and mean nothing to Spark."""


@dataclass(frozen=True)
class WarmUse:
    """That a command may borrow a warm JVM, and leave one."""

    say: Callable[[str], None]
    """Tells the user what is kept, or why nothing is."""
    seconds: float = KEPT_SECONDS


class WorkerLine:
    """A conversation with a worker, in lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def ask(self, question: Mapping[str, Any], seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """The answer; none of its entries if the worker has ended."""
        try:
            self._connection.settimeout(seconds)
            self._connection.sendall(json.dumps(question).encode() + b"\n")
            return dict(json.loads(self._lines.readline() or b"{}"))
        except (OSError, ValueError):
            return {}

    def await_end(self) -> None:
        """Wait until a worker that was told to end has ended, its JVM with it."""
        with suppress(OSError):
            self._connection.settimeout(_END_SECONDS)
            self._lines.read()

    def close(self) -> None:
        """Hang up; a worker that is in use ends then, unless it was told that all went well."""
        self._lines.close()
        self._connection.close()


def worker_folder(settings: Settings) -> Path:
    """The folder of a home's worker; only its user may look into it."""
    return settings.home / "worker"


def connect(folder: Path) -> WorkerLine | None:
    """A line to the worker of a folder; None if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(folder) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        return None
    return WorkerLine(connection)


@contextmanager
def socket_address(folder: Path) -> Iterator[str]:
    """The address of a folder's socket, also where its path is too long for one."""
    path = str(folder.absolute() / SOCKET)
    if len(os.fsencode(path)) < _LONGEST_PATH:
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def ask_worker(settings: Settings, question: str) -> dict[str, Any]:
    """What a home's worker answers to `STATUS` or `STOP`; nothing if there is none.

    After `STOP` it has ended, unless it is busy.
    """
    if (line := connect(worker_folder(settings))) is None:
        return {}
    with closing(line):
        answer = line.ask({"do": question})
        if question == STOP and "pid" in answer:
            line.await_end()
        return answer


@contextmanager
def open_session(
    app: str, settings: Settings, warm: WarmUse | None, **options: Any
) -> Iterator[SparkSession]:
    """A session in a JVM of its own, or in a warm one that is the very same."""
    from ebbtide.runtime import session as sessions

    borrowed = warm and _may_borrow(options) and _borrow(app, settings, warm, options)
    if not borrowed:
        with sessions.open_session(app, settings, **options) as spark:
            yield spark
        return
    line, place = borrowed
    with closing(line):
        yield sessions.attach_session(place["port"], place["secret"], place["command"])
        line.ask({"do": DONE})  # not after an error, so that no work outlives its command


def _may_borrow(options: Mapping[str, Any]) -> bool:
    """Only of a local Spark: a cluster counts its own executors, and spark-submit has a JVM."""
    from ebbtide.runtime import cluster

    master = cluster.find_master(options["master"], options["conf"], options["wanted"])
    return cluster.is_local(master) and not cluster.is_submitted()


def _borrow(
    app: str, settings: Settings, warm: WarmUse, options: Mapping[str, Any]
) -> tuple[WorkerLine, dict[str, Any]] | None:
    """A line to a worker and where its JVM listens; None if it is busy, or there can be none."""
    from filelock import FileLock, Timeout

    folder = worker_folder(settings)
    spec = {
        "app": app,
        "home": str(settings.home.absolute()),
        "timezone": settings.timezone,
        **{name: options[name] for name in ("master", "conf", "wanted")},
        "locations": list(options["locations"]),
    }
    make_folder(folder, "--home")
    try:
        folder.chmod(0o700)
        with FileLock(folder / "starting", timeout=1):
            borrowed = _take(folder, {**spec, "key": take_key(spec)}, warm)
    except Timeout:  # it is an OSError, too: another command starts the worker
        borrowed = None
    except OSError as error:
        warm.say(f"Spark cannot be kept: {error}.")
        return None
    if borrowed is None:
        warm.say("The Spark that is kept is in use. This command starts its own.")
    return borrowed


def _take(
    folder: Path, spec: Mapping[str, Any], warm: WarmUse
) -> tuple[WorkerLine, dict[str, Any]] | None:
    """Use the worker of a folder, or a new one; None if another command uses it."""
    for _ in range(2):
        line = connect(folder) or _start(folder, spec, warm)
        answer = line.ask({"do": USE, "key": spec["key"]}, _START_SECONDS)
        if "port" in answer:
            return line, answer
        line.close()
        if "problem" in answer:
            kind = UsageError if answer["exit_code"] == UsageError.exit_code else EbbtideError
            raise kind(answer["problem"], answer["next_step"])
        if answer.get("busy"):
            return None
        _await_end(folder)  # it had other settings, or died: the next one is ours
    raise OSError("the worker ends at once")


def take_key(spec: Mapping[str, Any]) -> str:
    """The same only if a JVM started now would be the same: settings, environment, versions.

    A digest: the settings and the environment have secrets, which stay in memory.
    """
    from ebbtide.runtime import cluster, versions

    variables = {name: value for name, value in os.environ.items() if name not in _UNIMPORTANT}
    conf_folders = (os.environ.get(name) for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR"))
    files = [
        (entry.path, entry.stat().st_mtime_ns, entry.stat().st_size)
        for folder in conf_folders
        if folder and Path(folder).is_dir()
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)
    ]
    parts: list[Any] = [
        spec,
        variables,
        str(Path.cwd()),
        files,
        sorted(cluster.outer_settings().items()),
    ]
    umask = os.umask(0o077)
    os.umask(umask)  # there is no other way to read it
    parts += [umask, os.getpriority(os.PRIO_PROCESS, 0)]
    parts += [__version__, str(versions.spark_version()), sys.executable, os.getuid()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _start(folder: Path, spec: Mapping[str, Any], warm: WarmUse) -> WorkerLine:
    """Start a worker; what it starts with is in no list of processes."""
    (folder / SOCKET).unlink(missing_ok=True)
    with (folder / "worker.err").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ebbtide.warm_jvm.process"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the command, which hangs up then
        )
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(json.dumps({**spec, "seconds": warm.seconds}).encode())
    deadline = time.monotonic() + _ANSWER_SECONDS
    while (line := connect(folder)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise OSError("the worker does not start")
        time.sleep(0.02)
    warm.say(
        f"Spark is kept for {warm.seconds / 60:.0f} minutes, so that the next one starts at once. "
        "To end it: ebbtide worker stop"
    )
    return line


def _await_end(folder: Path) -> None:
    deadline = time.monotonic() + _ANSWER_SECONDS
    while (folder / SOCKET).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
        if (line := connect(folder)) is None:
            return
        line.close()
