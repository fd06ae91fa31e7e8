"""Find a query's batches in the log of a Delta table, and the version before them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice

from ebbtide.checkpoint import SinkChange
from ebbtide.connectors.base import ReplayedQuery
from ebbtide.connectors.delta.log import (
    EMPTY,
    DeltaCommit,
    DeltaLog,
    find_state,
    newest_version,
)
from ebbtide.connectors.delta.rollback import readable, require_own_log

_STREAM = "STREAMING UPDATE"
"""The operation of a commit by Spark's own Delta sink."""
_RUNS = "ebbtide-"
"""The prefix of the names under which reprocessing runs note what they wrote."""
_RECENT = 100
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)


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
        if (table := find_state(path)) is None:
            return None
        require_own_log(table)
        # 1
        log, version = DeltaLog(path), table.version
        is_writer = any(table.noted(id_) is not None for id_ in ids)
        apps = {} if is_writer else read_apps(path, version)
        app = find_function(apps, query.last)
        writers = {app} if app else set(ids)
        # 2
        held: list[DeltaCommit] = []
        since: list[DeltaCommit] = []
        is_complete = False
        for commit in log.lineage(version):
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
        undone = [c for c in since if c.is_restore and _hides(log, c, writers, first)]
        since = [c for c in since if c in undone or (held and c.version >= held[-1].version)]
        return HeldBatches(
            path,
            version,
            known=is_writer or app is not None,
            skips=table.noted(app or query_id),
            held=tuple(held),
            before=before,
            others=_by_others(since, writers, ids),
            apps=apps,
            app=app,
        )


def _hides(log: DeltaLog, restore: DeltaCommit, writers: Set[str], first: int) -> bool:
    """Whether a restore has taken out one of the batches in question."""
    # which version one to a point in time brought back is not said: any before it
    back = EMPTY if restore.restores is None else restore.restores
    hidden = (log.read(version) for version in log.between(back + 1, restore.version - 1)[::-1])
    return any(c.noted.get(writer, EMPTY) >= first for c in hidden if c for writer in writers)


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
        if (version := newest_version(change.path)) is None:
            return EMPTY, ()
        commits = DeltaLog(change.path).after(change.version, version)
        return version, _by_others(commits, writers, ids)


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
