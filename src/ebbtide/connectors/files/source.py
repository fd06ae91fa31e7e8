"""Files as a source: whether the files that are read again are still there, unchanged.

Spark lists the files of a folder in `sources/<i>/K`, and every tenth time, with all before, in
`K.compact`. K is no batch id: a batch's offset names the K up to which it has read. The log stays
as it is in a rewind: Spark would not find again what has aged, and not start if an entry is gone.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ebbtide.checkpoint import Checkpoint, log_files
from ebbtide.checks import Check, CheckKind, PartVerdict
from ebbtide.config import Settings
from ebbtide.connectors.base import SourceConnector, SourceRange, SourceReplay, SourceVerdict
from ebbtide.connectors.files.changed import compare_folders, list_folders, recognize_folder
from ebbtide.connectors.positions import SourcePosition, SourceStart
from ebbtide.connectors.streams import LastRead, SourceLog, StreamRead
from ebbtide.errors import EbbtideError
from ebbtide.notes import INVALID, decode
from ebbtide.parsing import parse_id, parse_json
from ebbtide.pipeline import Files
from ebbtide.storage import Folder, open_folder

_COMPACT = ".compact"
READ_BEFORE = 1 << 62
"""The log id of files that were read before the query began: no batch ever gets as far."""
_SHOWN = 3


class FilesSource(SourceConnector[Files]):
    """A folder whose files a query reads."""

    def owns(self, offset: Any) -> bool:
        return (
            isinstance(offset, dict)
            and set(offset) == {"logOffset"}
            and log_files.is_number(offset["logOffset"])
        )

    def recognize(self, name: str, options: Mapping[str, str]) -> StreamRead | None:
        return recognize_folder(name, options)

    def list_read(self, log: SourceLog) -> LastRead:
        newest = list_folders(log.checkpoint, log.name)
        try:
            after, read = (
                -1 if text is None else int(parse_json(text)["logOffset"])
                for text in (log.start, log.end)
            )
        except INVALID:
            return LastRead(newest, is_compared=False)
        listed = read_listed(log.checkpoint, log.name, after, read)
        if listed is None or (read >= 0 and f"sources/{log.name}" not in log.checkpoint.tree):
            return LastRead(newest, is_whole=False)
        # when a query goes on, Spark opens the files of the last batch once more
        folders = dict.fromkeys(file.path.rsplit("/", 1)[0] for file in listed)
        return LastRead(tuple(folders)) if folders else LastRead(newest, is_compared=False)

    def compare_read(
        self, part: str, old: LastRead, new: StreamRead, others: Sequence[StreamRead]
    ) -> PartVerdict:
        return compare_folders(part, old, new, others)

    def format_offset(self, offset: Any) -> str:
        return f"files {offset['logOffset']}"

    def describe(
        self, source: Files, settings: Settings, folder: Folder, before: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {"kind": source.kind, "path": source.location}

    def location(self, source: Files, settings: Settings) -> str | None:
        return source.location

    def locate(self, start: SourceStart, kind: str) -> SourcePosition:
        from ebbtide.connectors.files.position import locate

        return locate(start, kind)

    def seed(self, start: SourceStart) -> Mapping[str, str]:
        from ebbtide.connectors.files.position import seed

        return seed(start)

    def check(self, replay: SourceReplay) -> SourceVerdict:
        path = replay.note.get("path")
        checks = (check_files(replay.checkpoint, read, path) for read in replay.ranges)
        return SourceVerdict(tuple(checks))


@dataclass(frozen=True)
class ListedFile:
    """A file that Spark has listed."""

    path: str
    """Its path or URL, as a filesystem takes it."""
    modified_ms: int
    log_id: int

    @classmethod
    def parse(cls, line: str) -> ListedFile:
        """Read a line of the log.

        >>> ListedFile.parse('{"path":"file:///in/a%20b.json","timestamp":7,"batchId":2}')
        ListedFile(path='file:///in/a b.json', modified_ms=7, log_id=2)
        """
        entry = parse_json(line)
        written, log_id = (decode(int, entry[name]) for name in ("timestamp", "batchId"))
        return cls(unquote(decode(str, entry["path"])), written, log_id)


def read_listed(
    checkpoint: Checkpoint, name: int | str, after: int, read: int
) -> tuple[ListedFile, ...] | None:
    """The files that a source has listed under higher ids; None if its log is not complete.

    `read` is the id up to which the query has read: the log may be one ahead of it.
    """
    directory = f"sources/{name}"
    names, whole = list_log(checkpoint, directory)
    newer = sorted(id_ for id_ in names if id_ > max(after, whole))
    if max((read, *names)) - max(after, whole) != len(newer):
        return None
    ids = {*newer, *(id_ for id_ in names if after < id_ <= whole)}
    texts = checkpoint.folder.read_all([f"{directory}/{names[id_]}" for id_ in sorted(ids)])
    lines = {line for text in texts.values() for line in text.splitlines()[1:] if line.strip()}
    try:
        files = {
            file for line in lines if after < (file := ListedFile.parse(line)).log_id < READ_BEFORE
        }
    except (ValueError, KeyError, TypeError):
        return None
    return tuple(sorted(files, key=lambda file: (file.log_id, file.modified_ms, file.path)))


def list_log(checkpoint: Checkpoint, directory: str) -> tuple[dict[int, str], int]:
    """The entries of a source's log by id, and the newest that repeats all before it (or -1)."""
    listing = checkpoint.tree.get(directory)
    names = {
        id_: name
        for name in (listing.names if listing else ())
        if (id_ := parse_id(name.removesuffix(_COMPACT))) is not None
    }
    # an entry that Spark has cleaned up stands in every compacted one after it
    return names, max((id_ for id_, name in names.items() if name.endswith(_COMPACT)), default=-1)


