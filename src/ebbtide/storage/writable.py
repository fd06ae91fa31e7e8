"""Change the files of a folder, local or remote, through fsspec."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import uuid4

from fsspec import AbstractFileSystem

from ebbtide.errors import StorageError
from ebbtide.storage.folder import NOTES, TEMPORARY, Folder, locate, why_not

_TEMPORARY = f"{NOTES}/{TEMPORARY}"
_OLD_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""What earlier versions wrote beside a file: with a process id, where Spark has a UUID."""
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.ENOTSUP)


@dataclass(frozen=True)
class WritableFolder(Folder):
    """A folder that can be changed: a checkpoint by `rewind`, a sink's by its connector.

    Whatever a filesystem raises comes as `StorageError`, but for a file that is not there.
    """

    def changing(self, what: str, path: str) -> None:
        """Called before every change; tests simulate a power cut here."""

    def write(self, path: str, text: str) -> None:
        """Write a file whole: no reader ever sees half of it."""
        self.changing("write", path)
        with self._reporting("written", path), self._placing(self.path(path)) as place:
            if not self.local:
                self.filesystem.pipe_file(place, text.encode())
                return
            with open(place, "w", encoding="utf-8") as stream:  # noqa: PTH123
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.changing("remove", path)
        with self._reporting("removed", path):
            self.filesystem.rm_file(self.path(path))

    def remove_tree(self, path: str) -> None:
        """Remove a folder of ours, if it is there; a link to one is removed itself."""
        self.inside.clear()
        if self.exists(path):
            self.changing("remove tree", path)
            self.made.clear()
            with self._reporting("removed", path):
                if self.local and os.path.islink(self.path(path)):  # noqa: PTH114
                    os.unlink(self.path(path))  # noqa: PTH108
                else:
                    self.filesystem.rm(self.path(path), recursive=True)

    def remove_empty(self, path: str) -> None:
        """Remove the folders below a path that hold no file; only disks have such folders."""
        if self.local:
            for directory, _, _ in os.walk(self.path(path), topdown=False):
                if not os.listdir(directory) and directory != self.path(path):  # noqa: PTH208
                    self.changing("remove folder", directory)
                    self.made.clear()
                    with self._reporting("removed", directory):
                        os.rmdir(directory)  # noqa: PTH106

    def move(self, source: str, target: str) -> None:
        """Rename a file; where there is no rename, copy it, then remove it."""
        with self._reporting("moved", source):
            self._make_parent(self.path(target))
            self.changing("move", source)
            if self._renames:
                self._rename(self.path(source), self.path(target))
                return
            self.filesystem.cp_file(self.path(source), self.path(target))
        self.remove(source)

    def link(self, source: str, target: str, *, of: Folder | None = None) -> None:
        """Link a file of this or another folder to a second name; copy it if links do not work."""
        there, path = of or self, self.path(target)
        with self._reporting("copied", source):
            self._make_parent(path)
            self.changing("link", source)
            if not (self.local and there.local and _hard_link(there.path(source), path)):
                with self._placing(path) as place:
                    self._copy(there, source, place)

    def probe(self) -> None:
        """Try, before a change begins, all that it needs: to write, copy, move and remove."""
        first, second, third = (f"{_TEMPORARY}/probe-{uuid4().hex}" for _ in range(3))
        self.write(first, "")
        self.link(first, second)
        self.move(second, third)
        self.remove(first)
        self.remove(third)

    def remove_leftovers(self, *places: str) -> None:
        """Remove what a killed process of ours was just writing, also in the folders given."""
        leftovers = [f"{_TEMPORARY}/{name}" for name in self.names(_TEMPORARY)]
        leftovers += [
            f"{place}/{name}".lstrip("/")
            for place in (NOTES, *places)
            for name in self.names(*filter(None, [place]))
            if _OLD_TEMPORARY.fullmatch(name)
        ]
        for path in leftovers:
            with suppress(FileNotFoundError):
                self.remove(path)

    def finish_write(self, path: str) -> None:
        """Put a file in place that a kill kept from it, where a rename replaces no file."""
        if self._renames and not self.local and not self.exists(path):
            with suppress(FileNotFoundError), self._reporting("written", path):
                self._rename(_waiting(self.path(path)), self.path(path))

    @property
    def _renames(self) -> bool:
        """Whether files can be renamed; a store of objects copies them, but writes them whole."""
        return type(self.filesystem).mv is not AbstractFileSystem.mv

    @contextmanager
    def _reporting(self, done: str, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, StorageError):
            raise
        except Exception as error:
            why = why_not(error)
            raise StorageError(
                f"{posixpath.join(self.url, path)} cannot be {done}: {why}.",
                "Make room, or fix the permissions or your credentials, then try again.",
                why,
            ) from error

    def _make_parent(self, path: str) -> None:
        parent = posixpath.dirname(path)
        if parent not in self.made:
            self.filesystem.makedirs(parent, exist_ok=True)
            self.made.add(parent)

    @contextmanager
    def _placing(self, target: str) -> Iterator[str]:
        """Where to write a file that is then seen whole, under its name, or not at all."""
        self._make_parent(target)
        if not self._renames:
            yield target
            return
        place = self.path(_TEMPORARY, f"{posixpath.basename(target)}.{uuid4().hex}")
        self._make_parent(place)
        try:
            yield place
            self._rename(place, target)
        except BaseException:
            with suppress(Exception):
                self.filesystem.rm_file(place)
            raise

    def _rename(self, source: str, target: str) -> None:
        """Rename a file over another; HDFS and SMB do not, WebHDFS does not even say so."""
        if self.local:
            _move_local(source, target)
            return
        rename, failure = self.filesystem.mv, None
        try:
            rename(source, target)
        except Exception as error:
            failure = error
        if not self._is_there(source):
            if failure is not None:
                raise FileNotFoundError(source) from failure
            return
        if self._is_there(target):
            waiting = _waiting(target)
            if waiting != source:
                with suppress(FileNotFoundError):
                    self.filesystem.rm_file(waiting)
                rename(source, waiting)
            self.filesystem.rm_file(target)
            source = waiting
        rename(source, target)

    def _copy(self, there: Folder, source: str, path: str) -> None:
        if self.local and there.local:
            shutil.copy2(there.path(source), path)
            return
        if there.filesystem == self.filesystem:
            with suppress(NotImplementedError):  # SFTP has no copy
                self.filesystem.cp_file(there.path(source), path)
                return
        with there.open(source) as reading, self.filesystem.open(path, "wb") as writing:
            shutil.copyfileobj(reading, writing)


def _move_local(source: str, target: str) -> None:
    """Rename a file; if its folder is mounted from another filesystem, copy it whole first."""
    try:
        os.replace(source, target)  # noqa: PTH105
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        directory, name = posixpath.split(target)
        copy = f"{directory}/.{name}.{os.getpid()}.tmp"
        shutil.copy2(source, copy, follow_symlinks=False)
        if not os.path.islink(copy):  # noqa: PTH114
            with open(copy, "rb") as file:  # noqa: PTH123
                os.fsync(file.fileno())  # before the only other copy goes
        os.replace(copy, target)  # noqa: PTH105
        os.unlink(source)  # noqa: PTH108


def _hard_link(source: str, target: str) -> bool:
    """Link a file to a second name, in place of what is there; False if links do not work."""
    try:
        try:
            os.link(source, target)
        except FileExistsError:
            os.unlink(target)  # noqa: PTH108
            os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def _waiting(path: str) -> str:
    """The name of a whole file that takes the place of another next."""
    directory, name = posixpath.split(path)
    return f"{directory}/.{name}.new"


def open_writable(location: str) -> WritableFolder:
    """The folder at a path or fsspec URL, to read and to change."""
    return WritableFolder(*locate(location))
