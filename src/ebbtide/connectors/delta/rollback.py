"""Roll a Delta table back to one of its versions, in one commit: with Delta's library or Spark.

Delta's library needs no JVM. It does not know every feature of a table, and names some files
differently from Spark, so that rows would stay: such tables are restored with Spark, in a process
of its own. Both ways mark the commit with the backup that it belongs to. So a rollback that was
interrupted is found when it is run again, and carried out once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import takewhile
from typing import TYPE_CHECKING

from ebbtide.checkpoint import SinkChange
from ebbtide.connectors.delta.log import (
    EMPTY,
    MARK,
    QUERY,
    DeltaCommit,
    DeltaLog,
    TableState,
    find_state,
    is_url,
    load_table,
    table_errors,
)
from ebbtide.connectors.delta.table_file import TableFile
from ebbtide.connectors.spark_process import call_with_spark
from ebbtide.errors import CheckpointError, MissingExtraError, first_line
from ebbtide.storage import WritableFolder

if TYPE_CHECKING:
    from deltalake import DeltaTable

_APPEND_ONLY = "delta.appendOnly"
_SPARK = "ebbtide.connectors.delta.spark_rollback:roll_back"
_LIGHT = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "generatedColumns",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
}
"""The features with which Delta's library restores a table as Spark does."""
_ELSEWHERE = re.compile(r"catalog|coordinated|managedCommit", re.I)
"""The features with which commits do not only lie in the table's log."""
_PLAIN = re.compile("[!-~]+")
"""The names of files that Delta's library writes as Spark does: ASCII."""


class SinkUnknownError(OSError):
    """Whether a change of the sink was carried out cannot be told now."""


@dataclass(frozen=True)
class Rollback:
    """How a table goes back to a version, as far as its log tells without a change."""

    path: str
    to_version: int
    state: TableState
    commits: tuple[DeltaCommit, ...]
    """What came after that version."""

    @classmethod
    def read(cls, path: str, to_version: int) -> Rollback:
        """From the table's log."""
        if (state := find_state(path)) is None:
            raise ValueError("there is no table any more")
        require_own_log(state)
        return cls(path, to_version, state, tuple(DeltaLog(path).after(to_version, state.version)))

    @property
    def spark(self) -> str | None:
        """Why it takes Spark; None if Delta's library can do it."""
        if self.state.table is None:
            return "Delta's library cannot read it"
        if unknown := sorted(self.state.features - _LIGHT):
            return f"Delta's library cannot write its features {', '.join(unknown)}"
        upgrades = (commit for commit in self.commits if not commit.is_restore)
        if self.to_version != EMPTY and any(commit.of("protocol") for commit in upgrades):
            return "Delta's library cannot go back to before a change of the protocol"
        paths = {file.path for commit in self.commits for _, file in commit.files}
        if odd := sorted(path for path in paths if not _PLAIN.fullmatch(path) or is_url(path)):
            return f"Delta's library would mistake {odd[0]} for another file"
        return None

    @property
    def problem(self) -> tuple[str, str] | None:
        """Why it cannot go back, and what to do; None if it can."""
        version, log = self.to_version, DeltaLog(self.path)
        instead = "Choose a later batch, or --sink append-again."
        if len(self.commits) < self.state.version - version:
            return f"its log does not show all that came after version {version}", instead
        try:
            if self.state.table is not None and version != EMPTY:
                load_table(self.path, version)
        except table_errors() as error:
            return f"its version {version} cannot be loaded ({first_line(error)})", instead
        added, removed = _compare(self.commits)
        # the library would take them out all the same, though its owner has said that none may go
        if added and self.state.configuration.get(_APPEND_ONLY, "").lower() == "true":
            why = f"it is append-only ({_APPEND_ONLY}), and rows would have to be taken out"
            return why, instead
        needed = sorted({path for file in removed for path in file.needs})
        if version != EMPTY and (missing := log.missing(needed)):
            gone = f"{len(missing)} data files of version {version} are gone (vacuumed)"
            return f"{gone}: {missing[0]}", instead
        if self.spark and find_spec("pyspark") is None:
            extra = MissingExtraError.for_extra("spark", "its restore")
            return f"{extra.problem.rstrip('.')}: {self.spark}", extra.next_step
        return None


