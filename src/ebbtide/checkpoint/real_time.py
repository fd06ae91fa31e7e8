"""Tell whether a query ran in real-time mode (Spark 4.1 and newer).

A run of a pipeline leaves a note of its mode. Without one, the times of log files tell: in
real-time mode, Spark writes a batch's offsets when it ends, just before its commit, and otherwise
when it begins.
"""

from __future__ import annotations

from itertools import pairwise

from ebbtide.checkpoint.log_files import Batch, Logs
from ebbtide.notes import LastMode, RunMode
from ebbtide.storage import Folder

_RECENT = 5
"""How many batches are looked at: the trigger may have changed long ago."""
_SHORTEST_MS = 4_000
"""A batch of real-time mode takes at least 5 seconds, unless an internal setting is changed."""


def find_real_time(folder: Folder, logs: Logs) -> int | None:
    """The latest batch that was written in real-time mode, of the last few; None if none was.

    What files say of batches before the last run does not count, as that had another mode.
    """
    last, committed = LastMode.read(folder), logs.latest_committed
    if last is not None and committed is not None and last.mode == RunMode.REAL_TIME:
        return committed.id  # also after a rewind to before that run: the next is as this one was
    found = _find_by_times(folder, logs)
    return None if last and found is not None and found < last.first_batch else found


def _find_by_times(folder: Folder, logs: Logs) -> int | None:
    pairs = [pair for pair in pairwise(logs.batches) if pair[0].committed][-_RECENT:]
    paths = [f"{log}/{batch.id}" for batch, _ in pairs for log in ("offsets", "commits")]
    stats = iter(folder.map(folder.stat, paths))
    found = None
    for (batch, after), offsets, commit in zip(pairs, stats, stats, strict=True):
        # a store may not know when a file was written
        if offsets and offsets.modified and commit and commit.modified:
            times = (int(offsets.modified * 1000), int(commit.modified * 1000))
            found = batch.id if _is_real_time(batch, *times, after) else found
    return found


def _is_real_time(batch: Batch, offsets_ms: int, commit_ms: int, after: Batch) -> bool:
    took = offsets_ms - batch.offsets.timestamp_ms
    # the files of a copied checkpoint are younger than the batches that followed
    original = commit_ms - after.offsets.timestamp_ms < _SHORTEST_MS
    return original and took >= _SHORTEST_MS and commit_ms - offsets_ms < took / 4
