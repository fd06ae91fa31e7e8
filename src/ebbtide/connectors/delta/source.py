"""A Delta source's offsets in, out: does its table still hold what is read again? No JVM.

An offset names a version of the table and how many of that version's files are read. A query that
began with a table's rows first reads those as one snapshot, in the order of their files' times,
and then what each later version added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from ebbtide.checks import OK, REFUSE, WARN, Check, CheckKind
from ebbtide.errors import EbbtideError
from ebbtide.storage import Folder, open_folder

_NOTHING_READ = -100
"""The index before all of a version's files; it is written as -1."""
_LOG = "_delta_log"
_LOG_RETENTION = "delta.logRetentionDuration"
_FILE_RETENTION = "delta.deletedFileRetentionDuration"
_DEFAULTS = {_LOG_RETENTION: "interval 30 days", _FILE_RETENTION: "interval 1 week"}
_UNITS = ("week", "day", "hour", "minute", "second", "millisecond", "microsecond")


@dataclass(frozen=True)
class Offset:
    """Up to where a batch has read a table."""

    table_id: str
    version: int
    index: int
    snapshot: bool
    """Whether it is still reading the rows with which the query began."""

    @classmethod
    def parse(cls, text: str) -> Offset:
        """Read an offset.

        >>> text = '{"reservoirId":"7","reservoirVersion":3,"index":-1,"isStartingVersion":false}'
        >>> Offset.parse(text).index
        -100
        """
        found = json.loads(text)
        index = int(found["index"])
        return cls(
            str(found["reservoirId"]),
            int(found["reservoirVersion"]),
            _NOTHING_READ if index == -1 else index,
            bool(found["isStartingVersion"]),
        )


@dataclass(frozen=True)
class Range:
    """What of a table lies between two offsets."""

    snapshot: int | None
    """The version whose rows are all read, if the range begins with them."""
    first: int
    last: int
    """The versions of which what they added is read, both included; none if last < first."""
    read: int = -1
    """The index up to which the first of these versions, or the snapshot, was read before."""

    @property
    def oldest(self) -> int:
        """The oldest version that the table's log must still know."""
        return self.first if self.snapshot is None else self.snapshot


def find_range(start: Offset | None, first: Offset, end: Offset) -> Range:
    """What is read from one offset to another; without a start, from the query's beginning.

    `first` is where the first batch ends: it tells with which version a query began.

    >>> four, six = Offset("7", 4, -100, False), Offset("7", 6, 0, False)
    >>> find_range(None, four, six)
    Range(snapshot=3, first=4, last=6, read=-1)
    >>> find_range(four, six, six)
    Range(snapshot=None, first=4, last=6, read=-1)
    """
    last = end.version if end.index > _NOTHING_READ and not end.snapshot else end.version - 1
    if start is None:
        snapshot = first.version if first.snapshot else max(0, first.version - 1)
        return Range(snapshot, snapshot + 1, last)
    read = max(-1, start.index)
    if start.snapshot:
        return Range(start.version, start.version + 1, last, read)
    return Range(None, start.version, last, read)


@dataclass(frozen=True)
class Commit:
    """What one version changed, as its log entry tells."""

    version: int
    modified: float
    """When the entry was written: the log's retention counts from then."""
    added: tuple[str, ...]
    """Its new rows' files, in the order in which a query reads them."""
    removed: Mapping[str, int]
    """The files that it took out, with the time in ms: they may be deleted so long after it."""
    noted: Mapping[str, int]
    """By writer, the batch that it wrote."""


@dataclass(frozen=True)
class Table:
    """A Delta table as its log shows it."""

    path: str
    id: str
    version: int
    log_retention: timedelta
    """How long, at the least, a version stays in the log."""
    file_retention: timedelta
    """How long, at the least, a file that was taken out can still be read."""
    folder: Folder = field(repr=False)

    @cached_property
    def versions(self) -> frozenset[int]:
        """The versions that have an entry of their own in the log."""
        names = self.folder.names(_LOG)
        found = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return frozenset(int(name) for name in found if name.isdigit())

    def commits(self, first: int, last: int | None = None) -> dict[int, Commit]:
        """What versions changed, those left out that have gone."""
        end = self.version if last is None else last
        wanted = [version for version in range(first, end + 1) if version in self.versions]
        found = self.folder.map(self._commit, wanted)
        return {commit.version: commit for commit in found if commit is not None}

    def _commit(self, version: int) -> Commit | None:
        path = f"{_LOG}/{version:020}.json"
        text, stat = self.folder.read(path), self.folder.stat(path)
        if text is None or stat is None:
            return None
        added: list[str] = []
        removed: dict[str, int] = {}
        noted: dict[str, int] = {}
        for line in text.splitlines():
            match json.loads(line):
                case {"add": {"path": file, "dataChange": True}}:
                    added.append(file)
                case {"remove": {"path": file, "deletionTimestamp": at}}:
                    removed[file] = int(at)
                case {"txn": {"appId": writer, "version": batch}}:
                    noted[writer] = int(batch)
        return Commit(version, stat.modified, tuple(added), removed, noted)

    def snapshot_files(self, version: int) -> list[str]:
        """The files of a version, in the order in which a query reads them."""
        found = DeltaTable(self.path, version=version).get_add_actions()
        columns = (found.column(name).to_pylist() for name in ("modification_time", "path"))
        return [path for _, path in sorted(zip(*columns, strict=True))]

    def missing(self, files: Iterable[str]) -> list[str]:
        """Those of the table's files that are not there."""
        files = list(files)
        there = self.folder.map(self._is_there, files)
        return [file for file, found in zip(files, there, strict=True) if not found]

    def _is_there(self, file: str) -> bool:
        path = unquote(file)  # paths stand in the log as in a URL
        if is_url(path):
            directory, _, name = path.rpartition("/")
            return open_folder(directory).exists(name)
        return self.folder.exists(path)


