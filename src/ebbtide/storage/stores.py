"""What each kind of store can do, and how: one small adapter for each, chosen by its protocol."""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from glob import has_magic
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from ebbtide.parsing import MAX_BYTES
from ebbtide.storage.meanings import MISSING, plain_errors

_PIECE = 8 << 20
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


class FileStore:
    """A filesystem of fsspec, used so that any will do: little is taken for granted.

    Paths are the filesystem's own. A subclass says what a kind of store does better.
    """

    creates_exclusively = False
    """Whether of several that create a file at once exactly one is told that it did."""
    makes_folders = True
    """Whether a folder must be there before a file in it."""
    times: tuple[str, ...] = ("mtime", "modified", "last_modified", "LastModified", "updated")
    """What the time of writing is called, in seconds, as a text or as a time."""
    digests: tuple[str, ...] = ()
    """What is the same for two files only if their contents are."""

    def __init__(self, filesystem: Any) -> None:
        self.filesystem = filesystem

    @property
    def renames(self) -> bool:
        """Whether files can be renamed, so that they are written under another name first."""
        return type(self.filesystem).mv is not AbstractFileSystem.mv

    def modified(self, info: Mapping[str, Any]) -> float | None:
        """When a file was written; None where the store does not say."""
        for name in self.times:
            match info.get(name):
                case datetime() as at:
                    return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
                case int() | float() as seconds:
                    return float(seconds)
                case str() as text:
                    with suppress(ValueError):
                        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
        return None

    def stamp(self, info: Mapping[str, Any]) -> str:
        """What changes when a file is rewritten, also within one second."""
        return f"{self.modified(info)} {info.get('ETag') or info.get('etag') or ''}"

    def is_there(self, path: str) -> bool:
        """Whether a file is there: the `exists` of fsspec takes any error for one that is not."""
        try:
            with plain_errors():
                self.filesystem.info(path)
        except OSError as error:
            if error.errno == errno.ENOENT or isinstance(error, MISSING):
                return False
            raise
        return True

    def read(self, path: str, limit: int = MAX_BYTES) -> bytes:
        """A file's content; an OSError if it is too large."""
        with plain_errors():
            content = self.read_start(path, limit + 1)
        if len(content) > limit:
            raise OSError(errno.EFBIG, f"it has more than the {limit:,} bytes that are read")
        return content

    def read_start(self, path: str, size: int) -> bytes:
        """The first bytes of a file, up to a number."""
        with self.filesystem.open(path, "rb") as stream:
            content: bytes = stream.read(size)
        return content

    def write(self, path: str, content: bytes) -> None:
        """Write a file; readers may see half of it where files can be renamed."""
        self.filesystem.pipe_file(path, content)

    def create(self, path: str, content: bytes, temporary: str) -> bool:
        """Write a file unless there is one; it is seen whole or not at all."""
        if self.is_there(path):
            return False
        if self.renames:
            self.write(temporary, content)
            self.rename(temporary, path)
        else:
            self.write(path, content)
        return True

    def rename(self, source: str, target: str) -> None:
        """Rename a file over another; some do not replace it, and do not even say so."""
        failure = None
        try:
            self.filesystem.mv(source, target)
        except Exception as error:
            failure = error
        if not self.is_there(source):
            if failure is not None:
                raise FileNotFoundError(source) from failure
            return
        if self.is_there(target):
            waiting = waiting_name(target)
            if waiting != source:
                with suppress(FileNotFoundError):
                    self.filesystem.rm_file(waiting)
                self.filesystem.mv(source, waiting)
            self.filesystem.rm_file(target)
            source = waiting
        self.filesystem.mv(source, target)

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all in it, by its very name: to fsspec, `c[1]` also means `c1`."""
        if not has_magic(path):
            self.filesystem.rm(path, recursive=True)
            return
        if self.filesystem.info(path)["type"] == "file":
            self.filesystem.rm_file(path)
            return
        found = self.filesystem.find(path, withdirs=True, detail=True)
        for one in sorted(found, reverse=True):
            if found[one]["type"] == "file":
                self.filesystem.rm_file(one)
            elif self.makes_folders:
                self._remove_folder(one)
        if self.makes_folders:
            self._remove_folder(path)

    def _remove_folder(self, path: str) -> None:
        with suppress(FileNotFoundError):  # some have no empty ones
            self.filesystem.rmdir(path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file whole; raises unless the copy is finished and the same."""
        self.filesystem.cp_file(source, target)
        self.require_same(source, target)

    def require_same(self, source: str, target: str) -> None:
        """Refuse a copy that is not the same, by its size and its digest, else by its content."""
        first, second = self.filesystem.info(source), self.filesystem.info(target)
        if first["size"] == second["size"]:
            for name in self.digests:
                if first.get(name) and first.get(name) == second.get(name):
                    return
            if self._same_content(source, target):
                return
        raise OSError(errno.EIO, "the copy is not the same as the file")

    def _same_content(self, source: str, target: str) -> bool:
        with self.filesystem.open(source, "rb") as first, self.filesystem.open(target) as second:
            while piece := first.read(_PIECE):
                if piece != second.read(_PIECE):
                    return False
            return not second.read(1)


