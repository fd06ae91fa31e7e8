"""Find out how long a Delta table keeps what a batch reads, or can be rolled back to before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ebbtide.connectors.base import Limit, Retention, RetentionRequest, from_millis
from ebbtide.connectors.delta.log import DeltaCommit, LoggedTable, open_table, table_errors
from ebbtide.connectors.delta.source import DeltaOffset, VersionRange, find_range
from ebbtide.connectors.registry import connector_of_offset
from ebbtide.errors import EbbtideError, first_line
from ebbtide.pipeline import Delta
from ebbtide.times import EPOCH

_COMMITS = 100
"""How many commits of a table are read at a time, and how many times at most."""
Limiter = Callable[[RetentionRequest, LoggedTable], dict[int, Limit]]


def limit_table(asked: RetentionRequest, limit: Limiter) -> Retention:
    """How long the table in the runner's note keeps what is needed, if there is one."""
    if (path := asked.note.get("path")) is None:
        return Retention()
    try:
        table = open_table(path)
        return Retention({} if table is None else limit(asked, table))
    except table_errors(EbbtideError) as error:
        why = first_line(error)
        return Retention({}, (f"How long {path} keeps its files is not known: {why}",))


def limit_by_source(asked: RetentionRequest, table: LoggedTable) -> dict[int, Limit]:
    """How long the table that a query reads keeps the versions and files from a batch on."""
    ranges = _ranges(asked)
    if not ranges:
        return {}
    commits = table.commits(min(read.oldest for read in ranges.values()), table.version)
    removals = _removals(commits)
    # a vacuum takes only what was taken out long enough ago
    ended = _to_ms(asked.now - EPOCH - table.file_retention)
    vacuumed = frozenset(table.missing(file.path for file in removals if file.at_ms < ended))
    limits = {}
    for batch, needed in ranges.items():
        files = [file for file in removals if file.is_in(needed)]
        lost = next((file.path for file in files if file.path in vacuumed), None)
        if gone := needed.missing_from(table):
            why = f"the log of {table.path} no longer has version {gone[0]}"
            limits[batch] = Limit(Delta.kind, gone=why)
        elif lost is not None:
            limits[batch] = Limit(Delta.kind, gone=f"{table.path} was vacuumed: {lost} is gone")
        else:
            limits[batch] = Limit(Delta.kind, _end(table, commits.get(needed.oldest), files))
    return limits


def _ranges(asked: RetentionRequest) -> dict[int, VersionRange]:
    """By batch, what it and those after it read of a Delta table; of its first Delta source."""
    checkpoint = asked.checkpoint
    planned = checkpoint.logs.batches[-1].offsets.sources if checkpoint.logs.batches else ()
    index = next(
        (n for n, text in enumerate(planned) if connector_of_offset(text).kind == Delta.kind), None
    )
    if index is None:
        return {}
    ends = {
        batch.id: DeltaOffset.parse(batch.offsets.sources[index] or "")
        for batch in checkpoint.logs.batches
        if index < len(batch.offsets.sources) and batch.offsets.sources[index] is not None
    }
    last = max(ends)
    ranges = {}
    for batch in asked.batches:
        before = checkpoint.before(batch)
        start = ends.get(before.id) if before else None
        if batch in ends:
            ranges[batch] = find_range(start, ends[batch], ends[last])
    return ranges


@dataclass(frozen=True)
class _Removal:
    """A file that was taken out of a table."""

    path: str
    at_ms: int
    version: int
    added: int | None
    """The version that had added it; None if that is older than what was read."""

    def is_in(self, needed: VersionRange) -> bool:
        """Whether a range reads it."""
        if self.added is None or self.added < needed.first:
            return needed.snapshot is not None and self.version > needed.snapshot
        return self.added <= needed.last


def _removals(commits: Mapping[int, DeltaCommit]) -> list[_Removal]:
    added: dict[str, int] = {}
    removals = []
    for version, commit in sorted(commits.items()):
        for path, at in commit.removed.items():
            removals.append(_Removal(path, at, version, added.get(path)))
        added.update(dict.fromkeys(commit.added, version))
    return removals


def _end(table: LoggedTable, oldest: DeltaCommit | None, files: list[_Removal]) -> datetime | None:
    """The earliest time at which a table may delete its oldest log entry or a file."""
    ends = [file.at_ms + _to_ms(table.file_retention) for file in files]
    if oldest is not None:
        ends.append(int(oldest.modified * 1000) + _to_ms(table.log_retention))
    return from_millis(min(ends, default=None))


def limit_by_sink(asked: RetentionRequest, table: LoggedTable) -> dict[int, Limit]:
    """How long a table can be brought back to the version before a batch's commit."""
    batches = asked.batches
    if not batches:
        return {}
    commits: dict[int, DeltaCommit] = {}
    written: dict[int, int] = {}
    newest = table.version
    for _ in range(_COMMITS):
        chunk = table.commits(max(0, newest - _COMMITS + 1), newest)
        commits |= chunk
        for version, commit in chunk.items():
            if (batch := commit.noted.get(asked.checkpoint.logs.query_id)) is not None:
                written[batch] = min(version, written.get(batch, version))
        newest -= _COMMITS
        if newest < 0 or not chunk or min(written, default=batches[0] + 1) <= batches[0]:
            break
    removals = _removals(commits)
    limits = {}
    for batch in batches:
        # before the first commit, and without one, there is nothing to be brought back
        before = min((v for other, v in written.items() if other >= batch), default=0) - 1
        if before >= 0:
            needed = VersionRange(before, before + 1, before)
            files = [file for file in removals if file.is_in(needed)]
            limits[batch] = Limit(Delta.kind, _end(table, commits.get(before), files))
    return limits


def _to_ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
