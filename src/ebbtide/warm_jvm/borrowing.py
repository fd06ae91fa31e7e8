"""Borrow a JVM that stays warm between commands (docs/adr/030-warm-jvm.md).

A command that needs the very same JVM as the last one runs in its own Python as always, and starts
its Spark context in that JVM instead of a new one. If it ends well, the JVM is kept for the next
command; otherwise the JVM ends with it, as one of its own would.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ebbtide.config import Settings
from ebbtide.version import __version__
from ebbtide.warm_jvm import keeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEPT_SECONDS = 600.0
_ANSWER_SECONDS = 30.0
"""A keeper answers at once, but ends a JVM first that is not the one that is needed."""
_OUTPUT = "output.log"
_DESCRIPTORS = Path("/proc/self/fd")
_LONGEST_PATH = 100
"""Of a socket: longer ones do not fit into its address."""
_UNIMPORTANT = frozenset(
    {"_", "SHLVL", "OLDPWD", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST", "EBBTIDE_FAMILY"}
)
"""Variables that change with each command and mean nothing to Spark; the last is the web UI's."""
_CONF_FOLDERS = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
_JAR_LISTS = {"spark.jars": ",", "spark.driver.extraClassPath": ":"}


@dataclass(frozen=True)
class WarmUse:
    """That a command may borrow a warm JVM, and leave one."""

    say: Callable[[str], None]
    """Tells the user what is kept, or why nothing is."""
    seconds: float = _KEPT_SECONDS


def ask_keeper(settings: Settings, question: str) -> dict[str, Any]:
    """What the keeper of a home answers to `status` or `stop`; nothing if there is none.

    After `stop` it has ended, unless a command uses its JVM.
    """
    if (line := _connect(_folder(settings))) is None:
        return {}
    with closing(line):
        answer = line.ask({"do": question})
        if question == keeper.STOP and "pid" in answer:
            line.await_end()
        return answer


@contextmanager
def open_session(
    app: str, settings: Settings, warm: WarmUse | None, **options: Any
) -> Iterator[SparkSession]:
    """A session in a JVM of its own, or in a warm one that is the very same."""
    from ebbtide.runtime import cluster
    from ebbtide.runtime import session as sessions

    confs = [options.get(name) or {} for name in ("conf", "wanted")]
    if warm is not None and not cluster.is_local(
        cluster.find_master(options.get("master"), *confs)
    ):
        warm.say("--warm keeps a Spark on this machine only: this one is not kept.")
        warm = None
    if warm is None or cluster.is_submitted():
        with sessions.open_session(app, settings, **options) as spark:
            yield spark
        return
    with closing(_Borrower(app, settings, warm)) as borrower:
        with sessions.open_session(app, settings, start_jvm=borrower.start, **options) as spark:
            yield spark
        borrower.give_back()


class _Line:
    """A conversation with a keeper, in lines of JSON; it ends with the keeper."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def say(self, message: Mapping[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, seconds: float | None = _ANSWER_SECONDS) -> dict[str, Any]:
        """The answer; none of its entries if the keeper has ended."""
        try:
            self._connection.settimeout(seconds)
            return dict(json.loads(self._lines.readline() or b"{}"))
        except (OSError, ValueError):
            return {}

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self.say(question)
        except OSError:
            return {}
        return self.hear()

    def await_end(self) -> None:
        """Wait until a keeper that ends has ended, its JVM with it."""
        with suppress(OSError):
            self._connection.settimeout(_ANSWER_SECONDS)
            self._lines.read()

    def hang_up(self) -> None:
        """Say nothing more: a keeper whose JVM is in use ends it then, unless all went well."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


