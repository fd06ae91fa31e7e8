"""Read the files of a folder, local or remote, through fsspec."""

from __future__ import annotations

import errno
import os
import posixpath
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from fsspec.implementations.local import LocalFileSystem

from ebbtide.credentials import take_credentials
from ebbtide.errors import CheckpointError, UnreachableError, printable
from ebbtide.locations import parse_url
from ebbtide.parsing import (
    MAX_BYTES,
    is_inside,
    leads_out,
    open_regular,
    parse_id,
    read_regular,
    require_inside,
)
from ebbtide.storage.meanings import MISSING, plain_errors, why_not
from ebbtide.storage.opening import locate
from ebbtide.storage.stores import FileStore, store_of

if TYPE_CHECKING:
    from typing_extensions import Self

NOTES = ".ebbtide"
"""Our own folder inside a checkpoint; Spark ignores it."""
TEMPORARY = "tmp"
"""In it: where files are written before they get their names."""
_NO_UNICODE = "its name is no Unicode"
_REMOTE_REQUESTS = 16
"""Concurrent requests to a remote filesystem."""


@dataclass(frozen=True)
class Listing:
    """The files of one folder."""

    names: tuple[str, ...]
    """Sorted."""
    modified_ns: int | None = None
    """When a name last came or went; None where the filesystem does not say."""
    sizes: tuple[int, ...] | None = None
    """Where they came with the listing; else each file is asked when its size is needed."""
    stamps: tuple[str, ...] = ()
    """Where they came with the listing: what changes when a file is rewritten."""
    odd: Mapping[str, str] = field(default_factory=dict)
    """What is neither a file nor a folder of this one, by a printable name: and what it is."""

    @cached_property
    def members(self) -> frozenset[str]:
        """The names, to look many of them up."""
        return frozenset(self.names)

    def has(self, name: str) -> bool:
        """Whether a file is there; for a few names, as it makes no set of all."""
        at = bisect_left(self.names, name)
        return at < len(self.names) and self.names[at] == name

    @cached_property
    def size(self) -> Mapping[str, int]:
        """The sizes that came with the listing, by name."""
        return dict(zip(self.names, self.sizes or (), strict=False))


Tree = Mapping[str, Listing]
"""The folders of a checkpoint by their path in it; the checkpoint itself is ''."""


@dataclass(frozen=True)
class Stat:
    """A file's size and time of writing."""

    size: int
    modified: float | None
    """None where the store does not say."""


