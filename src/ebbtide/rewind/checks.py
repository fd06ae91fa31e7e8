"""Check whether a checkpoint can be rewound to a batch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ebbtide.checkpoint import Checkpoint
from ebbtide.checks import OK, REFUSE, WARN, Check, CheckKind
from ebbtide.errors import CheckpointError


def require(check: Check, what: str) -> None:
    """Refuse what a check stands in the way of."""
    if check.verdict == REFUSE:
        raise CheckpointError(f"{what}: {check.detail}.", check.next)


def check_logs(checkpoint: Checkpoint, batch: int, *, replan: bool) -> Check:
    """Whether the log entries are there that Spark reads at its next start."""
    before = checkpoint.before(batch)
    verdict = REFUSE
    if batch > 0 and before is None:
        detail, advice = f"offsets/{batch - 1} is gone", "Choose a later batch: --to-earliest."
    elif before is not None and not before.committed:
        detail = f"batch {before.id} is not committed, so batch {batch} cannot follow it"
        advice = f"Try --to-batch {before.id}."
    elif replan and before is not None and before.id > 0 and checkpoint.before(before.id) is None:
        detail = f"to plan again, Spark also reads offsets/{before.id - 1}, which is gone"
        advice = "Choose a later batch, or leave out --replan."
    elif not replan and (problem := checkpoint.why_no_repeat(batch)) is not None:
        detail, advice = problem, "Add --replan, or choose a batch of a later run."
    elif before is not None and before.id != batch - 1:
        verdict, advice = WARN, "Otherwise choose another batch."
        detail = (
            f"the batch before {batch} is {before.id}: right with asynchronous progress tracking"
        )
    else:
        return Check(CheckKind.OFFSETS, OK, "every log entry that Spark needs is there")
    return Check(CheckKind.OFFSETS, verdict, detail, advice)


def check_state(checkpoint: Checkpoint, batch: int, *, replan: bool) -> Check:
    """Whether every store can load what the batch starts from."""
    if gone := checkpoint.gone_operators(batch):
        detail = f"operator {gone[0]} has no state: state/{gone[0]} is gone"
        return Check(CheckKind.STATE, REFUSE, detail, "Put the folder back.")
    if not checkpoint.operators:
        return Check(CheckKind.STATE, OK, "the query keeps no state")
    if batch == 0:
        how = "all state goes" if replan else "batch 0 starts from empty state"
        return Check(CheckKind.STATE, OK, how)
    for operator in checkpoint.operators:
        count = checkpoint.partition_count(operator, batch)
        if (first := operator.first_missing(count)) is not None:
            lacks = f"{operator.count_missing(count)} of {count} partitions, the first is {first}"
            detail = f"operator {operator.id} lacks {lacks}"
            advice = "Try --to-latest-good, or put the folders back."
            return Check(CheckKind.STATE, REFUSE, detail, advice)
    chains = checkpoint.chains(batch)
    if broken := [(store, chain.problem) for store, chain in chains.items() if chain.problem]:
        more = f" (and {len(broken) - 1} more stores)" if len(broken) > 1 else ""
        detail = f"version {batch} of {broken[0][0]} does not load: {broken[0][1]}{more}"
        return Check(CheckKind.STATE, REFUSE, detail, "Try --to-latest-good.")
    for operator in checkpoint.operators:
        if checkpoint.may_lack_partitions(operator, batch):
            detail = f"operator {operator.id} has one partition only: right if it has no key"
            return Check(CheckKind.STATE, WARN, detail, "Otherwise put the others back.")
    return Check(CheckKind.STATE, OK, f"version {batch} loads in all {len(chains)} stores")


def check_trigger(checkpoint: Checkpoint, batch: int, *, replan: bool) -> Check | None:
    """Whether Spark will repeat a batch as it was planned; in real-time mode it does not."""
    seen = None if replan else checkpoint.find_real_time()
    if seen is None:
        return None
    return CheckKind.TRIGGER.warn(
        f"batch {seen} was written in real-time mode, which deletes offsets/{batch} when it starts "
        f"and plans batch {batch} again",
        "To repeat it exactly, start the query once with another trigger, such as "
        "availableNow=True, before you start it in real-time mode.",
    )


def check_writable(checkpoint: Checkpoint, removals: Iterable[str]) -> Check | None:
    """Whether we may rename where something goes; a refusal half-way would be worse."""
    if not checkpoint.folder.local:
        return None
    folders = {path.rpartition("/")[0] for path in removals} | {"offsets", ""}
    for directory in sorted(folders):
        path = Path(checkpoint.folder.root) / directory
        if not os.access(path, os.W_OK | os.X_OK):
            advice = "Run as the user that owns the checkpoint."
            return Check(CheckKind.WRITABLE, REFUSE, f"no permission to write to {path}", advice)
    return None


def check_unknown(checkpoint: Checkpoint) -> Check:
    """Whether there are files that we do not understand."""
    if not checkpoint.unknown:
        return Check(CheckKind.UNKNOWN_FILES, OK, "every file is one of Spark's")
    shown = ", ".join(checkpoint.unknown[:3])
    more = f" and {len(checkpoint.unknown) - 3} more" if len(checkpoint.unknown) > 3 else ""
    tops = {path.split("/")[0].split(" (")[0] for path in checkpoint.unknown}
    inside = not tops.isdisjoint(("state", "offsets", "commits", "metadata"))
    return Check(
        CheckKind.UNKNOWN_FILES,
        REFUSE if inside else WARN,
        f"not written by Spark 3.5 to 4.3: {shown}{more}",
        "Move it away if it is not Spark's." if inside else "It stays as it is.",
    )
