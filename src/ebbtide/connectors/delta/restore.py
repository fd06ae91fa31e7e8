"""Find a query's batches in the log of a Delta table, and roll the table back in one commit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from ebbtide.checkpoint import SinkChange
from ebbtide.connectors.base import ReplayedQuery
from ebbtide.connectors.delta.log import (
    EMPTY,
    MARK,
    QUERY,
    DeltaCommit,
    DeltaLog,
    find_table,
    first_line,
    load_table,
    table_errors,
)
from ebbtide.errors import CheckpointError
from ebbtide.storage import WritableFolder

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_STREAM = "STREAMING UPDATE"
"""The operation of a commit by Spark's own Delta sink."""
_RUNS = "ebbtide-"
"""The prefix of the names under which reprocessing runs note what they wrote."""
_APPEND_ONLY = "delta.appendOnly"
_RECENT = 100
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)


class SinkUnknownError(OSError):
    """Whether a change of the sink was carried out cannot be told now."""


@dataclass(frozen=True)
class HeldBatches:
    """What a table holds of the batches from one on, and how it goes back to before them."""

    path: str
    version: int
    known: bool
    """Whether the query, or the one writer that notes its own batches, has ever noted one."""
    skips: int | None
    """Batches up to this one are skipped."""
    held: tuple[DeltaCommit, ...]
    """The commits of the batches in question that the table shows, newest first."""
    before: int | None
    """The version before them; None if the log does not show it any more."""
    others: tuple[DeltaCommit, ...]
    """What others have changed since that version."""
    apps: Mapping[str, int] = field(default_factory=dict)
    """Names of writers that keep notes of their own, each with its last batch."""
    app: str | None = None
    """The one of them that writes the table, if there is only one."""

    @property
    def rows(self) -> int:
        """How many rows the batches in question wrote."""
        return sum(commit.rows for commit in self.held)

    @property
    def complete(self) -> bool:
        """Whether each batch takes the place of all rows, so that none is there twice."""
        return bool(self.held) and all(commit.complete for commit in self.held)


def read_held_batches(path: str, query: ReplayedQuery) -> HeldBatches | None:
    """What the table holds of a query's batches from one on; None if there is no table.

    Steps: **1** who writes the table; **2** down the commits that made it what it is, to the first
    of the batches in question; **3** the version before it.
    """
    first, query_id, ids = query.first, query.checkpoint.logs.query_id, query.checkpoint.query_ids
    with readable(path):
        if (table := find_table(path)) is None:
            return None
        # 1
        version = table.version()
        is_writer = any(table.transaction_version(id_) is not None for id_ in ids)
        apps = {} if is_writer else read_apps(path, version)
        app = find_function(apps, query.last)
        writers = {app} if app else set(ids)
        # 2
        held: list[DeltaCommit] = []
        since: list[DeltaCommit] = []
        is_complete = False
        for commit in DeltaLog(path).lineage(version):
            batch = max((commit.noted[w] for w in writers if w in commit.noted), default=None)
            if is_complete := batch is not None and batch < first:
                break
            since.append(commit)
            held += [commit] if batch is not None else []
        # 3
        before: int | None = version
        if held:
            # Spark's sink commits every batch, a function perhaps only those with rows
            is_complete = is_complete or first in held[-1].noted.values()
            is_complete = is_complete or (app is not None and since[-1].version == 0)
            before = held[-1].version - 1 if is_complete else None
        since = [commit for commit in since if held and commit.version >= held[-1].version]
        return HeldBatches(
            path,
            version,
            known=is_writer or app is not None,
            skips=table.transaction_version(app or query_id),
            held=tuple(held),
            before=before,
            others=_by_others(since, writers, ids),
            apps=apps,
            app=app,
        )


def _by_others(
    commits: Iterable[DeltaCommit], writers: Set[str], ids: Collection[str]
) -> tuple[DeltaCommit, ...]:
    """The commits that changed the table, without those of its writers and ours."""
    changes = (commit for commit in commits if commit.changes and not commit.is_of(ids))
    return tuple(commit for commit in changes if not writers & commit.noted.keys())


def read_others(change: SinkChange, ids: Collection[str]) -> tuple[int, tuple[DeltaCommit, ...]]:
    """A table's version now, and the commits of others since a change of ours."""
    assert change.version is not None
    writers = {*ids, *([change.app] if change.app else [])}
    with readable(change.path):
        if (table := find_table(change.path)) is None:
            return EMPTY, ()
        commits = DeltaLog(change.path).after(change.version, table.version())
        return table.version(), _by_others(commits, writers, ids)


