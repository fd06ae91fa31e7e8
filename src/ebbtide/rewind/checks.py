"""A checkpoint and a first batch in, verdicts out: may this rewind be done?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ebbtide.checkpoint import Checkpoint, log_files, state_files
from ebbtide.rewind.lease import read_lease
from ebbtide.storage import Folder
from ebbtide.times import say_age

OK, WARN, REFUSE = "ok", "warn", "refuse"
NOT_ASKED = "not asked"
_RECENT_SECONDS = 60
_OWN_WRITES_SECONDS = 30


@dataclass(frozen=True)
class Check:
    """One question about a rewind and its answer."""

    name: str
    verdict: str
    detail: str
    next: str = ""


@dataclass(frozen=True)
class Replayed:
    """What a rewind means for one partition of a Kafka source."""

    topic: str
    partition: int
    current: int
    new: int
    earliest: int | None = None
    latest: int | None = None
    status: str = NOT_ASKED

    @property
    def records(self) -> int:
        """How many records will be read again."""
        return max(0, self.current - self.new)


def check_running(folder: Folder, logs: log_files.Logs, *, assume_stopped: bool) -> Check:
    """Whether the query is stopped: our lease says so, or nobody has written for a while."""
    lease = read_lease(folder)
    if lease is not None and (holder := lease.holder()) is not None:
        return Check("not running", REFUSE, f"the query is running ({holder})", "Stop it first.")
    written = _last_write(folder, logs)
    if lease is not None and lease.ended and written < lease.renewed + _OWN_WRITES_SECONDS:
        return Check("not running", OK, "its last run by Ebbtide has ended")
    age = time.time() - written
    recent = max(_RECENT_SECONDS, 2 * _longest_pause(logs))
    if age >= recent:
        return Check("not running", OK, f"nothing was written for {say_age(age)}")
    if assume_stopped:
        return Check("not running", WARN, f"written {say_age(age)} ago; you say it is stopped")
    return Check(
        "not running",
        REFUSE,
        f"the query may be running: it wrote {say_age(age)} ago",
        "Stop it, then add --assume-stopped.",
    )


def _last_write(folder: Folder, logs: log_files.Logs) -> float:
    done = logs.latest_committed
    paths = [f"offsets/{batch.id}" for batch in logs.batches[-1:]]
    paths += [f"commits/{done.id}"] if done else []
    stats = (folder.stat(path) for path in paths)
    return max((stat.modified for stat in stats if stat is not None), default=0.0)


def _longest_pause(logs: log_files.Logs) -> float:
    """The longest time between two of the last batches, up to an hour: it may just be waiting."""
    times = [batch.offsets.timestamp_ms for batch in logs.batches[-10:]]
    pauses = [(b - a) / 1000 for a, b in pairwise(times)]
    return min(3600.0, max(pauses, default=0.0))


def check_logs(checkpoint: Checkpoint, batch: int, *, replan: bool) -> Check:
    """Whether the log entries are there that Spark reads at its next start."""
    before = checkpoint.before(batch)
    if batch > 0 and before is None:
        return Check(
            "offsets",
            REFUSE,
            f"offsets/{batch - 1} is gone",
            "Choose a later batch: --to-earliest.",
        )
    if before is not None and not before.committed:
        return Check(
            "offsets",
            REFUSE,
            f"batch {before.id} is not committed, so batch {batch} cannot follow it",
            f"Try --to-batch {before.id}.",
        )
    if replan and before is not None and before.id > 0 and checkpoint.before(before.id) is None:
        return Check(
            "offsets",
            REFUSE,
            f"to plan anew, Spark also reads offsets/{before.id - 1}, which is gone",
            "Choose a later batch, or leave out --replan.",
        )
    return _check_entry(checkpoint, batch, replan=replan)


def _check_entry(checkpoint: Checkpoint, batch: int, *, replan: bool) -> Check:
    if not replan and (problem := checkpoint.why_no_repeat(batch)) is not None:
        return Check("offsets", REFUSE, problem, "Add --replan, or choose a batch of a later run.")
    before = checkpoint.before(batch)
    if before is not None and before.id != batch - 1:
        return Check(
            "offsets",
            WARN,
            f"the batch before {batch} is {before.id}: right if progress is tracked asynchronously",
            "Otherwise choose another batch.",
        )
    return Check("offsets", OK, "every log entry that Spark needs is there")


def check_state(
    checkpoint: Checkpoint,
    batch: int,
    chains: Mapping[state_files.Store, state_files.Chain],
    *,
    replan: bool,
) -> Check:
    """Whether every store can load what the batch starts from."""
    if not checkpoint.operators:
        return Check("state", OK, "the query keeps no state")
    if batch == 0:
        how = "all state goes" if replan else "batch 0 starts from empty state"
        return Check("state", OK, how)
    for operator in checkpoint.operators:
        count = checkpoint.partition_count(operator, batch)
        if missing := operator.missing_partitions(count):
            return Check(
                "state",
                REFUSE,
                f"operator {operator.id} lacks {len(missing)} of {count} partitions, "
                f"the first is {missing[0]}",
                "Try --to-latest-good, or put the folders back.",
            )
    broken = [(store, chain) for store, chain in chains.items() if chain.problem]
    if broken:
        store, chain = broken[0]
        more = f" (and {len(broken) - 1} more stores)" if len(broken) > 1 else ""
        return Check(
            "state",
            REFUSE,
            f"version {batch} of {store} does not load: {chain.problem}{more}",
            "Try --to-latest-good.",
        )
    for operator in checkpoint.operators:
        if operator.partition_ids == (0,) and operator.keyless is None:
            return Check(
                "state",
                WARN,
                f"operator {operator.id} has one partition only: right if it has no key",
                "Otherwise put the others back.",
            )
    return Check("state", OK, f"version {batch} loads in all {len(chains)} stores")


def check_writable(checkpoint: Checkpoint, removals: Iterable[str]) -> Check | None:
    """Whether we may rename where something goes; a refusal half-way would be worse."""
    if not checkpoint.folder.local:
        return None
    folders = {path.rpartition("/")[0] for path in removals} | {"offsets", ""}
    for directory in sorted(folders):
        path = Path(checkpoint.folder.root) / directory
        if not os.access(path, os.W_OK | os.X_OK):
            return Check(
                "writable",
                REFUSE,
                f"no permission to write to {path}",
                "Run as the user that owns the checkpoint.",
            )
    return None


def check_unknown(checkpoint: Checkpoint) -> Check:
    """Whether there are files that we do not understand."""
    if not checkpoint.unknown:
        return Check("known files", OK, "every file is one of Spark's")
    shown = ", ".join(checkpoint.unknown[:3])
    more = f" and {len(checkpoint.unknown) - 3} more" if len(checkpoint.unknown) > 3 else ""
    inside = any(path.startswith(("state/", "offsets/", "commits/")) for path in checkpoint.unknown)
    return Check(
        "known files",
        REFUSE if inside else WARN,
        f"not written by Spark 3.5 to 4.2: {shown}{more}",
        "Move it away if it is not Spark's." if inside else "It stays as it is.",
    )