def check_files(checkpoint: Checkpoint, range_: SourceRange, path: str | None) -> Check:
    """Whether the files are there, unchanged; `path` is the source's folder, if it is known."""
    index, ends = range_.index, (range_.start, range_.end)
    after, read = (-1 if text is None else parse_json(text)["logOffset"] for text in ends)
    listed = read_listed(checkpoint, index, after, read)
    if listed is None and checkpoint.logs.batches[-1].offsets.version != "v1":
        # from Spark 4.2 on a source may have a name, and its folder, too
        return _unseen(f"sources/{index} does not list them")
    if listed is None:
        return CheckKind.FILE_SOURCE.refuse(
            f"sources/{index} does not list all files after entry {after}",
            "Put it back from a copy of the checkpoint: Spark does not start without.",
        )
    try:
        gone, changed = _compare(listed)
    except (EbbtideError, OSError, ValueError) as error:
        return _unseen(str(error))
    if gone and (place := _elsewhere(gone, path)) is not None:
        return _unseen(f"there is no {place}")
    if gone:
        return CheckKind.FILE_SOURCE.refuse(
            f"archived or deleted since they were read: {_name(gone)}; "
            "Spark would leave them out and not say so",
            "Put them back, or choose a later batch.",
        )
    if changed:
        return CheckKind.FILE_SOURCE.warn(
            f"rewritten since they were read: {_name(changed)}",
            "What they hold now is what is read.",
        )
    files = "the file is" if len(listed) == 1 else f"all {len(listed)} files are"
    there = f"{files} there. {_LUMPED}" if listed else "no file is read again"
    return CheckKind.FILE_SOURCE.ok(there)


def _unseen(why: str) -> Check:
    return CheckKind.FILE_SOURCE.warn(
        f"whether the files are still there cannot be seen from here: {why}",
        "See that they are: Spark leaves out a file that is gone, and does not say so.",
    )


def _elsewhere(gone: list[str], path: str | None) -> str | None:
    """The folder that shows that the files lie on another machine: it is not here at all.

    It is the one above that of the source: where that is here, the source's own was deleted.
    """
    folder = open_folder(path or posixpath.dirname(gone[0]))
    above = posixpath.dirname(folder.root)
    place = folder.root if above == "/" else above  # the root is on every machine
    return place if folder.local and not Path(place).exists() else None


_LUMPED = (
    "After the first batch Spark reads all that it had listed in one, whatever maxFilesPerTrigger "
    "says; `ebbtide replay` keeps the boundaries"
)


def _compare(listed: Iterable[ListedFile]) -> tuple[list[str], list[str]]:
    """Which of the files are gone, and which were written since they were listed."""
    folders: dict[str, list[ListedFile]] = {}
    for file in listed:
        folders.setdefault(file.path.rpartition("/")[0], []).append(file)
    gone, changed = [], []
    for location, files in folders.items():
        folder = open_folder(location)
        names = [file.path.rpartition("/")[2] for file in files]
        for file, stat in zip(files, folder.map(folder.stat, names), strict=True):
            if stat is None:
                gone.append(file.path)
            # a filesystem may keep whole seconds only
            elif stat.modified and int(stat.modified) > file.modified_ms // 1000:
                changed.append(file.path)
    return gone, changed


def _name(paths: list[str]) -> str:
    """Name the first few, and the number of the others.

    >>> _name(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
