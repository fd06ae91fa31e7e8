"""Read the log of a Delta table: its commits, its files and how long it keeps them.

Importing this module does not load Delta's library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from ebbtide.connectors.delta.actions import count_rows, parse_actions, parse_summary
from ebbtide.connectors.delta.table_file import TableFile
from ebbtide.errors import CheckpointError
from ebbtide.parsing import parse_id, parse_json
from ebbtide.storage import Folder, delta_location, open_folder
from ebbtide.times import in_utc

if TYPE_CHECKING:
    from deltalake import DeltaTable

EMPTY = -1
"""The version before a table's first one: no rows."""
MARK, QUERY = "ebbtide", "ebbtide-query"
"""How a commit of ours names the backup that it belongs to, and the query."""
_LOG = "_delta_log"
_READER, _WRITER = 3, 7
"""The newest versions of Delta's protocol; since these, each feature has a name."""
_LOG_RETENTION = "delta.logRetentionDuration"
_FILE_RETENTION = "delta.deletedFileRetentionDuration"
_DEFAULTS = {_LOG_RETENTION: "interval 30 days", _FILE_RETENTION: "interval 1 week"}
_LONGEST_INTERVAL = 200
_UNITS = ("week", "day", "hour", "minute", "second", "millisecond", "microsecond")


@dataclass(frozen=True)
class DeltaCommit:
    """One version of a table, as its log entry describes it."""

    version: int
    actions: tuple[Mapping[str, Any], ...] = field(repr=False)
    modified: float = 0.0
    """When the entry was written, if that was read: the log's retention counts from then."""

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        """The actions of a kind: `add`, `remove`, `txn` and so on."""
        return [action[kind] for action in self.actions if kind in action]

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """Who made the commit, when and how."""
        return next(iter(self.of("commitInfo")), {})

    @property
    def operation(self) -> str:
        """The writer's name for it."""
        return str(self.info.get("operation", "unknown"))

    @cached_property
    def files(self) -> tuple[tuple[str, TableFile], ...]:
        """What it did with data files, in order: `add` or `remove`, and the file."""
        kinds = ("add", "remove")
        found = ((k, action[k]) for action in self.actions for k in kinds if k in action)
        return tuple((kind, TableFile.of(file)) for kind, file in found)

    @cached_property
    def added(self) -> tuple[str, ...]:
        """Its new rows' files, in the order in which a query reads them."""
        return tuple(file["path"] for file in self.of("add") if file.get("dataChange") is True)

    @cached_property
    def removed(self) -> dict[str, int]:
        """The files that it took out, with the time in ms from which their retention counts."""
        removed = ((file["path"], file.get("deletionTimestamp")) for file in self.of("remove"))
        return {path: at for path, at in removed if at is not None}

    @cached_property
    def noted(self) -> dict[str, int]:
        """The batch that the commit records for each writer."""
        return {txn["appId"]: txn["version"] for txn in self.of("txn")}

    @cached_property
    def rows(self) -> int:
        """How many rows it wrote."""
        metrics = self.info.get("operationMetrics")
        count = metrics.get("numOutputRows") if isinstance(metrics, dict) else None
        if count is not None:
            return parse_id(str(count)) or 0
        return sum(count_rows(file.get("stats")) for file in self.of("add"))

    @property
    def changes(self) -> bool:
        """Whether it changed rows, columns or properties; merging files does not."""
        files = (*self.of("add"), *self.of("remove"))
        changes_rows = any(file.get("dataChange", True) for file in files)
        return changes_rows or bool(self.of("metaData") or self.of("protocol"))

    @property
    def complete(self) -> bool:
        """Whether it replaced all rows (output mode complete)."""
        return bool(self._parameters.get("outputMode") == "Complete")

    @property
    def is_restore(self) -> bool:
        """Whether it brought back an older version, or, if it is ours, none at all."""
        return self.operation == "RESTORE" or (self.operation == "DELETE" and self.mark is not None)

    @property
    def restores(self) -> int | None:
        """The version that it brought back; None if it names none, as one to a point in time."""
        if self.operation == "DELETE" and self.is_restore:
            return EMPTY
        return parse_id(str(self._parameters.get("version"))) if self.is_restore else None

    @property
    def mark(self) -> str | None:
        """Of a commit of ours: the backup that it belongs to."""
        mark = self._marks.get(MARK)
        return mark if isinstance(mark, str) else None

    def is_of(self, ids: Collection[str]) -> bool:
        """Whether it is a change of ours that belongs to a query."""
        query = self._marks.get(QUERY)
        return isinstance(query, str) and query in ids

    @cached_property
    def _marks(self) -> Mapping[str, Any]:
        """What we noted: Delta's library has it beside the rest, Spark in the user's metadata."""
        try:
            noted = parse_json(self.info.get("userMetadata") or "{}")
        except (ValueError, TypeError):
            noted = {}
        return {**self.info, **noted} if isinstance(noted, dict) else self.info

    @property
    def _parameters(self) -> Mapping[str, Any]:
        given = self.info.get("operationParameters")
        return given if isinstance(given, dict) else {}

    def __str__(self) -> str:
        info = self.info
        stamp = info.get("timestamp")
        at = in_utc(stamp) if isinstance(stamp, int) else "at an unknown time"
        by = info.get("userName") or info.get("engineInfo") or "an unknown writer"
        return f"version {self.version} ({self.operation}, {at}, by {by})"