class _Borrower:
    """One command's use of a warm JVM."""

    def __init__(self, app: str, settings: Settings, warm: WarmUse) -> None:
        self._app, self._settings, self._warm = app, settings, warm
        self._line: _Line | None = None
        self._is_done = False

    def start(self, conf: Mapping[str, str]) -> None:
        """Attach pyspark to the JVM that is kept, to one that will be, or to one of its own."""
        from ebbtide.runtime import session as sessions

        try:
            gateway = self._find(conf)
        except OSError as error:
            gateway = {"problem": str(error)}
        if "port" in gateway:
            sessions.attach_jvm(gateway["port"], gateway["secret"])
            return
        problem = "The Spark that is kept is in use"
        if not gateway.get("busy"):
            log = _folder(self._settings) / _OUTPUT
            why = gateway.get("problem", f"it did not start, see {log}")
            problem = f"No Spark can be kept: {why}"
        self._warm.say(f"{problem}. This command starts its own.")
        self._hang_up()
        sessions.start_own_jvm(conf)

    def give_back(self) -> None:
        """Keep the JVM for the next command, with nothing of this one in it."""
        from py4j.protocol import Py4JError

        from ebbtide.runtime import session as sessions

        if self._line is not None:
            with suppress(Py4JError, OSError):
                sessions.detach_jvm()
                self._line.say({"do": keeper.DONE})
                self._is_done = True

    def close(self) -> None:
        """Hang up, which ends the JVM unless it was given back."""
        self._hang_up()

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            with closing(line):
                if not self._is_done:
                    line.hang_up()
                    line.await_end()

    def _find(self, conf: Mapping[str, str]) -> dict[str, Any]:
        """Where the JVM listens, or that it is busy; nothing if it does not start."""
        from ebbtide.runtime import session as sessions
        from ebbtide.runtime import versions

        folder = _folder(self._settings)
        _make_private(folder)
        words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        command = [str(versions.spark_home() / "bin/spark-submit"), *words]
        key = take_key(command, conf)
        if (line := _connect(folder)) is not None:
            self._line = line
            if gateway := line.ask({"do": keeper.USE, "key": key}):
                return gateway
            line.close()
        self._line = line = _start_keeper(folder)
        line.say(
            {
                "folder": str(folder.absolute()),
                "app": self._app,
                "key": key,
                "command": command,
                "properties": sessions.to_properties(conf),
                "seconds": self._warm.seconds,
            }
        )
        if "port" in (gateway := line.hear(None)):
            self._warm.say(
                f"Spark is kept for {self._warm.seconds / 60:.0f} minutes, so that the next one "
                "starts at once. To end it: ebbtide warm stop"
            )
        return gateway


def take_key(command: list[str], conf: Mapping[str, str]) -> str:
    """A digest of all that a JVM takes at its start: with another one, it would be another JVM."""
    umask = os.umask(0o077)
    os.umask(umask)
    environment = {k: v for k, v in os.environ.items() if k not in _UNIMPORTANT}
    seen = {
        "command": command,
        "conf": dict(conf),
        "environment": environment,
        "folder": str(Path.cwd()),
        "process": [umask, os.getpriority(os.PRIO_PROCESS, 0), sys.executable, __version__],
        "files": [_describe_file(file) for file in _find_files(command, conf)],
    }
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


def _find_files(command: list[str], conf: Mapping[str, str]) -> Iterator[Path]:
    """Files whose path says nothing of what is in them."""
    spark = Path(command[0]).parents[1]
    yield Path(os.environ.get("JAVA_HOME", ""), "release")
    yield from (spark / "jars", spark / "RELEASE")
    folders = [os.environ.get(name) for name in _CONF_FOLDERS]
    for folder in (*folders, str(spark / "conf")):
        if folder:
            yield from sorted(Path(folder).glob("*"))
    yield from _find_jars(command[1:], conf)


def _find_jars(words: list[str], conf: Mapping[str, str]) -> Iterator[Path]:
    """The jars that settings and options of spark-submit name, also by a pattern like `dir/*`."""
    jars = [
        j for name, separator in _JAR_LISTS.items() for j in conf.get(name, "").split(separator)
    ]
    named = (part for word in words for part in re.split("[,:]", word.rpartition("=")[2]))
    # a folder such as spark.local.dir changes with each command
    jars += [jar for jar in named if jar.endswith((".jar", "*"))]
    for jar in filter(None, jars):
        path = re.sub("^file:(//)?", "", jar)
        yield from map(Path, sorted(glob(path)) or [path])  # noqa: PTH207 - it may be absolute


def _describe_file(file: Path) -> tuple[str, int, int]:
    try:
        found = file.stat()
    except OSError:
        return (str(file), 0, 0)
    return (str(file), found.st_size, found.st_mtime_ns)


def _folder(settings: Settings) -> Path:
    """The folder of a home's keeper; only its user may look into it."""
    return settings.home / "warm"


def _make_private(folder: Path) -> None:
    """Make the folder; refuse another user's, whose keeper could be anything, and a link to one."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise PermissionError(f"{folder} is not a folder of this user, use another --home")
    folder.chmod(0o700)


def _connect(folder: Path) -> _Line | None:
    """A line to the keeper of a folder; None if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(folder) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        return None
    return _Line(connection)


@contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The address of a folder's socket, also where its path is too long for one."""
    path = str(folder.absolute() / keeper.SOCKET)
    if len(os.fsencode(path)) < _LONGEST_PATH:
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _DESCRIPTORS.exists():
            yield str(_DESCRIPTORS / str(descriptor) / keeper.SOCKET)
            return
        with TemporaryDirectory() as short:  # on macOS
            link = Path(short, "w")
            link.symlink_to(folder.absolute())
            yield str(link / keeper.SOCKET)
    finally:
        os.close(descriptor)


def _start_keeper(folder: Path) -> _Line:
    """A keeper, which ends as soon as we hang up; what it and its JVM print goes to a file."""
    ours, theirs = socket.socketpair()
    with theirs, (folder / _OUTPUT).open("wb") as log:
        subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=theirs.fileno(),
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the command
        )
    return _Line(ours)
