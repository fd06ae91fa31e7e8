"""A Delta table's log in, what it will do with batches that run again out; and the way back.

A Delta sink notes with each commit the query's id and the batch, and skips batches up to the last
one that it has noted. A restore of the table does not take that back, so the query gets a new id.
A foreachBatch function may keep such notes itself (`txnAppId`, `txnVersion`), under a name of its
own: then the commit that restores the table also sets the noted batch back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from ebbtide.checkpoint import SinkChange
from ebbtide.errors import CheckpointError
from ebbtide.storage import WritableFolder, open_folder
from ebbtide.times import in_utc

EMPTY = -1
"""The version before a table's first one: no rows."""
_MARK, _QUERY = "ebbtide", "ebbtide-query"
"""How a commit of ours names the backup that it belongs to, and the query."""
_STREAM = "STREAMING UPDATE"
"""What Spark's own Delta sink calls a commit."""
_RUNS = "ebbtide-"
"""How the names begin under which a reprocessing run notes what it wrote: those are no queries."""
_APPEND_ONLY = "delta.appendOnly"
_RECENT = 100
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)


@dataclass(frozen=True)
class Commit:
    """One version of a table, as its log tells."""

    version: int
    operation: str
    at: str
    by: str
    noted: Mapping[str, int]
    """By writer, the batch that it noted."""
    rows: int
    changes: bool
    """Whether it changed rows, columns or properties; merging files does not."""
    complete: bool
    """Whether it took the place of all rows (output mode complete)."""
    restores: int | None
    """The version that it brought back."""
    mark: str | None
    """Of ours: the backup that it belongs to."""
    query: str | None
    """Of ours: the id that the query had."""

    def is_of(self, ids: Collection[str]) -> bool:
        """Whether it is a change of ours that belongs to a query."""
        return self.query in ids

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation}, {self.at}, {self.by})"


@dataclass(frozen=True)
class Table:
    """What a table holds of the batches from one on, and how it goes back to before them."""

    path: str
    version: int
    known: bool
    """Whether the query, or the one writer that notes its own batches, has ever noted one."""
    skips: int | None
    """Batches up to this one are skipped."""
    held: tuple[Commit, ...]
    """The commits of the batches in question that the table shows, newest first."""
    before: int | None
    """The version before them; None if the log does not tell any more."""
    others: tuple[Commit, ...]
    """What others have changed since that version."""
    apps: Mapping[str, int] = field(default_factory=dict)
    """Names of writers that keep notes of their own, each with its last batch."""
    app: str | None = None
    """The one of them that writes the table, if there is one only."""

    @property
    def rows(self) -> int:
        """How many rows the batches in question wrote."""
        return sum(commit.rows for commit in self.held)

    @property
    def complete(self) -> bool:
        """Whether each batch takes the place of all rows, so that none is there twice."""
        return bool(self.held) and all(commit.complete for commit in self.held)


def read_table(
    path: str, query_id: str, ids: Collection[str], first: int, last: int
) -> Table | None:
    """What the table holds of a query's batches from one on; None if there is no table.

    `ids` are all that the query has had, `last` is its last batch. Steps: **1** who writes the
    table; **2** down the commits that made it what it is, to the first of the batches in question;
    **3** the version before it.
    """
    with readable(path):
        if not DeltaTable.is_deltatable(_uri(path)):
            return None
        # 1
        table = DeltaTable(_uri(path))
        version = table.version()
        known = any(table.transaction_version(id_) is not None for id_ in ids)
        apps = {} if known else _apps(path, version)
        app = _function(apps, last)
        writers = {app} if app else set(ids)
        # 2
        held: list[Commit] = []
        since: list[Commit] = []
        found = False
        for commit in _lineage(path, version):
            noted = max((commit.noted[w] for w in writers if w in commit.noted), default=None)
            if found := noted is not None and noted < first:
                break
            since.append(commit)
            held += [commit] if noted is not None else []
        # 3
        before: int | None = version
        if held:
            # Spark's sink commits every batch, a function perhaps only those with rows
            found = found or first in held[-1].noted.values()
            found = found or (app is not None and since[-1].version == 0)
            before = held[-1].version - 1 if found else None
        since = [commit for commit in since if held and commit.version >= held[-1].version]
        return Table(
            path,
            version,
            known or app is not None,
            table.transaction_version(app or query_id),
            tuple(held),
            before,
            tuple(c for c in since if c.changes and c not in held and not c.is_of(ids)),
            apps,
            app,
        )