@dataclass(frozen=True)
class DeltaLog:
    """The log of the table at a path or URL."""

    path: str

    @cached_property
    def folder(self) -> Folder:
        """The table's folder."""
        return open_folder(self.path)

    @cached_property
    def versions(self) -> frozenset[int]:
        """The versions that have an entry of their own in the log."""
        names = self.folder.names(_LOG)
        stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return frozenset(int(stem) for stem in stems if stem.isascii() and stem.isdigit())

    @property
    def newest(self) -> int:
        """The newest version, by the names in the log alone."""
        if not self.versions:
            raise CheckpointError(f"The log of the Delta table {self.path} cannot be read.")
        return max(self.versions)

    def read(self, version: int) -> DeltaCommit | None:
        """One commit; None if the log has been cleaned up."""
        text = self.folder.read(_LOG, f"{version:020}.json")
        if text is None:
            return None
        return DeltaCommit(version, parse_actions(text, version))

    def between(self, first: int, last: int) -> list[int]:
        """The versions of a range, both ends included, that have an entry of their own.

        A number in an offset or in a file's name may be anything: no range is counted through.
        """
        return sorted(version for version in self.versions if first <= version <= last)

    def after(self, version: int, newest: int) -> list[DeltaCommit]:
        """The commits after a version that the log still has."""
        commits = self.folder.map(self.read, self.between(version + 1, newest))
        return [commit for commit in commits if commit is not None]

    def commits(self, first: int, last: int) -> dict[int, DeltaCommit]:
        """The commits of a range of versions that the log still has, with their times."""
        commits = self.folder.map(self._read_timed, self.between(first, last))
        return {commit.version: commit for commit in commits if commit is not None}

    def _read_timed(self, version: int) -> DeltaCommit | None:
        commit, stat = self.read(version), self.folder.stat(f"{_LOG}/{version:020}.json")
        return replace(commit, modified=stat.modified or 0.0) if commit and stat else None

    def lineage(self, version: int) -> Iterator[DeltaCommit]:
        """The commits that made the table what it is, newest first, as far as the log goes back.

        A restore leads to the version that it brought back: what lies between is undone. One to a
        point in time ends the line, because the log does not say which version that was.
        """
        while version >= 0 and (commit := self.read(version)) is not None:
            yield commit
            if not commit.is_restore:
                version -= 1
            elif commit.restores is not None and commit.restores < version:
                version = commit.restores
            else:
                return

    def missing(self, files: Iterable[str]) -> list[str]:
        """The files that are missing from the table."""
        files = list(files)
        there = self.folder.map(self._is_there, files)
        return [file for file, is_there in zip(files, there, strict=True) if not is_there]

    def _is_there(self, file: str) -> bool:
        path = unquote(file)  # paths stand in the log as in a URL
        if is_url(file) or path.startswith("/"):
            directory, _, name = path.rpartition("/")
            return open_folder(directory).exists(name)
        return self.folder.exists(path)

    def read_state(self) -> TableState:
        """What the log says of the newest version, from the last summary that Spark wrote on."""
        commits: list[DeltaCommit] = []
        summary: Mapping[str, Any] = {}
        for version in range(self.newest, EMPTY, -1):
            summary = parse_summary(self.folder.read(_LOG, f"{version:020}.crc") or "{}", version)
            if summary:
                break
            if (commit := self.read(version)) is None:
                raise ValueError(f"its log has neither version {version} nor a summary of it")
            commits.append(commit)
        protocol, metadata = summary.get("protocol", {}), summary.get("metadata", {})
        noted = {txn["appId"]: txn["version"] for txn in summary.get("setTransactions", ())}
        for commit in reversed(commits):
            protocol = next(iter(commit.of("protocol")), protocol)
            metadata = next(iter(commit.of("metaData")), metadata)
            noted |= commit.noted
        if not protocol:
            raise ValueError("its log has no protocol")
        if protocol["minReaderVersion"] > _READER or protocol["minWriterVersion"] > _WRITER:
            raise ValueError("its protocol is newer than the ones that Ebbtide knows")
        return TableState(
            self.newest,
            metadata.get("id", ""),
            _features(protocol["minWriterVersion"], protocol.get("writerFeatures")),
            # old versions of delta-rs wrote null for a property without a value
            {k: v for k, v in (metadata.get("configuration") or {}).items() if v is not None},
            noted.get,
        )


