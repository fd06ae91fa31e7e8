"""Read and write our own files in a checkpoint, all of them in its folder `.ebbtide`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from ebbtide.errors import CheckpointError
from ebbtide.storage import NOTES, Folder, WritableFolder

Parsed = TypeVar("Parsed")


def note_path(name: str) -> str:
    """The path of a note in a checkpoint; refuse one outside of our own folder.

    >>> note_path("lease.json")
    '.ebbtide/lease.json'
    >>> note_path("../offsets/5")
    Traceback (most recent call last):
    ValueError: ../offsets/5 is not in .ebbtide
    """
    if not name or ".." in name.split("/"):
        raise ValueError(f"{name} is not in {NOTES}")
    return f"{NOTES}/{name}"


def read_note(folder: Folder, name: str) -> dict[str, Any] | None:
    """A note; None if it was never written. Refuse one that is damaged."""
    return parse_note(folder, name, lambda note: note)


def parse_note(
    folder: Folder, name: str, parse: Callable[[dict[str, Any]], Parsed]
) -> Parsed | None:
    """What a note holds; None if it was never written. Refuse one that `parse` cannot read."""
    path = note_path(name)
    text = folder.read(path)
    if text is None:
        return None
    try:
        note = json.loads(text)
        if not isinstance(note, dict):
            raise TypeError(name)
        return parse(note)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(
            f"{folder.path(path)} is damaged.", "Restore it from a copy of the checkpoint."
        ) from None


def read_lines(folder: Folder, name: str) -> tuple[Mapping[str, Any], ...]:
    """The objects of a note with one object per line, oldest first."""
    return tuple(parse_lines(folder.read(note_path(name)) or ""))


def parse_lines(text: str) -> Iterator[Mapping[str, Any]]:
    r"""The objects of a log with one object per line; a truncated line is left out.

    >>> list(parse_lines('{"at": 1}\n{"at"'))
    [{'at': 1}]
    """
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            if isinstance(value := json.loads(line), dict):
                yield value


def write_note(folder: Folder, name: str, note: Mapping[str, Any]) -> None:
    """Write a note as JSON, atomically."""
    write_text(folder, name, json.dumps(note))


def write_text(folder: Folder, name: str, text: str) -> None:
    """Write a note as it is, atomically."""
    _writable(folder).write(note_path(name), text)


def remove_note(folder: Folder, name: str) -> None:
    """Remove a note, if it is there."""
    with suppress(FileNotFoundError):
        _writable(folder).remove(note_path(name))


def _writable(folder: Folder) -> WritableFolder:
    if isinstance(folder, WritableFolder):
        return folder
    return WritableFolder(folder.url, folder.filesystem, folder.root, folder.made)
