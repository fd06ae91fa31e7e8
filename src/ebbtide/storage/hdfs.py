"""HDFS through WebHDFS: renames on the name node are atomic, with or without replacing a file."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ebbtide.storage.stores import FileStore


class WebHdfsStore(FileStore):
    """HDFS through the HTTP API of its name node, or through HttpFS."""

    creates_exclusively = True
    renames = True

    def modified(self, info: Mapping[str, Any]) -> float | None:
        """HDFS counts milliseconds."""
        milliseconds = info.get("modificationTime")
        return milliseconds / 1000 if milliseconds else None

    def create(self, path: str, content: bytes, temporary: str) -> bool:
        """Write it whole elsewhere, then rename it, which never replaces a file."""
        if self.is_there(path):
            return False
        self.write(temporary, content)
        try:
            if self._rename(temporary, path):
                return True
            if self.is_there(path):
                return False
            raise OSError(errno.EIO, "the name node did not rename it")
        finally:
            with suppress(Exception):
                self.filesystem.rm_file(temporary)

    def rename(self, source: str, target: str) -> None:
        """Rename a file over another, in one step."""
        if not self._rename(source, target, renameoptions="OVERWRITE"):
            super().rename(source, target)  # HttpFS does not know the option

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all in it, in one step."""
        self.filesystem.rm(path, recursive=True)

    def _rename(self, source: str, target: str, **options: str) -> bool:
        answer = self.filesystem._call(
            "RENAME", method="put", path=source, destination=target, **options
        )
        return not answer.content or bool(answer.json().get("boolean"))
