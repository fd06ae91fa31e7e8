"""The position of a query in a folder of files: the list of those that it has read.

A checkpoint that begins there gets that list as entry 0 of the source's log, each file under a log
id that no batch reaches. Spark then takes the files for seen, and no batch reads them: of an entry
it reads only the files with the entry's own id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ebbtide.checkpoint import Checkpoint
from ebbtide.connectors.files.source import READ_BEFORE, list_log
from ebbtide.connectors.positions import SourcePosition, SourceStart
from ebbtide.errors import CheckpointError
from ebbtide.notes import INVALID, decode
from ebbtide.parsing import parse_json


def locate(start: SourceStart, kind: str) -> SourcePosition:
    """There is no option: a query knows the files that it has read by its checkpoint."""
    if start.offset is None:
        remark = "no file was read: a new query reads all that it finds"
        return SourcePosition(start.index, kind, None, remarks=(remark,), can_fork=True)
    remark = (
        "no option skips the files that were read; a checkpoint made by ebbtide fork "
        "--offsets-only lists them"
    )
    return SourcePosition(start.index, kind, start.offset, remarks=(remark,), can_fork=True)


def seed(start: SourceStart) -> Mapping[str, str]:
    """The list of all files that were read, as the first entry of a new log."""
    # before its first batch, a fork of a position has only the files that were read before
    last = -1 if start.offset is None else parse_json(start.offset)["logOffset"]
    read, later = read_seen(start.checkpoint, start.directory, last)
    if not read:
        return {}
    if twice := sorted(read.keys() & later):
        raise CheckpointError(
            f"{start.name} has read {twice[0]} before this batch and again after it: a new query "
            "would leave it out.",
            "Choose a later batch.",
        )
    # in this form, and in this order, as Spark writes them
    entries = [json.dumps(entry, separators=(",", ":")) for entry in read.values()]
    return {f"{start.directory}/0": "\n".join(["v1", *entries])}


def read_seen(
    checkpoint: Checkpoint, directory: str, last: int
) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """The files up to a log id, as entries of a new log, and the paths of later ones."""
    names, whole = list_log(checkpoint, directory)
    needed = range(max(whole, 0), last + 1)
    missing = next((id_ for id_ in needed if id_ not in names), None)
    if missing is not None:
        raise CheckpointError(
            f"{directory} of {checkpoint.location} has no entry {missing}: which files were read "
            "is not known.",
            "Restore it from a copy of the checkpoint.",
        )
    paths = [f"{directory}/{names[id_]}" for id_ in sorted(names) if id_ >= whole]
    texts = checkpoint.folder.read_all(paths)
    read: dict[str, dict[str, Any]] = {}
    later: set[str] = set()
    for path in paths:
        if path not in texts:
            raise CheckpointError(
                f"{checkpoint.location}/{path} has gone meanwhile: Spark has cleaned up.",
                "Try again.",
            )
        for line in filter(str.strip, texts[path].splitlines()[1:]):
            try:
                entry = parse_json(line)
                name, log_id = decode(str, entry["path"]), decode(int, entry["batchId"])
                decode(int, entry["timestamp"])
            except INVALID:
                raise CheckpointError(
                    f"{checkpoint.location}/{path} is no list of files: {line[:60]!r}.",
                    "Restore it from a copy of the checkpoint.",
                ) from None
            if last < log_id < READ_BEFORE:
                later.add(name)
            else:
                read[name] = {**entry, "batchId": READ_BEFORE}
    return read, later
