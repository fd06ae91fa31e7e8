"""Change the files of a folder, local or remote, through fsspec."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from uuid import uuid4

from ebbtide.errors import CheckpointError, StorageError
from ebbtide.storage.folder import NOTES, TEMPORARY, Folder
from ebbtide.storage.meanings import plain_errors, why_not
from ebbtide.storage.opening import locate
from ebbtide.storage.stores import hard_link, waiting_name

_TEMPORARY = f"{NOTES}/{TEMPORARY}"
_OLD_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""What earlier versions wrote beside a file: with a process id, where Spark has a UUID."""
_SYNCS = 16
"""At once: each waits for the disk, which then writes several in one go."""
_MADE = ("written", "created")
"""Where a file need not be there before."""
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM)
"""What filesystems say that do not sync folders."""


@dataclass(frozen=True)
class WritableFolder(Folder):
    """A folder that can be changed: a checkpoint by `rewind`, a sink's by its connector.

    Whatever a filesystem raises comes as `StorageError`, but for a file that is not there.
    """

    guard: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """Called before every change, to raise if it must not be made any more."""
    unsynced: set[str] = field(default_factory=set, compare=False, repr=False)
    """Folders on a disk where names came or went, which a power cut may still take back."""

    def changing(self, what: str, path: str) -> None:
        """Called before every change; tests simulate a power cut here."""
        del what, path
        if self.guard is not None:
            self.guard()

    def write(self, path: str, text: str) -> None:
        """Write a file whole: no reader ever sees half of it."""
        self.changing("write", path)
        with self._reporting("written", path), self._placing(self.path(path)) as place:
            self.store.write(place, text.encode())

    def create(self, path: str, text: str) -> bool:
        """Write a file whole unless there is one; returns whether it was created now.

        Where `creates_exclusively`, exactly one of several gets True. If the answer of the store
        is lost, and the request is sent again, a file that is there already may be our own: tell
        it by its text.
        """
        self.changing("create", path)
        with self._reporting("created", path):
            target, temporary = self.path(path), self._temporary(path)
            self._make_parent(target)
            self._make_parent(temporary)
            self.unsynced.add(posixpath.dirname(target))
            return self.store.create(target, text.encode(), temporary)

    @property
    def creates_exclusively(self) -> bool:
        """Whether `create` lets exactly one of several succeed, on whichever hosts they run."""
        return self.store.creates_exclusively

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.changing("remove", path)
        with self._reporting("removed", path):
            self.unsynced.add(posixpath.dirname(self.path(path)))
            self.filesystem.rm_file(self.path(path))

    def remove_tree(self, path: str) -> None:
        """Remove a folder of ours, if it is there; a link to one is removed itself."""
        self.inside.clear()
        if self.exists(path):
            self.changing("remove tree", path)
            self.made.clear()
            self.unsynced.add(posixpath.dirname(self.path(path)))
            with self._reporting("removed", path):
                if self.local and os.path.islink(self.path(path)):  # noqa: PTH114
                    os.unlink(self.path(path))  # noqa: PTH108
                else:
                    self.store.remove_tree(self.path(path))

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
            self.unsynced.update(posixpath.dirname(self.path(path)) for path in (source, target))
            if self.store.renames:
                self.store.rename(self.path(source), self.path(target))
                return
            self.store.copy(self.path(source), self.path(target))
        self.remove(source)

    def link(self, source: str, target: str, *, of: Folder | None = None) -> None:
        """Link a file of this or another folder to a second name; copy it if links do not work."""
        there, path = of or self, self.path(target)
        with self._reporting("copied", source):
            self._make_parent(path)
            self.changing("link", source)
            self.unsynced.add(posixpath.dirname(path))
            if not (self.local and there.local and hard_link(there.path(source), path)):
                with self._placing(path) as place:
                    self._copy(there, source, place)

    def sync(self) -> None:
        """Wait until the disk keeps the names that came and went; stores do so by themselves.

        What is changed after this is never kept without what was changed before.
        """
        folders = []
        while self.unsynced:  # the thread that renews a lease may add one meanwhile
            folders.append(self.unsynced.pop())
        if not (folders and self.local):
            return
        with self._reporting("written", ""), ThreadPoolExecutor(_SYNCS) as pool:
            list(pool.map(_sync_folder, folders))

    def probe(self) -> None:
        """Try, before a change begins, all that it needs: to write, copy, move and remove."""
        first, second, third = (f"{_TEMPORARY}/probe-{uuid4().hex}" for _ in range(3))
        try:
            self.write(first, "")
            self.link(first, second)
            self.move(second, third)
            self.remove(first)
            self.remove(third)
        except FileNotFoundError as error:
            raise StorageError(
                f"{self.url}/{_TEMPORARY} does not keep what was just written there.",
                "Look whether something else removes files there, then try again.",
                why_not(error),
            ) from error

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
        if self.store.renames and not self.local and not self.exists(path):
            with suppress(FileNotFoundError), self._reporting("moved", path):
                self.store.rename(waiting_name(self.path(path)), self.path(path))

    @contextmanager
    def _reporting(self, done: str, path: str) -> Iterator[None]:
        try:
            with plain_errors():
                yield
        except CheckpointError:
            raise
        except Exception as error:
            gone = isinstance(error, FileNotFoundError)
            if gone and done not in _MADE:
                raise
            no_bucket = gone and not self.store.makes_folders
            why = "its bucket or container does not exist" if no_bucket else why_not(error)
            raise StorageError(
                f"{posixpath.join(self.url, path)} cannot be {done}: {why}.",
                "Make room, or fix the permissions or your credentials, then try again.",
                why,
            ) from error

    def _make_parent(self, path: str) -> None:
        parent = posixpath.dirname(path)
        if self.store.makes_folders and parent not in self.made:
            self.filesystem.makedirs(parent, exist_ok=True)
            self.made.add(parent)
            while len(parent) > max(1, len(self.root)):  # it is a name, too
                parent = posixpath.dirname(parent)
                self.unsynced.add(parent)

    @contextmanager
    def _placing(self, target: str) -> Iterator[str]:
        """Where to write a file that is then seen whole, under its name, or not at all."""
        self._make_parent(target)
        if not self.store.renames:
            yield target
            return
        place = self._temporary(target)
        self._make_parent(place)
        try:
            yield place
            self.unsynced.add(posixpath.dirname(target))
            self.store.rename(place, target)
        except BaseException:
            with suppress(Exception):
                self.filesystem.rm_file(place)
            raise

    def _temporary(self, path: str) -> str:
        return self.path(_TEMPORARY, f"{posixpath.basename(path)}.{uuid4().hex}")

    def _copy(self, there: Folder, source: str, path: str) -> None:
        if there.filesystem == self.filesystem:
            with suppress(NotImplementedError):  # SFTP has no copy
                self.store.copy(there.path(source), path)
                return
        with there.open(source) as reading, self.filesystem.open(path, "wb") as writing:
            shutil.copyfileobj(reading, writing)
            if self.local:
                writing.flush()
                os.fsync(writing.fileno())
        original = there.stat(source)
        if original is None or original.size != self.filesystem.info(path)["size"]:
            raise OSError(errno.EIO, "the copy is not the same as the file")


def _sync_folder(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # it is gone: the one above it counts
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def open_writable(location: str) -> WritableFolder:
    """The folder at a path or fsspec URL, to read and to change."""
    return WritableFolder(*locate(location))