def newest_version(path: str) -> int:
    """A table's newest version, by the names in its log alone."""
    names = open_folder(_uri(path)).names("_delta_log")
    found = [int(name[:20]) for name in names if name[:20].isdigit() and name.endswith(".json")]
    if not found:
        raise CheckpointError(f"The log of the Delta table {path} cannot be read.")
    return max(found)


def read_others(change: SinkChange, ids: Collection[str]) -> tuple[int, tuple[Commit, ...]]:
    """A table's version now, and what others have changed in it since a change of ours."""
    assert change.version is not None
    ours = {*ids, *([change.app] if change.app else [])}
    with readable(change.path):
        if not DeltaTable.is_deltatable(_uri(change.path)):
            return EMPTY, ()
        version = DeltaTable(_uri(change.path)).version()
        commits = [_read(change.path, v) for v in range(change.version + 1, version + 1)]
        return version, tuple(
            commit
            for commit in commits
            if commit and commit.changes and not commit.is_of(ids) and not ours & set(commit.noted)
        )


def noted_batch(path: str, app: str | None) -> int | None:
    """The last batch that a writer has noted."""
    with readable(path):
        return None if app is None else DeltaTable(_uri(path)).transaction_version(app)


def why_no_version(path: str, version: int) -> str | None:
    """Why a table cannot go back to a version; None if it can."""
    try:
        table = DeltaTable(_uri(path))
        shown, wanted = set(table.file_uris()), set[str]()
        if version != EMPTY:
            wanted = set(DeltaTable(_uri(path), version=version).file_uris())
    except (DeltaError, OSError, ValueError) as error:
        return f"its version {version} cannot be loaded ({_first_line(error)})"
    # the library would take them out all the same, though its owner has said that none may go
    if shown - wanted and table.metadata().configuration.get(_APPEND_ONLY, "").lower() == "true":
        return f"it is append-only ({_APPEND_ONLY}), and rows would have to be taken out"
    folder = open_folder(_uri(path))
    missing = [uri for uri in sorted(wanted - shown) if not folder.filesystem.exists(uri)]
    if not missing:
        return None
    return f"{len(missing)} data files of version {version} are gone (vacuumed): {missing[0]}"


def restore_table(
    folder: WritableFolder, change: SinkChange, backup_id: str, query_id: str
) -> None:
    """Set a table back in one commit, once; refuse, changing nothing, if it was written to."""
    if (change.version, change.app_before) == (change.to_version, change.app_after):
        return
    assert change.version is not None
    assert change.to_version is not None
    # a table that does not answer may have been set back before an interruption
    if _is_marked(change, backup_id):
        return
    with readable(change.path):
        table = DeltaTable(_uri(change.path))
        later = [_read(change.path, v) for v in range(change.version + 1, table.version() + 1)]
        if others := [commit for commit in later if commit and commit.changes]:
            raise CheckpointError(
                f"The table {change.path} was written to meanwhile: {others[0]}.",
                "Stop what writes to it, then plan again.",
            )
        folder.changing("restore", change.path)
        back = -1 if change.app_after is None else change.app_after
        properties = CommitProperties(
            custom_metadata={_MARK: backup_id, _QUERY: query_id},
            max_commit_retries=0,
            app_transactions=[] if change.app is None else [Transaction(change.app, back)],
        )
        try:
            _commit(table, change, properties)
        except (DeltaError, OSError, ValueError):
            # it may have arrived all the same: if the log cannot be read now, that is not known
            if not _is_marked(change, backup_id):
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