def _compare(commits: Sequence[DeltaCommit]) -> tuple[list[TableFile], list[TableFile]]:
    """The files that came, and those that went, in a row of commits taken together."""
    first: dict[TableFile, str] = {}
    last: dict[TableFile, str] = {}
    for commit in commits:
        for kind, file in commit.files:
            first.setdefault(file, kind)
            last[file] = kind
    came, went = ([f for f in last if first[f] == last[f] == kind] for kind in ("add", "remove"))
    return came, went


def noted_batch(path: str, app: str | None) -> int | None:
    """The last batch that a writer has noted."""
    with readable(path):
        state = None if app is None else find_state(path)
        return state.noted(app) if state and app else None


def require_own_log(state: TableState) -> None:
    """Refuse a table whose newest commits may lie elsewhere."""
    if elsewhere := sorted(filter(_ELSEWHERE.search, state.features)):
        raise ValueError(f"its commits do not all lie in its log ({', '.join(elsewhere)})")


def roll_back_table(
    folder: WritableFolder, change: SinkChange, backup_id: str, query_id: str
) -> None:
    """Restore a table, once; refuse, changing nothing, if it was written to."""
    if (change.version, change.app_before) == (change.to_version, change.app_after):
        return
    assert change.to_version is not None
    # a table that does not answer may have been restored before an interruption
    if _is_done(change, backup_id):
        return
    with readable(change.path):
        rollback = Rollback.read(change.path, change.to_version)
        if not is_marked(change, backup_id):
            require_unchanged(change, backup_id)
        folder.changing("restore", change.path)
        marks = {MARK: backup_id, QUERY: query_id}
        try:
            if rollback.spark:
                call_with_spark(_SPARK, change, marks)
            else:
                assert rollback.state.table is not None
                _commit(rollback.state.table, change, marks)
        except table_errors(CheckpointError):
            # it may have arrived all the same: if the log cannot be read now, that is not known
            if not _is_done(change, backup_id):
                raise


def require_unchanged(change: SinkChange, backup_id: str) -> None:
    """Refuse if others changed a table between the version of the plan and our commit, or now."""
    if other := next((commit for commit in _until_mark(change, backup_id) if commit.changes), None):
        raise CheckpointError(
            f"The table {change.path} was written to meanwhile: {other}.",
            "Stop what writes to it, then plan again.",
        )


def _until_mark(change: SinkChange, backup_id: str) -> Iterator[DeltaCommit]:
    return takewhile(lambda commit: commit.mark != backup_id, commits_since(change))


def _commit(table: DeltaTable, change: SinkChange, marks: dict[str, str]) -> None:
    """One commit on top of the version that was read, or none."""
    from deltalake import CommitProperties, Transaction

    noted = [] if change.app is None else [Transaction(change.app, noted_after(change))]
    properties = CommitProperties(
        custom_metadata=marks, max_commit_retries=0, app_transactions=noted
    )
    if change.to_version == change.version:
        columns = table.metadata().partition_columns
        table.create_write_transaction(
            [], "append", table.schema(), columns, commit_properties=properties
        )
    elif change.to_version == EMPTY:
        table.delete(commit_properties=properties)
    else:
        assert change.to_version is not None
        table.restore(change.to_version, commit_properties=properties)


def noted_after(change: SinkChange) -> int:
    """The batch that is noted for a function's name afterwards; none is -1."""
    return -1 if change.app_after is None else change.app_after


def commits_since(change: SinkChange) -> list[DeltaCommit]:
    """The commits of a table after the version that was planned with."""
    log = DeltaLog(change.path)
    return log.after(EMPTY if change.version is None else change.version, log.newest)


def is_marked(change: SinkChange, backup_id: str) -> bool:
    """Whether a table has a commit of ours since its version before."""
    return any(commit.mark == backup_id for commit in commits_since(change))


def _is_done(change: SinkChange, backup_id: str) -> bool:
    """Whether a rollback was carried out in whole; Spark makes two commits for a function."""
    try:
        return (
            is_marked(change, backup_id)
            and not any(commit.changes for commit in _until_mark(change, backup_id))
            and (change.app is None or noted_batch(change.path, change.app) == noted_after(change))
        )
    except (CheckpointError, OSError, ValueError) as error:
        raise SinkUnknownError(f"{change.path} does not answer: {error}") from None


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Raise the errors of Delta's library as ours."""
    try:
        yield
    except SinkUnknownError:
        raise
    except table_errors() as error:
        raise CheckpointError(
            f"The Delta table {path} cannot be read or restored: {first_line(error)}.",
            "Restore it with Spark (RESTORE TABLE), then go on with --sink append-again.",
        ) from None