class LocalStore(FileStore):
    """A disk: files are renamed, and a hard link never replaces a file."""

    creates_exclusively = True

    def is_there(self, path: str) -> bool:
        """Whether a file or a link is there."""
        return os.path.lexists(path)

    def write(self, path: str, content: bytes) -> None:
        """Write a file and wait for the disk."""
        with open(path, "wb") as stream:  # noqa: PTH123
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())

    def create(self, path: str, content: bytes, temporary: str) -> bool:
        """Write it whole elsewhere, then link it to its name."""
        self.write(temporary, content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create_without_links(path, content)
        finally:
            os.unlink(temporary)  # noqa: PTH108
        return True

    def rename(self, source: str, target: str) -> None:
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
                _sync_file(copy)  # before the only other copy goes
            os.replace(copy, target)  # noqa: PTH105
            os.unlink(source)  # noqa: PTH108

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all in it, or a file."""
        self.filesystem.rm(path, recursive=True)

    def copy(self, source: str, target: str) -> None:
        """Copy a file with its times, and wait for the disk."""
        shutil.copy2(source, target)
        _sync_file(target)


def _sync_file(path: str) -> None:
    with open(path, "rb") as file:  # noqa: PTH123
        os.fsync(file.fileno())


def _create_without_links(path: str, content: bytes) -> bool:
    """Create a file where links do not work: exactly one does, a reader may see half of it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    try:
        with open(descriptor, "wb") as stream:  # noqa: PTH123
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:  # as on a full disk: half of it would be in the way of all others
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        raise
    return True


def hard_link(source: str, target: str) -> bool:
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


class MemoryStore(FileStore):
    """The memory of this process: a lock will do."""

    creates_exclusively = True
    times = ("modified", "created")
    _lock = threading.Lock()

    def create(self, path: str, content: bytes, temporary: str) -> bool:
        """Look and write while no other thread creates a file."""
        with self._lock:
            return super().create(path, content, temporary)


def waiting_name(path: str) -> str:
    """The name of a whole file that takes the place of another next."""
    directory, name = posixpath.split(path)
    return f"{directory}/.{name}.new"


def store_of(filesystem: Any) -> FileStore:
    """The adapter for a filesystem, by its protocol."""
    if isinstance(filesystem, LocalFileSystem):
        return LocalStore(filesystem)
    if isinstance(filesystem, MemoryFileSystem):
        return MemoryStore(filesystem)
    from ebbtide.storage.hdfs import WebHdfsStore
    from ebbtide.storage.object_stores import AzureStore, GcsStore, S3Store

    kinds: dict[str, type[FileStore]] = {
        **dict.fromkeys(("s3", "s3a"), S3Store),
        **dict.fromkeys(("gs", "gcs"), GcsStore),
        **dict.fromkeys(("abfs", "az", "abfss"), AzureStore),
        "webhdfs": WebHdfsStore,
    }
    protocol = filesystem.protocol
    first = protocol if isinstance(protocol, str) else protocol[0]
    return kinds.get(first, FileStore)(filesystem)
