"""Check whether a checkpoint can be rewound to a batch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ebbtide.checkpoint import Checkpoint
from ebbtide.checks import OK, REFUSE, WARN, Check, CheckKind


def check_logs(checkpoint: Checkpoint, batch: int, *, replan: bool) -> Check:
    """Whether the log entries are there that Spark reads at its next start."""
    before = checkpoint.before(batch)
    if batch > 0 and before is None:
        return Check(
            CheckKind.OFFSETS,
            REFUSE,
            f"offsets/{batch - 1} is gone",
            "Choose a later batch: --to-earliest.",
        )
    if before is not None and not before.committed:
        return Check(
            CheckKind.OFFSETS,
            REFUSE,
            f"batch {before.id} is not committed, so batch {batch} cannot follow it",
            f"Try --to-batch {before.id}.",
        )
    if replan and before is not None and before.id > 0 and checkpoint.before(before.id) is None:
        return Check(
            CheckKind.OFFSETS,
            REFUSE,
            f"to plan anew, Spark also reads offsets/{before.id - 1}, which is gone",
            "Choose a later batch, or leave out --replan.",
        )
    return _check_entry(checkpoint, batch, replan=replan)


def _check_entry(checkpoint: Checkpoint, batch: int, *, replan: bool) -> Check:
    if not replan and (problem := checkpoint.why_no_repeat(batch)) is not None:
        return Check(
            CheckKind.OFFSETS, REFUSE, problem, "Add --replan, or choose a batch of a later run."
        )
    before = checkpoint.before(batch)
    if before is not None and before.id != batch - 1:
        return Check(
            CheckKind.OFFSETS,
            WARN,
            f"the batch before {batch} is {before.id}: right if progress is tracked asynchronously",
            "Otherwise choose another batch.",
        )
    return Check(CheckKind.OFFSETS, OK, "every log entry that Spark needs is there")


def check_state(checkpoint: Checkpoint, batch: int, *, replan: bool) -> Check:
    """Whether every store can load what the batch starts from."""
    if not checkpoint.operators:
        return Check(CheckKind.STATE, OK, "the query keeps no state")
    if batch == 0:
        how = "all state goes" if replan else "batch 0 starts from empty state"
        return Check(CheckKind.STATE, OK, how)
    for operator in checkpoint.operators:
        count = checkpoint.partition_count(operator, batch)
        if missing := operator.missing_partitions(count):
            return Check(
                CheckKind.STATE,
                REFUSE,
                f"operator {operator.id} lacks {len(missing)} of {count} partitions, "
                f"the first is {missing[0]}",
                "Try --to-latest-good, or put the folders back.",
            )
    chains = checkpoint.chains(batch)
    broken = [(store, chain) for store, chain in chains.items() if chain.problem]
    if broken:
        store, chain = broken[0]
        more = f" (and {len(broken) - 1} more stores)" if len(broken) > 1 else ""
        return Check(
            CheckKind.STATE,
            REFUSE,
            f"version {batch} of {store} does not load: {chain.problem}{more}",
            "Try --to-latest-good.",
        )
    for operator in checkpoint.operators:
        if operator.partition_ids == (0,) and operator.keyless is None:
            return Check(
                CheckKind.STATE,
                WARN,
                f"operator {operator.id} has one partition only: right if it has no key",
                "Otherwise put the others back.",
            )
    return Check(CheckKind.STATE, OK, f"version {batch} loads in all {len(chains)} stores")


def check_writable(checkpoint: Checkpoint, removals: Iterable[str]) -> Check | None:
    """Whether we may rename where something goes; a refusal half-way would be worse."""
    if not checkpoint.folder.local:
        return None
    folders = {path.rpartition("/")[0] for path in removals} | {"offsets", ""}
    for directory in sorted(folders):
        path = Path(checkpoint.folder.root) / directory
        if not os.access(path, os.W_OK | os.X_OK):
            return Check(
                CheckKind.WRITABLE,
                REFUSE,
                f"no permission to write to {path}",
                "Run as the user that owns the checkpoint.",
            )
    return None


def check_unknown(checkpoint: Checkpoint) -> Check:
    """Whether there are files that we do not understand."""
    if not checkpoint.unknown:
        return Check(CheckKind.UNKNOWN_FILES, OK, "every file is one of Spark's")
    shown = ", ".join(checkpoint.unknown[:3])
    more = f" and {len(checkpoint.unknown) - 3} more" if len(checkpoint.unknown) > 3 else ""
    inside = any(path.startswith(("state/", "offsets/", "commits/")) for path in checkpoint.unknown)
    return Check(
        CheckKind.UNKNOWN_FILES,
        REFUSE if inside else WARN,
        f"not written by Spark 3.5 to 4.2: {shown}{more}",
        "Move it away if it is not Spark's." if inside else "It stays as it is.",
    )
