"""A disk in memory, behind the functions of `os` that the storage layer calls.

What is written is lost at a power cut unless it was synced: the content of a file by `fsync` of the
file, and its name by `fsync` of its folder. A journaling filesystem keeps the order of names that
came and went; another one may keep any of them.
"""

from __future__ import annotations

import errno
import io
import os as real_os
import posixpath
import stat as stat_bits
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

from fsspec.implementations.local import LocalFileSystem

from tests.simulation.faults import Faults
from tests.simulation.objects import Changed
from tests.simulation.world import World


@dataclass(eq=False, slots=True)
class Inode:
    """A file, whatever names it has."""

    number: int
    content: bytes = b""
    synced: bytes = b""
    modified: float = 0.0


@dataclass(eq=False, slots=True)
class Pending:
    """A change of names that the disk has not written yet."""

    inode: Inode
    gone: str | None
    come: str | None

    def touches(self, folder: str) -> bool:
        """Whether it is about a name in a folder."""
        return folder in (posixpath.dirname(self.gone or ""), posixpath.dirname(self.come or ""))


class Disk(LocalFileSystem):  # type: ignore[misc]
    """The filesystem, and what `os` does with it."""

    cachable = False
    current: ClassVar[Disk | None] = None

    def __init__(
        self,
        world: World,
        faults: Faults,
        changed: Changed,
        *,
        links: bool = True,
        ordered: bool = True,
    ) -> None:
        super().__init__()
        self.world, self.faults, self._changed = world, faults, changed
        self.links, self.ordered = links, ordered
        self.names: dict[str, Inode] = {}
        self.folders: dict[str, float] = {"/": 0.0}
        self.durable: dict[str, Inode] = {}
        self.pending: list[Pending] = []
        self._count = 0
        Disk.current = self

    # the simulation's own access

    @property
    def files(self) -> dict[str, bytes]:
        """All contents."""
        return {path: inode.content for path, inode in self.names.items()}

    def load(self, files: dict[str, bytes], modified: float) -> None:
        """Put files there that were there long ago."""
        for path, content in files.items():
            self._count += 1
            self.names[path] = Inode(self._count, content, content, modified)
            self._make_folders(posixpath.dirname(path))
        self.durable = dict(self.names)

    def cut_power(self) -> None:
        """Lose what was not synced, or only some of it."""
        chance = self.world.random
        kept = self.pending
        if self.ordered:
            kept = kept[: chance.randint(0, len(kept))]
        else:
            kept = [one for one in kept if chance.random() < 0.5]
        for one in kept:
            self._make_durable(one)
        self.pending = []
        self.names = dict(self.durable)
        for inode in set(self.names.values()):
            if inode.content != inode.synced and chance.random() < 0.8:
                inode.content = inode.synced
            inode.synced = inode.content

    def _make_durable(self, one: Pending) -> None:
        if one.gone is not None and self.durable.get(one.gone) is one.inode:
            del self.durable[one.gone]
        if one.come is not None:
            self.durable[one.come] = one.inode

    def _make_folders(self, path: str) -> None:
        while path not in self.folders:
            self.folders[path] = self.world.now
            path = posixpath.dirname(path)

    def _note(self, inode: Inode, gone: str | None, come: str | None) -> None:
        self.pending.append(Pending(inode, gone, come))
        for path in (gone, come):
            if path is not None:
                self.folders[posixpath.dirname(path)] = self.world.now
        if come is not None:
            self._changed(come, inode.content)
        if gone is not None:
            self._changed(gone, None)

    def _sync_folder(self, folder: str) -> None:
        later = []
        for one in self.pending:
            if self.ordered or one.touches(folder):
                self._make_durable(one)
            else:
                later.append(one)
        self.pending = later

    # requests

    def _do(self, what: str, path: str, effect: Callable[[], Any], changes: bool = False) -> Any:
        return self.faults.operate(f"{what} {path}", effect, changes=changes)

    def _get(self, path: str) -> Inode:
        try:
            return self.names[path]
        except KeyError:
            raise self._none(path) from None

    def _none(self, path: str) -> OSError:
        if path in self.folders:
            return IsADirectoryError(errno.EISDIR, "it is a folder", path)
        return FileNotFoundError(errno.ENOENT, "there is none", path)

    def _require_folder(self, path: str) -> None:
        if posixpath.dirname(path) not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "its folder is not there", path)

    def link(self, source: str, target: str) -> None:
        """`os.link`."""

        def effect() -> None:
            inode = self._get(source)
            if not self.links:
                raise PermissionError(errno.EPERM, "there are no links", source)
            self._require_folder(target)
            if target in self.names:
                raise FileExistsError(errno.EEXIST, "there is one", target)
            self.names[target] = inode
            self._note(inode, None, target)

        self._do("link", f"{source} to {target}", effect, changes=True)

    def unlink(self, path: str) -> None:
        """`os.unlink`."""

        def effect() -> None:
            inode = self._get(path)
            del self.names[path]
            self._note(inode, path, None)

        self._do("unlink", path, effect, changes=True)

    def replace(self, source: str, target: str) -> None:
        """`os.replace`."""

        def effect() -> None:
            inode = self._get(source)
            self._require_folder(target)
            del self.names[source]
            self.names[target] = inode
            self._note(inode, source, target)

        self._do("rename", f"{source} to {target}", effect, changes=True)

    def read(self, path: str) -> bytes:
        """The content of a file."""
        return self._do("read", path, lambda: self._get(path).content)  # type: ignore[no-any-return]

    def writing(self, path: str, *, exclusive: bool = False) -> _Stream:
        """Open a file to write: it is empty then."""

        def effect() -> Inode:
            self._require_folder(path)
            if path in self.folders:
                raise self._none(path)
            inode = self.names.get(path)
            if inode is None:
                self._count += 1
                inode = self.names[path] = Inode(self._count, modified=self.world.now)
                self._note(inode, None, path)
            elif exclusive:
                raise FileExistsError(errno.EEXIST, "there is one", path)
            self._set(path, inode, b"")
            return inode

        return _Stream(self, path, self._do("create", path, effect, changes=True))

    def _set(self, path: str, inode: Inode, content: bytes) -> None:
        inode.content, inode.modified = content, self.world.now
        if self.names.get(path) is inode:  # else it was removed while it was open
            self._changed(path, content)

    def write_to(self, path: str, inode: Inode, content: bytes) -> None:
        """`write` of an open file."""
        self._do("write", path, lambda: self._set(path, inode, content), changes=True)

    def fsync(self, opened: Any) -> None:
        """`os.fsync` of a file or a folder."""

        def effect() -> None:
            if isinstance(opened, str):
                self._sync_folder(opened)
                return
            opened.inode.synced = opened.inode.content
            if self.ordered:
                self._sync_folder("")

        self._do("sync", getattr(opened, "path", opened), effect, changes=True)

    def listdir(self, path: str) -> list[str]:
        """`os.listdir`."""
        return self._do("list", path, lambda: [name for name, _ in self._entries(path)])  # type: ignore[no-any-return]

    def _entries(self, path: str) -> list[tuple[str, bool]]:
        if path not in self.folders:
            raise self._none(path)
        inside = f"{path}/"
        length = len(inside)
        found = [
            (name[length:], False)
            for name in self.names
            if name.startswith(inside) and "/" not in name[length:]
        ]
        return found + [
            (name[length:], True)
            for name in self.folders
            if name.startswith(inside) and "/" not in name[length:]
        ]

    def scandir(self, path: str) -> _Scan:
        """`os.scandir`."""
        entries = self._do("list", path, lambda: self._entries(path))
        return _Scan([_Entry(self, f"{path}/{name}", name, is_dir) for name, is_dir in entries])

    def stat(self, path: str) -> Any:
        """`os.stat`."""

        def effect() -> Any:
            if path in self.folders:
                return _stat(0, self.folders[path], stat_bits.S_IFDIR, 0)
            inode = self._get(path)
            return _stat(len(inode.content), inode.modified, stat_bits.S_IFREG, inode.number)

        return self._do("stat", path, effect)

    def rmdir(self, path: str) -> None:
        """`os.rmdir`."""

        def effect() -> None:
            if self._entries(path):
                raise OSError(errno.ENOTEMPTY, "it is not empty", path)
            del self.folders[path]

        self._do("remove folder", path, effect, changes=True)

    # what fsspec does beyond `os`

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder and those above it."""
        del exist_ok
        self._do("make folder", path, lambda: self._make_folders(path), changes=True)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        self.unlink(path)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove a folder with all in it, file by file."""
        del recursive, maxdepth
        if path in self.names:
            self.unlink(path)
            return
        for entry in self.scandir(path):
            if entry.is_dir():
                self.rm(entry.path)
            else:
                self.unlink(entry.path)
        self.rmdir(path)


