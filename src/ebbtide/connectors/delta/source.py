"""Delta as a source: whether a table still holds what is read again.

An offset names a version of the table and how many of that version's files are read. A query that
began with a table's rows first reads those as one snapshot, in the order of their files' times,
and then what each later version added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ebbtide.checkpoint import log_files
from ebbtide.checks import Check, CheckKind, PartVerdict
from ebbtide.config import Settings
from ebbtide.connectors import base
from ebbtide.connectors.delta.log import LoggedTable, open_table, table_errors
from ebbtide.connectors.positions import SourcePosition, SourceStart
from ebbtide.connectors.streams import LastRead, SourceLog, StreamRead
from ebbtide.errors import EbbtideError, first_line
from ebbtide.notes import INVALID, decode
from ebbtide.parsing import parse_json
from ebbtide.pipeline import Delta
from ebbtide.storage import Folder

_NOTHING_READ = -100
"""The index before all of a version's files; it is written as -1."""
_ALL_READ = (1 << 63) - 101
"""The index after all of a version's files."""
_FIELDS = {"reservoirId": str, "reservoirVersion": int, "index": int, "isStartingVersion": bool}


class DeltaSource(base.SourceConnector[Delta]):
    """A table that a query reads."""

    def owns(self, offset: Any) -> bool:
        return isinstance(offset, dict) and all(
            type(value := offset.get(name)) is kind
            and (kind is not int or log_files.is_number(value))
            for name, kind in _FIELDS.items()
        )

    def format_offset(self, offset: Any) -> str:
        return f"version {offset['reservoirVersion']}:{offset['index']}"

    def names_in(self, offset: str) -> tuple[str, ...]:
        return (DeltaOffset.parse(offset).table_id,)

    def recognize(self, name: str, options: Mapping[str, str]) -> StreamRead | None:
        if "delta" not in name.partition("[")[0].lower():  # a folder of files is FileSource[path]
            return None
        path = options.get("path", "")
        with suppress(EbbtideError, *table_errors()):
            table = open_table(path) if path else None
            return StreamRead("delta", (table.id,) if table else (), f"Delta {path}".rstrip())
        return StreamRead("delta", (), f"Delta {path}")

    def list_read(self, log: SourceLog) -> LastRead:
        return LastRead(self.names_in(log.end))

    def compare_read(
        self, part: str, old: LastRead, new: StreamRead, others: Sequence[StreamRead]
    ) -> PartVerdict:
        if not old.names or not new.names:
            return PartVerdict.compatible(part, f"{new}; whether it is the same table is not known")
        if old.names != new.names:
            return PartVerdict.breaks(part, f"{new} is another table")
        return PartVerdict.same(part, str(new))

    def describe(
        self, source: Delta, settings: Settings, folder: Folder, before: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {"kind": source.kind, "path": settings.table(source.path)}

    def location(self, source: Delta, settings: Settings) -> str | None:
        return settings.table(source.path)

    def locate(self, start: SourceStart, kind: str) -> SourcePosition:
        if start.offset is None:
            return super().locate(start, kind)
        version, remark = find_starting_version(DeltaOffset.parse(start.offset))
        options = {} if version is None else {"startingVersion": str(version)}
        return SourcePosition(start.index, kind, start.offset, options, remarks=(remark,))

    def check(self, replay: base.SourceReplay) -> base.SourceVerdict:
        if replay.replan and replay.batch == 0:
            read_again = CheckKind.DELTA_SOURCE.ok("the table is read again, as it is now")
            return base.SourceVerdict((read_again,) * len(replay.ranges))
        path = replay.note.get("path")
        return base.SourceVerdict(tuple(check_table(path, read) for read in replay.ranges))

    def limit(self, asked: base.RetentionRequest) -> base.Retention:
        from ebbtide.connectors.delta.retention import limit_by_source, limit_table

        return limit_table(asked, limit_by_source)


@dataclass(frozen=True)
class DeltaOffset:
    """The position up to which a batch has read a table."""

    table_id: str
    version: int
    index: int
    snapshot: bool
    """Whether it is still reading the rows with which the query began."""

    @classmethod
    def parse(cls, text: str) -> DeltaOffset:
        """Read an offset.

        >>> text = '{"reservoirId":"7","reservoirVersion":3,"index":-1,"isStartingVersion":false}'
        >>> DeltaOffset.parse(text).index
        -100
        """
        try:
            offset = parse_json(text)
            index = decode(int, offset["index"])
            return cls(
                decode(str, offset["reservoirId"]),
                decode(int, offset["reservoirVersion"]),
                _NOTHING_READ if index == -1 else index,
                decode(bool, offset["isStartingVersion"]),
            )
        except INVALID:
            raise ValueError(f"{text[:80]!r} is no offset of a Delta table") from None


def find_starting_version(offset: DeltaOffset) -> tuple[int | None, str]:
    """The version with which a new query begins at an offset, and what to know of it.

    `startingVersion` begins with the first file of a version, and never with a table's rows.

    >>> find_starting_version(DeltaOffset("7", 4, -100, False))[0]
    4
    >>> find_starting_version(DeltaOffset("7", 4, 2, False))[0]
    """
    version, finish = offset.version, "Let the query finish it, or choose another batch"
    if offset.snapshot:
        return None, (
            f"no option begins there: of the rows of version {version}, with which the query "
            f"began, a part is not read yet. {finish}"
        )
    if offset.index >= _ALL_READ:
        version += 1
    elif offset.index != _NOTHING_READ:
        return None, (
            f"no option begins there: of version {version} a part is read. startingVersion "
            f"{version} would read that twice, {version + 1} would skip the rest. {finish}"
        )
    return version, (
        f"Spark refuses to start until the table has version {version}, and a fork cannot hold "
        "this position: start the new query on an empty folder"
    )


@dataclass(frozen=True)
class VersionRange:
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
        """The oldest version that the table's log must still have."""
        return self.first if self.snapshot is None else self.snapshot

    def missing_from(self, table: LoggedTable) -> tuple[int, int] | None:
        """The first and the last version that the table's log does not have any more."""
        held = table.between(self.first, self.last)
        if len(held) == max(0, self.last - self.first + 1):
            return None
        first = next((n for n, v in enumerate(held, self.first) if n != v), self.first + len(held))
        last = self.last
        while held and held[-1] == last:
            held.pop()
            last -= 1
        return first, last


def find_range(start: DeltaOffset | None, first: DeltaOffset, end: DeltaOffset) -> VersionRange:
    """What is read from one offset to another; without a start, from the query's beginning.

    `first` is where the first batch ends: it tells with which version a query began.

    >>> four, six = DeltaOffset("7", 4, -100, False), DeltaOffset("7", 6, 0, False)
    >>> find_range(None, four, six)
    VersionRange(snapshot=3, first=4, last=6, read=-1)
    >>> find_range(four, six, six)
    VersionRange(snapshot=None, first=4, last=6, read=-1)
    """
    last = end.version if end.index > _NOTHING_READ and not end.snapshot else end.version - 1
    if start is None:
        snapshot = first.version if first.snapshot else max(0, first.version - 1)
        return VersionRange(snapshot, snapshot + 1, last)
    read = max(-1, start.index)
    if start.snapshot:
        return VersionRange(start.version, start.version + 1, last, read)
    return VersionRange(None, start.version, last, read)


def check_table(path: str | None, read: base.SourceRange) -> Check:
    """Whether the table still holds what is read again."""
    offsets = (read.start, read.first, read.end)
    try:
        start, first, end = (
            DeltaOffset.parse(text) if text is not None else None for text in offsets
        )
    except ValueError:
        return _unseen("its offset is not one of Delta's")
    if path is None:
        return _unseen("the table is not known from here")
    if first is None or end is None:
        return CheckKind.DELTA_SOURCE.ok("nothing of it was read")
    needed = find_range(start, first, end)
    try:
        table = open_table(path)
        problem = (
            f"there is no Delta table at {path}"
            if table is None
            else _why_not_table(table, end) or _why_not_range(table, needed)
        )
    except table_errors(EbbtideError) as error:
        return _unseen(f"{path} cannot be read: {first_line(error)}")
    if problem is not None:
        return CheckKind.DELTA_SOURCE.refuse(problem, "Choose a later batch.")
    return CheckKind.DELTA_SOURCE.ok(f"{path} holds {_format(needed)}")


def _unseen(why: str) -> Check:
    return CheckKind.DELTA_SOURCE.warn(
        f"whether the table still holds the range cannot be seen: {why}",
        "See that it was neither vacuumed nor recreated since.",
    )


def _format(needed: VersionRange) -> str:
    """Summarize a range.

    >>> _format(VersionRange(3, 4, 6)), _format(VersionRange(None, 4, 4))
    ('version 3 and what versions 4 to 6 added', 'what version 4 added')
    """
    parts = [] if needed.snapshot is None else [f"version {needed.snapshot}"]
    if needed.first == needed.last:
        parts.append(f"what version {needed.first} added")
    elif needed.first < needed.last:
        parts.append(f"what versions {needed.first} to {needed.last} added")
    return " and ".join(parts) or "all that is read again: nothing"


def _why_not_table(table: LoggedTable, end: DeltaOffset) -> str | None:
    if table.id != end.table_id:
        return f"{table.path} is not the table that was read: it was recreated"
    # a whole version read, the offset names the next one, which need not be there yet
    read = end.version if end.index > _NOTHING_READ else end.version - 1
    if table.version < read:
        return f"{table.path} ends at version {table.version}, before {read}: it is a copy of old"
    return None


def _why_not_range(table: LoggedTable, needed: VersionRange) -> str | None:
    if gone := needed.missing_from(table):
        first, last = gone
        which = f"version {first}" if first == last else f"versions {first} to {last}"
        return f"the log of {table.path} no longer has {which}"
    files: list[str] = []
    if needed.snapshot is not None:
        try:
            files += table.snapshot_files(needed.snapshot)[needed.read + 1 :]
        except table_errors():
            return f"the log of {table.path} no longer gives version {needed.snapshot}"
    for version, commit in table.commits(needed.first, needed.last).items():
        read = needed.read if needed.snapshot is None and version == needed.first else -1
        files += commit.added[read + 1 :]
    if missing := table.missing(files):
        more = f" (and {len(missing) - 1} more files)" if len(missing) > 1 else ""
        return f"{table.path} was vacuumed: {missing[0]} is gone{more}"
    return None
