"""S3, Google Cloud Storage and Azure: stores that write an object whole, and copy on their side."""

from __future__ import annotations

import errno
import time
from typing import Any

from fsspec.asyn import sync

from ebbtide.storage.meanings import http_status
from ebbtide.storage.stores import FileStore

_CONFLICTS = 6
_COPY_SECONDS = 3600


class ObjectStore(FileStore):
    """A store that has no folders and no rename, but a write with a condition."""

    creates_exclusively = True
    makes_folders = False
    renames = False

    def read_start(self, path: str, size: int) -> bytes:
        """The first bytes of an object, by one request."""
        try:
            content: bytes = self.filesystem.cat_file(path, start=0, end=size)
        except Exception as error:
            if http_status(error) == 416:  # an empty object has no range of bytes
                return b""
            raise
        return content

    def create(self, path: str, content: bytes, temporary: str) -> bool:  # noqa: ARG002
        """Write an object on condition that there is none."""
        for attempt in range(_CONFLICTS):
            created = self._create(path, content, last=attempt == _CONFLICTS - 1)
            if created is not None:
                return created
            time.sleep(0.1 * 2**attempt)
        raise AssertionError("the last attempt answers or raises")

    def _create(self, path: str, content: bytes, *, last: bool) -> bool | None:
        """Whether it was created; None if another one was just being written."""
        try:
            self.filesystem.pipe_file(path, content, mode="create")
        except Exception as error:
            status = http_status(error)
            if isinstance(error, FileExistsError) or status == 412:
                return False
            if status == 501:
                raise NotImplementedError("the server has no writes on a condition") from error
            if status == 409 and not last:  # S3: two conditional writes at the same time
                return None
            raise
        return True


class S3Store(ObjectStore):
    """S3 and what speaks its API. An ETag is a digest, but not of every object."""

    digests = ("ETag",)

    def remove_tree(self, path: str) -> None:
        """Remove all objects of a folder; what S3 says of single ones, its library ignores."""
        super().remove_tree(path)
        if left := self.filesystem.find(path):
            raise OSError(errno.EIO, f"{len(left)} objects in it were not removed")


class GcsStore(ObjectStore):
    """Google Cloud Storage."""

    digests = ("crc32c", "md5Hash")


class AzureStore(ObjectStore):
    """Azure Blob Storage and Data Lake Storage, which copies when it has time."""

    def copy(self, source: str, target: str) -> None:
        """Start a copy and wait until it is finished."""
        self.filesystem.cp_file(source, target)
        deadline, pause = time.monotonic() + _COPY_SECONDS, 0.05
        while (status := sync(self.filesystem.loop, self._copy_status, target)) == "pending":
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "the copy is not finished after an hour")
            time.sleep(pause)
            pause = min(5.0, pause * 2)
        if status not in (None, "success"):
            raise OSError(errno.EIO, f"the store says that the copy has {status}")
        self.require_same(source, target)

    async def _copy_status(self, path: str) -> str | None:
        container, name, _ = self.filesystem.split_path(path)
        async with self.filesystem.service_client.get_blob_client(container, name) as blob:
            properties: Any = await blob.get_blob_properties()
        return str(properties.copy.status) if properties.copy.status else None