def _stat(size: int, modified: float, kind: int, number: int) -> Any:
    at = int(modified * 1e6) * 1000
    return SimpleNamespace(
        st_size=size, st_mtime_ns=at, st_mtime=modified, st_mode=kind, st_ino=number
    )


class _Stream:
    """An open file."""

    def __init__(self, disk: Disk, path: str, inode: Inode) -> None:
        self.disk, self.path, self.inode = disk, path, inode
        self._buffer: list[bytes] = []

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *raised: Any) -> None:
        if raised[0] is None:
            self.flush()

    def write(self, content: bytes) -> None:
        self._buffer.append(content)

    def flush(self) -> None:
        if self._buffer:
            content, self._buffer = b"".join(self._buffer), []
            self.disk.write_to(self.path, self.inode, self.inode.content + content)

    def fileno(self) -> _Stream:
        return self


class _Reading(io.BytesIO):
    """A file that is open to read; it can be synced, too."""

    def __init__(self, path: str, content: bytes) -> None:
        super().__init__(content)
        self.path, self.inode = path, _disk().names[path]

    def fileno(self) -> Any:
        return self


class _Scan(list["_Entry"]):
    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass(slots=True)
class _Entry:
    disk: Disk
    path: str
    name: str
    folder: bool

    def is_file(self, follow_symlinks: bool = True) -> bool:
        return not self.folder

    def is_dir(self, follow_symlinks: bool = True) -> bool:
        return self.folder

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> Any:
        return self.disk.stat(self.path)