@dataclass(frozen=True)
class Folder:
    """A folder to read, such as a checkpoint's."""

    url: str
    """As it was named, without a password or a signature."""
    filesystem: Any
    root: str
    made: set[str] = field(default_factory=set, compare=False, repr=False)
    """Folders that certainly exist, to save a call per file."""
    inside: set[str] = field(default_factory=set, compare=False, repr=False)
    """Folders that no link leads out of, to save calls."""

    @cached_property
    def local(self) -> bool:
        """Whether it lies on this machine's disk."""
        return isinstance(self.filesystem, LocalFileSystem)

    @cached_property
    def store(self) -> FileStore:
        """What its kind of store can do, and how."""
        return store_of(self.filesystem)

    @property
    def address(self) -> str:
        """Where it really lies, whichever way it was named: one spelling, links resolved."""
        if self.local:
            return os.path.realpath(self.root)
        if (place := parse_url(self.url)) is not None:
            return place.address
        return take_credentials(str(self.filesystem.unstrip_protocol(self.root)))

    def beside(self, location: str) -> Self:
        """Another folder, such as the sink's, opened in the same way."""
        url, filesystem, root = locate(location)
        return replace(self, url=url, filesystem=filesystem, root=root, made=set(), inside=set())

    def path(self, *parts: str) -> str:
        """The filesystem's path of a file in the folder; refuse one that leads out of it."""
        path = parts[0] if len(parts) == 1 else posixpath.join("", *parts)
        try:
            require_inside(path)
        except ValueError:
            raise leads_out(path, self.url) from None
        if self.local:
            self._require_inside(path.rpartition("/")[0])
        return f"{self.root}/{path}"

    def _require_inside(self, directory: str) -> None:
        """Refuse a folder behind a link that leads out."""
        if not directory or directory in self.inside:
            return
        self._require_inside(directory.rpartition("/")[0])
        path = f"{self.root}/{directory}"
        if os.path.islink(path) and not is_inside(path, self.root):  # noqa: PTH114
            raise leads_out(directory, self.url)
        self.inside.add(directory)

    def read_bytes(self, *parts: str, limit: int = MAX_BYTES) -> bytes | None:
        """A file's content; None if it is not there. Refuse what is no file, or too large."""
        path = self.path(*parts)
        try:
            if self.local:
                return read_regular(path, self.root, limit)
            return self.store.read(path, limit)
        except MISSING:
            return None
        except Exception as error:
            raise self._refused("read", *parts, error=error) from None

    def chunks(self, path: str, size: int = 1 << 20) -> Iterator[bytes]:
        """A file's content piece by piece, so that a large one is never in memory as a whole."""
        try:
            with self.open(path) as stream:
                while chunk := stream.read(size):
                    yield chunk
        except (FileNotFoundError, CheckpointError):
            raise
        except Exception as error:
            raise self._refused("read", path, error=error) from None

    def read(self, *parts: str, limit: int = MAX_BYTES) -> str | None:
        """A file's text; None if it is not there."""
        content = self.read_bytes(*parts, limit=limit)
        return None if content is None else content.decode("utf-8", errors="replace")

    def read_all(self, paths: Iterable[str], limit: int = MAX_BYTES) -> dict[str, str]:
        """The texts of many files, those that have gone left out."""
        paths = list(paths)
        texts = zip(paths, self.map(partial(self.read, limit=limit), paths), strict=True)
        return {path: text for path, text in texts if text is not None}

    def map(self, function: Any, items: Iterable[Any]) -> list[Any]:
        """Apply a function to many items, concurrently where the filesystem is slow."""
        if self.local:
            return [function(item) for item in items]
        with ThreadPoolExecutor(_REMOTE_REQUESTS) as pool:
            return list(pool.map(function, items))

    def open(self, path: str) -> BinaryIO:
        """A file to read from; refuse what is no file."""
        if self.local:
            try:
                descriptor = open_regular(self.path(path), self.root)
                return open(descriptor, "rb")  # noqa: PTH123
            except FileNotFoundError:
                raise
            except OSError as error:
                raise self._refused("read", path, error=error) from None
        try:
            with plain_errors():
                return cast(BinaryIO, self.filesystem.open(self.path(path), "rb"))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._refused("read", path, error=error) from None

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        try:
            return self.store.is_there(self.path(path))
        except CheckpointError:
            raise
        except Exception as error:
            raise self._refused("read", path, error=error) from None

    def stat(self, path: str) -> Stat | None:
        """A file's size and time of writing; None if it is not there."""
        try:
            if self.local:
                info = os.stat(self.path(path))  # noqa: PTH116 - half the time of Path.stat
                return Stat(info.st_size, info.st_mtime_ns / 1e9)
            with plain_errors():
                remote = self.filesystem.info(self.path(path))
        except MISSING:
            return None
        except Exception as error:
            if getattr(error, "errno", None) == errno.ELOOP:
                return None
            raise self._refused("read", path, error=error) from None
        return Stat(int(remote["size"] or 0), self.store.modified(remote))

    def names(self, *parts: str) -> list[str]:
        """The names in a folder, sorted; none if it is not there."""
        path = self.path(*parts, "").rstrip("/")
        try:
            if self.local:
                return sorted(os.listdir(path))  # noqa: PTH208 - a tenth of the time
            with plain_errors():
                paths = self.filesystem.ls(path, detail=False)
        except MISSING:
            return []
        except Exception as error:
            raise self._refused("list", *parts, error=error) from None
        # an object store may list the folder's own mark among what is in it
        inside = (each.rstrip("/") for each in paths if each.strip("/") != path.strip("/"))
        return sorted(map(posixpath.basename, inside))

    def folders(self, *parts: str) -> list[str]:
        """The names of the folders in a folder, sorted; none if it is not there."""
        return self._list(posixpath.join("", *parts))[1]

    def stamps(self, directory: str) -> dict[str, object]:
        """By path of each file in a folder: what changes when it is rewritten."""
        if not self.local:
            listing, _ = self._list(directory)
            paths = (f"{directory}/{name}" for name in listing.names)
            return dict(zip(paths, listing.stamps, strict=True))
        try:
            with os.scandir(self.path(directory, "")) as entries:
                stats = {f"{directory}/{entry.name}": entry.stat() for entry in entries}
        except OSError:
            return {}
        return {path: (s.st_mtime_ns, s.st_size, s.st_ino) for path, s in stats.items()}

    def scan(self) -> dict[str, Listing]:
        """List every folder except our own notes; concurrently where the filesystem is slow."""
        tree: dict[str, Listing] = {}
        shared: dict[object, tuple[str, ...]] = {}
        level = [""]
        while level:
            below: list[str] = []
            for directory, (listing, folders) in zip(
                level, self.map(self._list, level), strict=True
            ):
                # stores of one operator often hold the same names: keep them once. A hash of all
                # names would take long where no two stores have the same
                names = listing.names
                key = (len(names), names[:1], names[-1:])
                if (same := shared.setdefault(key, names)) == names:
                    listing = replace(listing, names=same)
                else:
                    shared[key] = names  # the next is more often like this one
                tree[directory] = listing
                below += (f"{directory}/{name}" if directory else name for name in folders)
            level = [directory for directory in below if directory != NOTES]
        return tree

    def _list(self, directory: str) -> tuple[Listing, list[str]]:
        path = f"{self.root}/{directory}".rstrip("/")
        try:
            with plain_errors():
                return self._list_local(path) if self.local else self._list_remote(path)
        except MISSING:
            return Listing(()), []
        except Exception as error:
            raise self._refused("list", directory, error=error) from None

    def _list_local(self, path: str) -> tuple[Listing, list[str]]:
        folders, odd = [], {}
        others: list[os.DirEntry[str]] = []
        put_aside = others.append
        # nearly all are files with plain names: little is done for each of them
        with os.scandir(path) as entries:
            files = [
                entry.name
                for entry in entries
                if entry.is_file(follow_symlinks=False) or put_aside(entry)
            ]
        if not "".join(files).isascii():
            odd = {printable(name): _NO_UNICODE for name in files if _is_unprintable(name)}
            files = [name for name in files if not _is_unprintable(name)]
        for entry in others:
            if _is_unprintable(entry.name):
                odd[printable(entry.name)] = _NO_UNICODE
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif (why := _why_odd(entry, self.root)) is not None:
                odd[entry.name] = why
            else:
                files.append(entry.name)
        modified_ns = os.stat(path).st_mtime_ns  # noqa: PTH116
        return Listing(tuple(sorted(files)), modified_ns, odd=odd), sorted(folders)

    def _list_remote(self, path: str) -> tuple[Listing, list[str]]:
        files: dict[str, tuple[int, str]] = {}
        folders: list[str] = []
        for info in self.filesystem.ls(path, detail=True):
            name = posixpath.basename(info["name"].rstrip("/"))
            if info["name"].strip("/") == path.strip("/"):  # the folder's own mark
                continue
            if info["type"] == "directory":
                folders.append(name)
            else:
                size = int(info["size"] or 0)
                files[name] = (size, f"{size} {self.store.stamp(info)}")
        names = tuple(sorted(files))
        sizes = tuple(files[name][0] for name in names)
        stamps = tuple(files[name][1] for name in names)
        return Listing(names, None, sizes, stamps), sorted(folders)

    def ids(self, log: str) -> list[int]:
        """The batch ids in `offsets` or `commits`, ascending; temporary files are no batches."""
        ids = (parse_id(name) for name in self.names(log))
        return sorted(id_ for id_ in ids if id_ is not None)

    def _refused(self, verb: str, *parts: str, error: Exception) -> CheckpointError:
        where = posixpath.join(self.url, *parts)
        if isinstance(error, PermissionError):
            advice = "Run as the user that owns the checkpoint."
            if not self.local:
                advice = f"Check your credentials: the store says {why_not(error)!r}."
            return UnreachableError(f"No permission to {verb} {where}.", advice)
        problem = f"{where} cannot be {'read' if verb == 'read' else 'listed'}: {why_not(error)}."
        if self.local or getattr(error, "errno", None) == errno.EFBIG:
            advice = "Put the file back that was there, or move it away if it is not Spark's."
            return CheckpointError(problem, advice)
        return UnreachableError(problem, "Check the address and your credentials.")


def _is_unprintable(name: str) -> bool:
    return not name.isascii() and printable(name) != name


def _why_odd(entry: os.DirEntry[str], root: str) -> str | None:
    """What an entry is that is neither a file nor a folder; None if it is a link to a file here."""
    if not entry.is_symlink():
        return "it is neither a file nor a folder"
    if not os.path.exists(entry.path):  # noqa: PTH110
        return "it is a link that leads nowhere"
    if os.path.isdir(entry.path):  # noqa: PTH112
        return "it is a link to a folder"
    return None if is_inside(entry.path, root) else "it is a link to a file elsewhere"


def open_folder(location: str) -> Folder:
    """The folder at a path or fsspec URL, to read; it need not exist yet."""
    return Folder(*locate(location))