@dataclass(frozen=True)
class TableState:
    """What the log of a table says of its newest version."""

    version: int
    id: str
    features: frozenset[str]
    """What a writer must know to write the table."""
    configuration: Mapping[str, str]
    noted: Callable[[str], int | None]
    """The last batch that a writer has noted."""
    table: DeltaTable | None = None
    """The table as Delta's library gives it; None if that cannot load it."""


def _features(writer_version: int, features: Iterable[str] | None) -> frozenset[str]:
    """The features for which a table's protocol asks; before version 7, all below come with one.

    >>> sorted(_features(7, ["appendOnly"])), sorted(_features(6, None))
    (['appendOnly'], ['identityColumns'])
    """
    # the other features of old versions are known to every writer
    return frozenset(features or (["identityColumns"] if writer_version == 6 else []))


@dataclass(frozen=True)
class LoggedTable(DeltaLog):
    """A Delta table and how long it keeps what it has."""

    id: str
    version: int
    log_retention: timedelta
    """How long, at the least, a version stays in the log."""
    file_retention: timedelta
    """How long, at the least, a file that was taken out can still be read."""

    def snapshot_files(self, version: int) -> list[str]:
        """The files of a version, in the order in which a query reads them."""
        try:
            actions = load_table(self.path, version).get_add_actions()
        except table_errors():
            if len(commits := self.commits(0, version)) <= version:
                raise
            return _replay(commits.values())
        columns = (actions.column(name).to_pylist() for name in ("modification_time", "path"))
        return [path for _, path in sorted(zip(*columns, strict=True))]


def _replay(commits: Iterable[DeltaCommit]) -> list[str]:
    """The files that all commits of a table leave, in the order of their times."""
    times: dict[TableFile, int] = {}
    for commit in commits:
        for file in commit.of("remove"):
            times.pop(TableFile.of(file), None)
        for file in commit.of("add"):
            times[TableFile.of(file)] = file["modificationTime"]
    return [path for _, path in sorted((at, file.path) for file, at in times.items())]


def open_table(path: str) -> LoggedTable | None:
    """The Delta table at a path or URL; None if there is none."""
    if (state := find_state(path)) is None:
        return None
    properties = {**_DEFAULTS, **state.configuration}
    retention = (parse_interval(properties[name]) for name in (_LOG_RETENTION, _FILE_RETENTION))
    return LoggedTable(path, state.id, state.version, *retention)


def newest_version(path: str) -> int | None:
    """The newest version of a Delta table; None if there is no table."""
    state = find_state(path)
    return None if state is None else state.version


def load_table(path: str, version: int | None = None) -> DeltaTable:
    """The table as Delta's library gives it."""
    from deltalake import DeltaTable

    if unquote(path) != path:
        raise ValueError(f"Delta's library would mistake {path} for {unquote(path)}")
    uri, options = delta_location(path)
    scheme, separator, name = uri.partition("://")
    # a path is taken as it is, a URL is decoded
    uri = f"{scheme}://{quote(name, safe='/@:')}" if separator else path
    return DeltaTable(uri, version, storage_options=options or None)


def find_state(path: str) -> TableState | None:
    """What the log of a table says of its newest version; None if there is no table.

    Delta's library reads it where it can. It does not know every feature, nor find every path.
    """
    from deltalake.exceptions import TableNotFoundError

    log = DeltaLog(path)
    try:
        table = load_table(path)
    except table_errors() as error:
        if log.versions:
            return log.read_state()
        if isinstance(error, TableNotFoundError) or not log.folder.names(_LOG):
            return None
        raise
    metadata, protocol = table.metadata(), table.protocol()
    return TableState(
        int(table.version()),
        str(metadata.id),
        _features(protocol.min_writer_version, protocol.writer_features),
        metadata.configuration,
        table.transaction_version,
        table,
    )


def table_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """What reading a table may raise, for an `except` clause."""
    from deltalake.exceptions import DeltaError

    return (DeltaError, OSError, ValueError, *others)


def is_url(path: str) -> bool:
    """Whether a file of a table lies where its own path says, as those of a shallow clone do.

    >>> is_url("file:/tables/original/part-0.parquet"), is_url("day=3/part-0.parquet")
    (True, False)
    """
    return re.match(r"[A-Za-z][\w+.-]*:/", path) is not None


def parse_interval(text: str) -> timedelta:
    """Parse a duration as it stands in a table's properties.

    >>> parse_interval("interval 1 week 12 hours")
    datetime.timedelta(days=7, seconds=43200)
    """
    if len(text) > _LONGEST_INTERVAL:
        raise ValueError(f"{text[:40]!r}… is no interval")
    parts = re.findall(r"(\d+)\s*([a-z]+?)s?\b", text.lower())
    try:
        return sum(
            (timedelta(**{f"{unit}s": int(number)}) for number, unit in parts if unit in _UNITS),
            timedelta(),
        )
    except OverflowError:
        raise ValueError(f"{text!r} is no interval") from None
