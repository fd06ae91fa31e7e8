"""A checkpoint's location in, its files out, on any filesystem that fsspec knows."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ebbtide.config import write_whole
from ebbtide.errors import UsageError

NOTES = ".ebbtide"
"""Our own folder inside a checkpoint; Spark does not look at it."""
PARTS = ("metadata", "offsets", "commits", "sources", "state")
"""What Spark puts into a checkpoint."""


@dataclass(frozen=True)
class Folder:
    """One checkpoint's folder."""

    url: str
    filesystem: Any
    root: str

    @property
    def local(self) -> bool:
        """Whether it lies on this machine's disk."""
        return isinstance(self.filesystem, LocalFileSystem)

    def path(self, *parts: str) -> str:
        """The filesystem's path of a file in the checkpoint."""
        return posixpath.join(self.root, *parts)

    def read(self, *parts: str) -> str | None:
        """A file's text; None if it is not there."""
        try:
            content: bytes = self.filesystem.cat_file(self.path(*parts))
        except FileNotFoundError:
            return None
        return content.decode("utf-8", errors="replace")

    def names(self, *parts: str) -> list[str]:
        """The names in a folder, sorted; none if it is not there."""
        try:
            found = self.filesystem.ls(self.path(*parts), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(posixpath.basename(path.rstrip("/")) for path in found)

    def ids(self, log: str) -> list[int]:
        """The batch ids in `offsets` or `commits`, ascending; temporary files are no batches."""
        return sorted(int(name) for name in self.names(log) if name.isdigit())

    def read_note(self, name: str) -> dict[str, Any] | None:
        """One of our own notes in the checkpoint; None if it was never written."""
        text = self.read(NOTES, name)
        return None if text is None else json.loads(text)

    def write_note(self, name: str, note: dict[str, Any]) -> None:
        """Write one of our own notes, whole."""
        text = json.dumps(note)
        self.filesystem.makedirs(self.path(NOTES), exist_ok=True)
        if self.local:
            write_whole(Path(self.path(NOTES, name)), text)
        else:
            self.filesystem.pipe_file(self.path(NOTES, name), text.encode())

    def remove_note(self, name: str) -> None:
        """Remove one of our own notes, if it is there."""
        if self.filesystem.exists(self.path(NOTES, name)):
            self.filesystem.rm_file(self.path(NOTES, name))


def open_folder(location: str) -> Folder:
    """The folder at a path or fsspec URL; it need not exist yet."""
    try:
        filesystem, root = fsspec.core.url_to_fs(location)
    except (ValueError, ImportError) as error:
        raise UsageError(
            f"{location} cannot be opened: {error}.", "Use a path, or a URL such as s3://…"
        ) from None
    return Folder(location, filesystem, str(root).rstrip("/"))