def is_url(path: str) -> bool:
    """Whether a file of a table lies where its own path says, as those of a shallow clone do.

    >>> is_url("file:/tables/original/part-0.parquet"), is_url("day=3/part-0.parquet")
    (True, False)
    """
    return re.match(r"[A-Za-z][\w+.-]*:/", path) is not None


def open_table(path: str) -> Table | None:
    """The Delta table at a path or URL; None if there is none."""
    try:
        found = DeltaTable(path)
    except TableNotFoundError:
        return None
    metadata = found.metadata()
    kept = {**_DEFAULTS, **metadata.configuration}
    return Table(
        path,
        str(metadata.id),
        found.version(),
        parse_interval(kept[_LOG_RETENTION]),
        parse_interval(kept[_FILE_RETENTION]),
        open_folder(path),
    )


def parse_interval(text: str) -> timedelta:
    """A duration as a table's properties have it.

    >>> parse_interval("interval 1 week 12 hours")
    datetime.timedelta(days=7, seconds=43200)
    """
    found = re.findall(r"(\d+)\s*([a-z]+?)s?\b", text.lower())
    return sum(
        (timedelta(**{f"{unit}s": int(number)}) for number, unit in found if unit in _UNITS),
        timedelta(),
    )


def check_table(path: str | None, offsets: Sequence[str | None]) -> Check:
    """Whether the table still holds what is read again.

    `offsets` are those of the batch before, of the first batch and of the last one.
    """
    try:
        start, first, end = (Offset.parse(text) if text is not None else None for text in offsets)
    except (KeyError, TypeError, ValueError):
        return _unseen("its offset is not one of Delta's")
    if path is None:
        return _unseen("the table is not known from here")
    if first is None or end is None:
        return Check(CheckKind.DELTA_SOURCE, OK, "nothing of it was read")
    needed = find_range(start, first, end)
    try:
        table = open_table(path)
        problem = (
            f"there is no Delta table at {path}"
            if table is None
            else _why_not_table(table, end) or _why_not_range(table, needed)
        )
    except (DeltaError, EbbtideError, OSError, ValueError) as error:
        return _unseen(f"{path} cannot be read: {str(error).splitlines()[0]}")
    if problem is not None:
        return Check(CheckKind.DELTA_SOURCE, REFUSE, problem, "Choose a later batch.")
    return Check(CheckKind.DELTA_SOURCE, OK, f"{path} holds {_say(needed)}")


def _unseen(why: str) -> Check:
    return Check(
        CheckKind.DELTA_SOURCE,
        WARN,
        f"whether the table still holds the range cannot be seen: {why}",
        "See that it was neither vacuumed nor made anew since.",
    )


def _say(needed: Range) -> str:
    """A range in few words.

    >>> _say(Range(3, 4, 6)), _say(Range(None, 4, 4))
    ('version 3 and what versions 4 to 6 added', 'what version 4 added')
    """
    parts = [] if needed.snapshot is None else [f"version {needed.snapshot}"]
    if needed.first == needed.last:
        parts.append(f"what version {needed.first} added")
    elif needed.first < needed.last:
        parts.append(f"what versions {needed.first} to {needed.last} added")
    return " and ".join(parts) or "all that is read again: nothing"


def _why_not_table(table: Table, end: Offset) -> str | None:
    if table.id != end.table_id:
        return f"{table.path} is not the table that was read: it was made anew"
    # a whole version read, the offset names the next one, which need not be there yet
    read = end.version if end.index > _NOTHING_READ else end.version - 1
    if table.version < read:
        return f"{table.path} ends at version {table.version}, before {read}: it is a copy of old"
    return None


def _why_not_range(table: Table, needed: Range) -> str | None:
    gone = [v for v in range(needed.first, needed.last + 1) if v not in table.versions]
    if gone:
        which = f"version {gone[0]}" if len(gone) == 1 else f"versions {gone[0]} to {gone[-1]}"
        return f"the log of {table.path} no longer has {which}"
    files: list[str] = []
    if needed.snapshot is not None:
        try:
            files += table.snapshot_files(needed.snapshot)[needed.read + 1 :]
        except DeltaError:
            return f"the log of {table.path} no longer gives version {needed.snapshot}"
    for version, commit in table.commits(needed.first, needed.last).items():
        read = needed.read if needed.snapshot is None and version == needed.first else -1
        files += commit.added[read + 1 :]
    if missing := table.missing(files):
        more = f" (and {len(missing) - 1} more files)" if len(missing) > 1 else ""
        return f"{table.path} was vacuumed: {missing[0]} is gone{more}"
    return None