def _is_marked(change: SinkChange, backup_id: str) -> bool:
    """Whether a table has a commit of ours since its version before."""
    try:
        newest = newest_version(change.path)
        commits = [_read(change.path, v) for v in range((change.version or 0) + 1, newest + 1)]
    except (CheckpointError, OSError, ValueError) as error:
        raise SinkUnknownError(f"{change.path} does not answer: {error}") from None
    return any(commit and commit.mark == backup_id for commit in commits)


class SinkUnknownError(OSError):
    """Whether a change of the sink was carried out cannot be told now."""


@contextmanager
def readable(path: str) -> Iterator[None]:
    """What the table's library says, as an error of ours."""
    try:
        yield
    except SinkUnknownError:
        raise
    except (DeltaError, OSError, ValueError) as error:
        raise CheckpointError(
            f"The Delta table {path} cannot be read or set back: {_first_line(error)}.",
            "Set it back with Spark (RESTORE TABLE), then go on with --sink append-again.",
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def _uri(path: str) -> str:
    """As the library spells it: Hadoop's name for S3 is its own."""
    return f"s3://{path[6:]}" if path.startswith("s3a://") else path


def _apps(path: str, version: int) -> dict[str, int]:
    """Writers that noted batches of theirs in the last commits, each with its last one.

    Not other queries: what Spark's sink writes is noted under a query's id.
    """
    found: dict[str, int] = {}
    for commit in islice(_lineage(path, version), _RECENT):
        for app, batch in commit.noted.items() if commit.operation != _STREAM else ():
            if not app.startswith(_RUNS):
                found.setdefault(app, batch)
    return found


def _function(apps: Mapping[str, int], last: int) -> str | None:
    """The one writer that may be this query's function; a number above its last batch is no batch.

    >>> _function({"my-app": 6}, 6), _function({"my-app": 1006}, 6), _function({"a": 1, "b": 1}, 6)
    ('my-app', None, None)
    """
    if len(apps) != 1:
        return None
    ((app, batch),) = apps.items()
    # a query's id, whatever its commits are called
    return app if batch <= last and not _UUID.fullmatch(app) else None


def _lineage(path: str, version: int) -> Iterator[Commit]:
    """The commits that made the table what it is, newest first, as far as the log goes back.

    A restore leads to the version that it brought back: what lies between is undone.
    """
    while version >= 0 and (commit := _read(path, version)) is not None:
        yield commit
        version = version - 1 if commit.restores is None else commit.restores


def _read(path: str, version: int) -> Commit | None:
    """One commit; None if the log has been cleaned up."""
    text = open_folder(_uri(path)).read("_delta_log", f"{version:020}.json")
    if text is None:
        return None
    actions: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines() if line]
    said: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    operation, parameters = said.get("operation", "unknown"), said.get("operationParameters", {})
    files = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
    mark = said.get(_MARK)
    return Commit(
        version,
        operation,
        in_utc(said["timestamp"]) if "timestamp" in said else "at an unknown time",
        f"by {said.get('userName') or said.get('engineInfo') or 'an unknown writer'}",
        {a["txn"]["appId"]: int(a["txn"]["version"]) for a in actions if "txn" in a},
        _rows(said, actions),
        any(file.get("dataChange", True) for file in files)
        or any(kind in action for action in actions for kind in ("metaData", "protocol")),
        parameters.get("outputMode") == "Complete",
        _restores(operation, parameters, mark),
        mark,
        said.get(_QUERY),
    )


def _rows(said: Mapping[str, Any], actions: list[dict[str, Any]]) -> int:
    counted = said.get("operationMetrics", {}).get("numOutputRows")
    if counted is not None:
        return int(counted)
    stats = [action["add"].get("stats") for action in actions if "add" in action]
    return sum(json.loads(text).get("numRecords", 0) for text in stats if text)


def _restores(operation: str, parameters: Mapping[str, Any], mark: str | None) -> int | None:
    if operation == "RESTORE" and str(parameters.get("version")).isdigit():
        return int(parameters["version"])
    return EMPTY if operation == "DELETE" and mark is not None else None
