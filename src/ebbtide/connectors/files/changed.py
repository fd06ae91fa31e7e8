"""Which folder new code reads, and whether Spark goes on with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import unquote

from ebbtide.checkpoint import Checkpoint
from ebbtide.checks import MISBINDS, REFUSES, PartVerdict
from ebbtide.connectors.streams import LastRead, StreamRead
from ebbtide.errors import EbbtideError
from ebbtide.notes import INVALID
from ebbtide.parsing import parse_id, parse_json
from ebbtide.storage import open_folder

_SOURCE = re.compile(r"FileSource\[(.*)\]", re.DOTALL)
_SIGNS = "*?[]{}\\"
"""What makes a path a pattern, to Hadoop."""


def recognize_folder(name: str, options: Mapping[str, str]) -> StreamRead | None:
    """The folder in Spark's name of a source of files.

    >>> str(recognize_folder("FileSource[/in]", {})), recognize_folder("kafka", {})
    ('files /in', None)
    """
    match = _SOURCE.fullmatch(name)
    given = {option.lower(): value.lower() for option, value in options.items()}
    is_deep = given.get("recursivefilelookup") == "true"
    read = StreamRead("files", (match[1],), f"files {match[1]}") if match else None
    return replace(read, is_deep=is_deep) if read else None


def list_folders(checkpoint: Checkpoint, source: str) -> tuple[str, ...]:
    """The folders of the files that a source has listed last, as Spark names them."""
    listing = checkpoint.tree.get(f"sources/{source}")
    ids = {
        id_: name
        for name in (listing.names if listing else ())
        if (id_ := parse_id(name.removesuffix(".compact"))) is not None
    }
    text = checkpoint.folder.read("sources", source, ids[max(ids)]) if ids else None
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
    part: str, old: LastRead, new: StreamRead, others: Sequence[StreamRead]
) -> PartVerdict:
    """Whether Spark goes on: all files of the last batch must lie in the folder.

    Spark does not compare a pattern, nor anything after a batch that read no files.

    >>> compare_folders("source 0", LastRead(("/a",)), StreamRead("files", ("/b",)), ()).verdict
    'breaks'
    """
    if not old.is_whole:
        return PartVerdict.breaks(
            part, f"{new}; its log in the checkpoint does not list all files of the last batch"
        )
    folders = old.names
    if not folders:
        return PartVerdict.compatible(part, f"{new}; the checkpoint lists no file")
    if _holds(new, folders):
        return _judge_place(part, folders, new)
    is_compared = old.is_compared and not _is_pattern(_root(new))
    if any(_holds(other, folders) for other in others):
        detail = f"{folders[0]} is another source now: the order has changed"
        return PartVerdict.breaks(part, detail, REFUSES if is_compared else MISBINDS)
    outside = next(folder for folder in folders if not _holds(new, (folder,)))
    if not is_compared:
        detail = f"{outside} becomes {new.names[0]}, which is read from its first file on"
        return PartVerdict.compatible(part, detail)
    detail = f"{outside} becomes {new.names[0]}, where files that were read last are not"
    return PartVerdict.breaks(part, detail)


def _judge_place(part: str, folders: tuple[str, ...], new: StreamRead) -> PartVerdict:
    """Files that Spark finds in the folder; but does it still look where they are?"""
    if _is_root(new, folders):
        return PartVerdict.same(part, str(new))
    hidden = [folder for folder in folders if not _is_listed(new, _place(folder).rstrip("/"))]
    if hidden:
        detail = f"{new} is read without its subfolders, such as {hidden[0]}"
        option = ".option('recursiveFileLookup', 'true') reads them"
        return PartVerdict.breaks(part, detail, MISBINDS, option)
    detail = f"{new}; the files that were read last are in {folders[0]}, and whether others of "
    return PartVerdict.compatible(part, f"{detail}it were read is not recorded")


def _is_listed(source: StreamRead, place: str) -> bool:
    """Whether Spark lists a folder that lies in the source's: folders of partitions, or all."""
    root = _root(source)
    if source.is_deep or _is_pattern(root):
        return True
    return all("=" in name for name in place.removeprefix(root).split("/") if name)


def _is_root(source: StreamRead, folders: tuple[str, ...]) -> bool:
    """Whether the files lie directly in a source's folder."""
    return {_place(folder).rstrip("/") for folder in folders} == {_root(source)}


def _root(source: StreamRead) -> str:
    return _place(source.names[0]).rstrip("/") if source.names else ""


def _holds(source: StreamRead, folders: tuple[str, ...]) -> bool:
    root = _root(source)
    places = [_place(folder).rstrip("/") for folder in folders]
    return all(
        place == root
        or place.startswith(f"{root}/")
        or _lies_in(place, root, is_deep=source.is_deep)
        for place in places
    )


def _lies_in(place: str, pattern: str, *, is_deep: bool) -> bool:
    """Whether a folder is one of a pattern, in which the last part may name files.

    >>> [_lies_in(p, "/in/*", is_deep=False) for p in ("/in/a", "/in", "/in/a/b", "/in/a/day=1")]
    [True, True, False, True]
    """
    if not _is_pattern(pattern):
        return False
    below = r"(/.*)?" if is_deep else r"(/[^/]*=[^/]*)*"
    patterns = (pattern, pattern.rpartition("/")[0])
    return any(re.fullmatch(_translate(each) + below, place) for each in patterns)


def _translate(pattern: str) -> str:
    """A pattern of Hadoop's as a regular expression; one of other signs fits everything."""
    signs = {"*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
    text = "".join(signs.get(sign, re.escape(sign)) for sign in pattern)
    text = re.sub(r"\\\[([^/]*?)\\\]", lambda match: f"[{match[1]}]", text)
    try:
        re.compile(text)
    except re.error:
        return ".*"
    return text


def _is_pattern(path: str) -> bool:
    return any(sign in path for sign in _SIGNS)


def _place(path: str) -> str:
    """One spelling for each folder; a pattern stays one."""
    if _is_pattern(path):
        return re.sub(r"^file:/*", "/", path)
    with suppress(EbbtideError):
        return str(open_folder(path).address)
    return path