def noted_batch(path: str, app: str | None) -> int | None:
    """The last batch that a writer has noted."""
    with readable(path):
        return None if app is None else load_table(path).transaction_version(app)


def why_no_version(path: str, version: int) -> str | None:
    """Why a table cannot go back to a version; None if it can."""
    try:
        table = load_table(path)
        shown, wanted = set(table.file_uris()), set[str]()
        if version != EMPTY:
            wanted = set(load_table(path, version).file_uris())
    except table_errors() as error:
        return f"its version {version} cannot be loaded ({first_line(error)})"
    # the library would take them out all the same, though its owner has said that none may go
    if shown - wanted and table.metadata().configuration.get(_APPEND_ONLY, "").lower() == "true":
        return f"it is append-only ({_APPEND_ONLY}), and rows would have to be taken out"
    filesystem = DeltaLog(path).folder.filesystem
    missing = [uri for uri in sorted(wanted - shown) if not filesystem.exists(uri)]
    if not missing:
        return None
    return f"{len(missing)} data files of version {version} are gone (vacuumed): {missing[0]}"


def restore_table(
    folder: WritableFolder, change: SinkChange, backup_id: str, query_id: str
) -> None:
    """Set a table back in one commit, once; refuse, changing nothing, if it was written to."""
    from deltalake import CommitProperties, Transaction

    if (change.version, change.app_before) == (change.to_version, change.app_after):
        return
    assert change.version is not None
    assert change.to_version is not None
    # a table that does not answer may have been set back before an interruption
    if is_marked(change, backup_id):
        return
    with readable(change.path):
        table = load_table(change.path)
        later = DeltaLog(change.path).after(change.version, table.version())
        if others := [commit for commit in later if commit.changes]:
            raise CheckpointError(
                f"The table {change.path} was written to meanwhile: {others[0]}.",
                "Stop what writes to it, then plan again.",
            )
        folder.changing("restore", change.path)
        back = -1 if change.app_after is None else change.app_after
        properties = CommitProperties(
            custom_metadata={MARK: backup_id, QUERY: query_id},
            max_commit_retries=0,
            app_transactions=[] if change.app is None else [Transaction(change.app, back)],
        )
        try:
            _commit(table, change, properties)
        except table_errors():
            # it may have arrived all the same: if the log cannot be read now, that is not known
            if not is_marked(change, backup_id):
                raise


def _commit(table: DeltaTable, change: SinkChange, properties: CommitProperties) -> None:
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


def is_marked(change: SinkChange, backup_id: str) -> bool:
    """Whether a table has a commit of ours since its version before."""
    try:
        log = DeltaLog(change.path)
        commits = log.after(change.version or 0, log.newest)
    except (CheckpointError, OSError, ValueError) as error:
        raise SinkUnknownError(f"{change.path} does not answer: {error}") from None
    return any(commit.mark == backup_id for commit in commits)


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Raise the errors of Delta's library as ours."""
    try:
        yield
    except SinkUnknownError:
        raise
    except table_errors() as error:
        raise CheckpointError(
            f"The Delta table {path} cannot be read or set back: {first_line(error)}.",
            "Set it back with Spark (RESTORE TABLE), then go on with --sink append-again.",
        ) from None


def read_apps(path: str, version: int) -> dict[str, int]:
    """Writers that noted batches of theirs in the last commits, each with its last one.

    Not other queries: what Spark's sink writes is noted under a query's id.
    """
    apps: dict[str, int] = {}
    for commit in islice(DeltaLog(path).lineage(version), _RECENT):
        for app, batch in commit.noted.items() if commit.operation != _STREAM else ():
            if not app.startswith(_RUNS):
                apps.setdefault(app, batch)
    return apps


def find_function(apps: Mapping[str, int], last: int) -> str | None:
    """The one writer that may be this query's function; a number above its last batch is no batch.

    >>> find_function({"my-app": 6}, 6), find_function({"my-app": 1006}, 6)
    ('my-app', None)
    >>> find_function({"a": 1, "b": 1}, 6)
    """
    if len(apps) != 1:
        return None
    ((app, batch),) = apps.items()
    # a query's id, whatever its commits are called
    return app if batch <= last and not _UUID.fullmatch(app) else None