def _disk() -> Disk:
    assert Disk.current is not None
    return Disk.current


class _Path:
    """`os.path`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real_os.path, name)

    @staticmethod
    def lexists(path: str) -> bool:
        disk = _disk()
        return disk._do("look for", path, lambda: path in disk.names or path in disk.folders)  # type: ignore[no-any-return]

    exists = lexists

    @staticmethod
    def realpath(path: str) -> str:
        return path

    @staticmethod
    def islink(path: str) -> bool:
        del path
        return False


class Os:
    """The module `os`, for files on the disk of the run."""

    path = _Path()

    def __getattr__(self, name: str) -> Any:
        return getattr(real_os, name)

    @staticmethod
    def open(path: str, flags: int, mode: int = 0o777) -> Any:
        del mode
        if flags & real_os.O_CREAT:
            return _disk().writing(path, exclusive=bool(flags & real_os.O_EXCL))
        return path

    @staticmethod
    def close(opened: Any) -> None:
        del opened

    @staticmethod
    def getpid() -> int:
        return World.current.task.process.pid

    @staticmethod
    def access(path: str, mode: int) -> bool:
        del path, mode
        return True

    @staticmethod
    def walk(top: str, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
        assert not topdown
        try:
            entries = list(_disk().scandir(top))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir():
                yield from Os.walk(entry.path, topdown=False)
        names = ([one.name for one in entries if one.folder is kind] for kind in (True, False))
        yield top, next(names), next(names)


for _name in ("link", "unlink", "replace", "listdir", "scandir", "stat", "rmdir", "fsync"):

    def _call(*arguments: Any, _name: str = _name) -> Any:
        return getattr(_disk(), _name)(*arguments)

    setattr(Os, _name, staticmethod(_call))


def open_file(path: Any, mode: str) -> Any:
    """`open`, of a path or of what `Os.open` gave."""
    if isinstance(path, _Stream):
        return path
    return _disk().writing(path) if mode == "wb" else _Reading(path, _disk().read(path))


def open_to_read(path: str, root: str | None = None) -> str:
    """`parsing.open_regular`."""
    del root
    return path


def read_whole(path: str, root: str | None = None, limit: int = 0) -> bytes:
    """`parsing.read_regular`."""
    del root, limit
    return _disk().read(path)


def copy_file(source: str, target: str, follow_symlinks: bool = True) -> None:
    """`shutil.copy2`: what it writes is not synced."""
    del follow_symlinks
    content = _disk().read(source)
    with _disk().writing(target) as stream:
        stream.write(content)
