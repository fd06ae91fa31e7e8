"""What the adapters do where no server shows it: errors, bad copies, unknown times."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import aiohttp
import botocore.exceptions
import gcsfs.retry
import pytest
import requests
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.blob.aio import BlobClient
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.memory import MemoryFileSystem
from multidict import CIMultiDict, CIMultiDictProxy
from pyarrow.fs import LocalFileSystem  # type: ignore[import-untyped]
from s3fs.errors import translate_boto_error
from yarl import URL

from ebbtide.checkpoint import read_checkpoint
from ebbtide.checks import OK, REFUSE, WARN
from ebbtide.errors import CheckpointError, StorageError
from ebbtide.rewind import lease
from ebbtide.storage import Folder, WritableFolder, open_folder, open_writable
from ebbtide.storage.meanings import plain_errors
from ebbtide.storage.object_stores import AzureStore, S3Store
from ebbtide.storage.webhdfs import StandbyError, _raise_for_answer
from tests.trees import Shape, make


def of_boto(code: str, status: int) -> botocore.exceptions.ClientError:
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(answer, "PutObject")


def of_azure(kind: type[HttpResponseError], status: int) -> HttpResponseError:
    error = kind("The answer.\nRequestId:1")
    error.status_code = status
    return error


def of_requests(status: int) -> requests.HTTPError:
    answer = requests.Response()
    answer.status_code = status
    return requests.HTTPError("an answer", response=answer)


def of_aiohttp(status: int) -> aiohttp.ClientResponseError:
    url = URL("https://storage.googleapis.com/b/o")
    asked = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict()), url)
    return aiohttp.ClientResponseError(asked, (), status=status)


@pytest.mark.parametrize("first", ["[1]", "c[1]", "a:b", ":b", "x]", "a@b"])
def test_a_first_folder_in_azure_has_any_name(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    account = "ours.dfs.core.windows.net"
    use_settings = {f"fs.azure.account.key.{account}": "YQ=="}
    monkeypatch.setattr("ebbtide.storage.options.hadoop_settings", lambda: use_settings)
    folder = open_writable(f"abfss://data@{account}/{first}/c")
    written = []

    async def upload(blob: BlobClient, data: bytes, **_: Any) -> None:
        written.append((blob.container_name, blob.blob_name, data))

    monkeypatch.setattr(BlobClient, "upload_blob", upload)
    folder.write("offsets/1", "v1")
    assert folder.create("offsets/2", "v1")
    assert written == [("data", f"{first}/c/offsets/{n}", b"v1") for n in (1, 2)]


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (of_boto("NoSuchKey", 404), FileNotFoundError),
        (of_boto("AccessDenied", 403), PermissionError),
        (translate_boto_error(of_boto("PreconditionFailed", 412)), FileExistsError),
        (of_azure(ResourceNotFoundError, 404), FileNotFoundError),
        (of_azure(HttpResponseError, 403), PermissionError),
        (gcsfs.retry.HttpError({"code": 401, "message": "Invalid Credentials"}), PermissionError),
        (OSError("Forbidden: https://storage.googleapis.com/b/o"), PermissionError),
        (of_requests(404), FileNotFoundError),
        (of_requests(401), PermissionError),
        (of_aiohttp(403), PermissionError),
        (of_boto("SlowDown", 503), botocore.exceptions.ClientError),
        (botocore.exceptions.NoCredentialsError(), botocore.exceptions.NoCredentialsError),
    ],
)
def test_errors_of_the_libraries_mean_what_python_s_own_say(
    error: Exception, meaning: type[Exception]
) -> None:
    with pytest.raises(meaning), plain_errors():
        raise error


class S3Like(MemoryFileSystem):  # type: ignore[misc]
    """Answers conditional writes as S3 does, with a list of errors first."""

    cachable = False

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    def pipe_file(self, path: str, value: bytes, mode: str = "create", **_: Any) -> None:
        if self.errors:
            raise self.errors.pop(0)
        super().pipe_file(path, value, mode)


def test_two_conditional_writes_at_the_same_time_are_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    conflict = translate_boto_error(of_boto("ConditionalRequestConflict", 409))
    exists = translate_boto_error(of_boto("PreconditionFailed", 412))
    assert S3Store(S3Like(conflict, conflict)).create("/s3like/a", b"1", "")
    assert not S3Store(S3Like(conflict, exists)).create("/s3like/b", b"1", "")
    with pytest.raises(OSError, match="ConditionalRequestConflict"):
        S3Store(S3Like(*[conflict] * 9)).create("/s3like/c", b"1", "")


def test_a_server_without_conditions_needs_a_word_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = WritableFolder("s3://s3like/c", S3Like(), "/s3like/c")
    monkeypatch.setattr(WritableFolder, "store", property(lambda self: S3Store(self.filesystem)))
    unknown = translate_boto_error(of_boto("NotImplemented", 501))
    folder.filesystem.errors = [unknown]
    with pytest.raises(CheckpointError, match=r"on condition .* add --assume-stopped"):
        with lease.hold_lease(folder, lease.CHANGE):
            pass
    folder.filesystem.errors = [unknown]
    with lease.hold_lease(folder, lease.CHANGE, assume_stopped=True):
        assert "1.json" in folder.names(".ebbtide", "leases")


class Keeps(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem that says nothing of files that it did not remove, as s3fs does."""

    cachable = False

    def rm(self, path: str, recursive: bool = False, **_: Any) -> None:
        if not path.endswith("/locked"):
            super().rm(path, recursive=recursive)


