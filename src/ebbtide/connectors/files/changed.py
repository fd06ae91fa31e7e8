"""Which folder new code reads, and whether Spark goes on with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatch
from urllib.parse import unquote

from ebbtide.checkpoint import Checkpoint
from ebbtide.checks import PartVerdict
from ebbtide.connectors.streams import StreamRead
from ebbtide.errors import EbbtideError
from ebbtide.notes import INVALID
from ebbtide.parsing import parse_id, parse_json
from ebbtide.storage import open_folder

_SOURCE = re.compile(r"FileSource\[(.*)\]", re.DOTALL)


def recognize_folder(name: str) -> StreamRead | None:
    """The folder in Spark's name of a source of files.

    >>> str(recognize_folder("FileSource[/in]")), recognize_folder("kafka")
    ('files /in', None)
    """
    match = _SOURCE.fullmatch(name)
    return StreamRead("files", (match[1],), f"files {match[1]}") if match else None


def list_folders(checkpoint: Checkpoint, index: int) -> tuple[str, ...]:
    """The folders of the files that a source has read last, as Spark names them."""
    listing = checkpoint.tree.get(f"sources/{index}")
    ids = {
        id_: name
        for name in (listing.names if listing else ())
        if (id_ := parse_id(name.removesuffix(".compact"))) is not None
    }
    text = checkpoint.folder.read("sources", str(index), ids[max(ids)]) if ids else None
    folders: dict[str, None] = {}
    # a compacted log holds older batches too, before the newest
    for line in reversed((text or "").splitlines()[1:]):
        with suppress(*INVALID):
            entry = parse_json(line)
            if entry.get("batchId", max(ids)) != max(ids):
                break
            folders[unquote(str(entry["path"])).rsplit("/", 1)[0]] = None
    return tuple(folders)


def compare_folders(
    part: str, old: tuple[str, ...], new: StreamRead, others: Sequence[StreamRead]
) -> PartVerdict:
    """Whether Spark goes on: all files that it has read last must lie in the folder.

    >>> compare_folders("source 0", ("/a",), StreamRead("files", ("/b",)), ()).verdict
    'breaks'
    """
    if not old:
        return PartVerdict.compatible(part, f"{new}; the checkpoint lists no file")
    if _holds(new, old):
        if _is_root(new, old):
            return PartVerdict.same(part, str(new))
        detail = f"{new}; the files that were read last are in {old[0]}, and whether others of "
        return PartVerdict.compatible(part, f"{detail}it were read is not recorded")
    if any(_holds(other, old) for other in others):
        return PartVerdict.breaks(part, f"{old[0]} is another source now: the order has changed")
    outside = next(folder for folder in old if not _holds(new, (folder,)))
    detail = f"{outside} becomes {new.names[0]}, where files that were read last are not"
    return PartVerdict.breaks(part, detail)


def _is_root(source: StreamRead, folders: tuple[str, ...]) -> bool:
    """Whether the files lie directly in a source's folder."""
    return {_place(folder).rstrip("/") for folder in folders} == {_root(source)}


def _root(source: StreamRead) -> str:
    return _place(source.names[0]).rstrip("/") if source.names else ""


def _holds(source: StreamRead, folders: tuple[str, ...]) -> bool:
    root = _root(source)
    places = [_place(folder).rstrip("/") for folder in folders]
    return all(
        place == root or place.startswith(f"{root}/") or _lies_in(place, root) for place in places
    )


def _lies_in(place: str, pattern: str) -> bool:
    """Whether a folder is one of a pattern, in which the last part may name files."""
    patterns = (pattern, f"{pattern}/*", pattern.rpartition("/")[0])
    has_signs = any(sign in pattern for sign in "*?[{")
    return has_signs and any(fnmatch(place, each) for each in patterns)


def _place(path: str) -> str:
    """One spelling for each folder; a pattern stays one."""
    if any(sign in path for sign in "*?[{"):
        return re.sub(r"^file:/*", "/", path)
    with suppress(EbbtideError):
        return str(open_folder(path).address)
    return path
