"""Stores of objects and HDFS in memory, as the libraries of fsspec show them."""

from __future__ import annotations

import errno
import hashlib
import io
import posixpath
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, BinaryIO

from tests.simulation.faults import Faults
from tests.simulation.world import World

Changed = Callable[[str, "bytes | None"], None]


@cache
def _digest(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@dataclass(slots=True)
class Stored:
    """A file, written whole."""

    content: bytes
    modified: float


class _Writing(io.BytesIO):
    """A file that is being written; it is there when it is closed."""

    def __init__(self, close: Callable[[bytes], None]) -> None:
        super().__init__()
        self._close = close

    def __exit__(self, *raised: Any) -> None:
        if raised[0] is None:
            self._close(self.getvalue())


class ObjectFiles:
    """What all of these filesystems share: names and contents, and requests that can fail."""

    protocol: str
    digest: str | None = None
    removes_missing = True
    """Whether to remove what is not there is no error."""

    def __init__(self, world: World, faults: Faults, changed: Changed) -> None:
        self.files: dict[str, Stored] = {}
        self._inside: dict[str, dict[str, bool]] = {}
        """By folder, the names in it, and which of them are folders."""
        self.world, self.faults, self._changed = world, faults, changed

    def unstrip_protocol(self, path: str) -> str:
        """The URL."""
        return f"{self.protocol}://{path}"

    def load(self, files: dict[str, bytes], modified: float) -> None:
        """Put files there that were there long ago."""
        for path, content in files.items():
            self._store(path, Stored(content, modified))

    def put(self, path: str, content: bytes) -> None:
        """Write one."""
        self._store(path, Stored(content, self.world.now))
        self._changed(path, content)

    def _store(self, path: str, one: Stored) -> None:
        at, is_folder = path, False
        if path not in self.files:
            while at:
                parent, _, name = at.rpartition("/")
                names = self._inside.setdefault(parent, {})
                is_known = bool(names)
                names[name] = is_folder
                if is_known:
                    break
                at, is_folder = parent, True
        self.files[path] = one

    def _forget(self, path: str) -> Stored | None:
        one = self.files.pop(path, None)
        while one is not None and path:
            parent, _, name = path.rpartition("/")
            names = self._inside[parent]
            del names[name]
            if names:
                break
            path = parent
        return one

    def drop(self, path: str) -> None:
        """Remove one."""
        if self._forget(path) is not None:
            self._changed(path, None)
        elif not self.removes_missing:
            raise FileNotFoundError(errno.ENOENT, "there is none", path)

    def _get(self, path: str) -> Stored:
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "there is none", path) from None

    def _do(self, what: str, path: str, effect: Callable[[], Any], changes: bool = False) -> Any:
        return self.faults.operate(f"{what} {path}", effect, changes=changes)

    def info(self, path: str) -> dict[str, Any]:
        """Its size, its time, its digest."""
        return self._do("info", path, lambda: self._info(path))  # type: ignore[no-any-return]

    def _info(self, path: str) -> dict[str, Any]:
        if path not in self.files and self._inside.get(path):
            return {"name": path, "size": 0, "type": "directory"}
        return self._describe(path, self._get(path))

    def _describe(self, path: str, one: Stored) -> dict[str, Any]:
        found = {
            "name": path,
            "size": len(one.content),
            "type": "file",
            "modified": one.modified,
            "modificationTime": one.modified * 1000,
        }
        if self.digest:
            found[self.digest] = _digest(one.content)
        return found

    def ls(self, path: str, detail: bool = True) -> list[Any]:
        """What is in a folder."""
        return self._do("list", path, lambda: self._list(path, detail=detail))  # type: ignore[no-any-return]

    def _list(self, path: str, *, detail: bool) -> list[Any]:
        names = self._inside.get(path)
        if not names:
            raise FileNotFoundError(errno.ENOENT, "there is none", path)
        paths = [f"{path}/{name}" for name in names]
        if not detail:
            return paths
        return [
            {"name": one, "size": 0, "type": "directory"}
            if is_folder
            else self._describe(one, self.files[one])
            for one, is_folder in zip(paths, names.values(), strict=True)
        ]

    def find(self, path: str) -> list[str]:
        """All files below a folder."""
        return self._do("find", path, lambda: self._below(path))  # type: ignore[no-any-return]

    def _below(self, path: str) -> list[str]:
        return sorted(name for name in self.files if name == path or name.startswith(f"{path}/"))

    def cat_file(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """A part of its content."""
        return self._do("read", path, lambda: self._get(path).content[start:end])  # type: ignore[no-any-return]

    def open(self, path: str, mode: str = "rb") -> BinaryIO:
        """Read it as a stream, or write it."""
        if mode == "wb":
            return _Writing(lambda content: self.pipe_file(path, content))
        return io.BytesIO(self.cat_file(path))

    def pipe_file(self, path: str, content: bytes, mode: str = "overwrite") -> None:
        """Write it whole, maybe on condition that there is none."""

        def effect() -> None:
            if mode == "create" and path in self.files:
                raise FileExistsError(errno.EEXIST, "there is one", path)
            self.put(path, content)

        self._do("create" if mode == "create" else "write", path, effect, changes=True)

    def cp_file(self, source: str, target: str) -> None:
        """Copy it on the side of the store."""
        self._do(
            "copy",
            f"{source} to {target}",
            lambda: self.put(target, self._get(source).content),
            changes=True,
        )

    def rm_file(self, path: str) -> None:
        """Remove it."""
        self._do("remove", path, lambda: self.drop(path), changes=True)

    def rm(self, path: str, recursive: bool = False) -> None:
        """Remove all below a folder, one by one; what fails there is not said."""
        assert recursive
        for one in self.find(path):
            with suppress(OSError):
                self.rm_file(one)


class S3Files(ObjectFiles):
    """As s3fs has it."""

    protocol, digest = "s3", "ETag"


class GcsFiles(ObjectFiles):
    """As gcsfs has it."""

    protocol, digest, removes_missing = "gs", "md5Hash", False

    def rm(self, path: str, recursive: bool = False) -> None:
        """Remove all below a folder, and say what failed."""
        assert recursive
        failures = []
        for one in self.find(path):
            try:
                with suppress(FileNotFoundError):
                    self.rm_file(one)
            except OSError as error:  # noqa: PERF203
                failures.append(error)
        if failures:
            raise failures[0]


class AzureFiles(GcsFiles):
    """As adlfs has it: a copy goes on after the answer."""

    protocol, digest = "abfs", None  # type: ignore[assignment]

    def __init__(self, world: World, faults: Faults, changed: Changed) -> None:
        super().__init__(world, faults, changed)
        self.loop = None
        self.service_client = self
        self._pending: dict[str, tuple[float, str, bytes]] = {}

    def cp_file(self, source: str, target: str) -> None:
        """Begin a copy: until it is done, the new file is there and empty."""

        def effect() -> None:
            content = self._get(source).content
            if self.world.random.random() < 0.7:
                self.put(target, content)
                return
            self.put(target, b"")
            self._pending[target] = (self.world.now + 0.2, source, content)

        self._do("copy", f"{source} to {target}", effect, changes=True)

    def _do(self, what: str, path: str, effect: Callable[[], Any], changes: bool = False) -> Any:
        def after_copies() -> Any:
            now = self.world.now
            for at in [at for at, (when, *_) in self._pending.items() if now >= when]:
                _, source, content = self._pending.pop(at)
                if at in self.files and source in self.files:  # else the copy fails
                    self.put(at, content)
            return effect()

        return super()._do(what, path, after_copies if self._pending else effect, changes)

    def split_path(self, path: str) -> tuple[str, str, None]:
        """The container, and the name in it."""
        container, _, name = path.partition("/")
        return container, name, None

    def get_blob_client(self, container: str, name: str) -> Any:
        """To ask how far a copy is."""
        return _Blob(self, f"{container}/{name}")


class _Blob:
    def __init__(self, files: AzureFiles, path: str) -> None:
        self._files, self._path = files, path

    async def __aenter__(self) -> _Blob:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get_blob_properties(self) -> Any:
        files, path = self._files, self._path

        def effect() -> Any:
            files._get(path)
            status = "pending" if path in files._pending else "success"
            return SimpleNamespace(copy=SimpleNamespace(status=status))

        return files._do("copy status", path, effect)


def run_now(_loop: object, function: Callable[..., Any], *arguments: Any) -> Any:
    """`fsspec.asyn.sync` for a coroutine that never waits."""
    try:
        function(*arguments).send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class HdfsFiles(ObjectFiles):
    """As WebHDFS has it: a write is seen empty first; a rename may replace, or not."""

    protocol = "webhdfs"
    overwrites = True

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Folders need nothing here."""
        self._do("make folder", path, lambda: None)

    def pipe_file(self, path: str, content: bytes, mode: str = "overwrite") -> None:
        """Create it empty, then send the content to a data node."""
        self._do("write", path, lambda: self.put(path, b""), changes=True)
        self._do("append", path, lambda: self.put(path, content), changes=True)

    def cp_file(self, source: str, target: str) -> None:
        """There is no copy: read it, write it under another name, rename that."""
        content = self.cat_file(source)
        temporary = f"{posixpath.dirname(target)}/.tmp.{self.world.random.getrandbits(64):x}"
        self.pipe_file(temporary, content)
        self._call("RENAME", method="put", path=temporary, destination=target)

    def mv(self, source: str, target: str) -> None:
        """Rename it; what the name node answers is ignored."""
        self._call("RENAME", method="put", path=source, destination=target)

    def rm(self, path: str, recursive: bool = False) -> None:
        """Remove a folder in one step."""

        def effect() -> None:
            for one in self._below(path):
                self.drop(one)

        self._do("remove tree", path, effect, changes=True)

    def _call(
        self, op: str, *, method: str, path: str, destination: str, renameoptions: str = ""
    ) -> Any:
        assert (op, method) == ("RENAME", "put")
        replaces = renameoptions == "OVERWRITE" and self.overwrites

        def effect() -> Any:
            if path not in self.files and replaces:
                raise FileNotFoundError(errno.ENOENT, "there is none", path)
            if path not in self.files or (destination in self.files and not replaces):
                return SimpleNamespace(content=b"{}", json=lambda: {"boolean": False})
            one = self._forget(path)
            assert one is not None
            self._store(destination, one)
            self._changed(destination, one.content)
            self._changed(path, None)
            if replaces:
                return SimpleNamespace(content=b"")
            return SimpleNamespace(content=b"{}", json=lambda: {"boolean": True})

        what = "rename over" if renameoptions else "rename"
        return self._do(what, f"{path} to {destination}", effect, changes=True)


class HttpFsFiles(HdfsFiles):
    """As HttpFS has it, which does not know the option to replace."""

    overwrites = False