def test_objects_that_are_not_removed_are_counted() -> None:
    filesystem = Keeps()
    for name in ("locked/a", "locked/b", "free/a"):
        filesystem.pipe_file(f"/keeps/{name}", b"1")
    S3Store(filesystem).remove_tree("/keeps/free")
    with pytest.raises(OSError, match="2 objects in it were not removed"):
        S3Store(filesystem).remove_tree("/keeps/locked")


class HalfCopies(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem whose copies are of the right size, and wrong."""

    cachable = False

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        content = self.cat_file(path1)
        self.pipe_file(path2, content[: len(content) // 2].ljust(len(content), b"\0"))


def test_a_file_whose_copy_is_not_the_same_is_not_removed() -> None:
    folder = WritableFolder("memory://half", HalfCopies(), "/half")
    folder.write("a", "content")
    with pytest.raises(StorageError, match="a cannot be moved: the copy is not the same"):
        folder.move("a", "b")
    assert folder.read("a") == "content"
    with pytest.raises(StorageError, match="a cannot be copied: the copy is not the same"):
        folder.link("a", "b")


class ShortWrites(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem that loses the end of what is written piece by piece."""

    cachable = False

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().info(path, **options)
        return {**found, "size": found["size"] - 1}


def test_a_copy_to_another_store_has_the_size_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    folder = WritableFolder("memory://short", ShortWrites(), "/short")
    with pytest.raises(StorageError, match="a cannot be copied: the copy is not the same"):
        folder.link("a", "a", of=open_folder(str(tmp_path)))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Copying:
    """The state of a copy as Azure reports it, one after the other: Azurite is never pending."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *states: str) -> None:
        self.loop, self.states, self.asked = loop, list(states), 0
        self.service_client = SimpleNamespace(get_blob_client=lambda *_: self)

    async def __aenter__(self) -> Copying:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get_blob_properties(self) -> Any:
        self.asked += 1
        return SimpleNamespace(copy=SimpleNamespace(status=self.states.pop(0)))

    def split_path(self, path: str) -> tuple[str, str, None]:
        container, _, name = path.partition("/")
        return container, name, None

    def cp_file(self, source: str, target: str) -> None: ...

    def info(self, _path: str) -> dict[str, Any]:
        return {"size": 1}

    def open(self, _path: str, _mode: str = "rb") -> Any:
        import io

        return io.BytesIO(b"x")


def test_a_copy_of_azure_is_waited_for(loop: asyncio.AbstractEventLoop) -> None:
    copying = Copying(loop, "pending", "pending", "success")
    AzureStore(copying).copy("c/a", "c/b")
    assert copying.asked == 3
    with pytest.raises(OSError, match="the copy has failed"):
        AzureStore(Copying(loop, "pending", "failed")).copy("c/a", "c/b")


class Untimed(ArrowFSWrapper):  # type: ignore[misc]
    """A filesystem that does not say when a file was written."""

    cachable = False

    def _make_entry(self, info: Any) -> dict[str, Any]:
        return {**super()._make_entry(info), "mtime": None, "created": 0.0}


def test_an_unknown_time_of_writing_is_not_long_ago(tmp_path: Path) -> None:
    path = make(tmp_path / "c", Shape(batches=3))
    logs = read_checkpoint(str(path)).logs
    folder = Folder(str(path), Untimed(LocalFileSystem()), str(path))
    refused = lease.check_running(folder, logs, assume_stopped=False)
    assert (refused.verdict, "does not say when" in refused.detail) == (REFUSE, True)
    assert lease.check_running(folder, logs, assume_stopped=True).verdict == WARN
    timed = Folder(str(path), ArrowFSWrapper(LocalFileSystem()), str(path))
    assert lease.check_running(timed, logs, assume_stopped=False).verdict != OK


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("FileNotFoundException", FileNotFoundError),
        ("AccessControlException", PermissionError),
        ("StandbyException", StandbyError),
        ("SafeModeException", OSError),
    ],
)
def test_what_a_name_node_says_is_raised(name: str, meaning: type[Exception]) -> None:
    answer = requests.Response()
    answer.status_code = 403
    answer._content = (
        f'{{"RemoteException": {{"exception": "{name}", "message": "what\\nhappened"}}}}'.encode()
    )
    with pytest.raises(meaning, match=r"what$"):
        _raise_for_answer(answer)


@pytest.mark.parametrize("name", ["c[1]", "c?", "c*"])
def test_a_folder_is_removed_by_its_very_name(name: str, tmp_path: Path) -> None:
    """To fsspec, these are patterns: the neighbour must not be removed with it."""
    for place in (f"memory://{uuid4().hex}", str(tmp_path)):
        folder, other = open_writable(f"{place}/{name}"), open_writable(f"{place}/c1")
        for one in (folder, other):
            one.write("state/0/1.delta", "text")
            one.write("state/metadata", "text")
        folder.remove_tree("state/0")
        assert (folder.exists("state/0"), folder.read("state/metadata")) == (False, "text")
        folder.remove_tree("state/metadata")
        folder.remove_tree("state")
        assert not folder.exists("state")
        assert other.read("state/0/1.delta") == other.read("state/metadata") == "text"


def test_the_library_of_google_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a handler, Python prints what it logs: a traceback for each error."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    monkeypatch.setattr(logging.getLogger("gcsfs"), "handlers", [])
    open_folder("gs://bucket/c")
    assert logging.getLogger("gcsfs").handlers
