"""Messages about a plan or a backup that the command line and the web UI share."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from ebbtide.checkpoint import Backup, Checkpoint
from ebbtide.connectors import connector_of
from ebbtide.formatting import format_bytes
from ebbtide.rewind import RewindPlan

PARTITION_COLUMNS = ("topic", "partition", "current", "new", "to replay", "earliest", "status")


def format_target(plan: RewindPlan) -> str:
    """What is planned, in a line."""
    return f"Rewind {plan.checkpoint} to batch {plan.first_batch} ({plan.resolved})."


def format_amount(plan: RewindPlan) -> str:
    """How much runs again, how, and what leaves the checkpoint."""
    how = f"batch {plan.first_batch} with the records, watermark and time that it had"
    if plan.mode == "replan":
        how = f"new boundaries from batch {plan.first_batch} on"
    batches = "1 batch runs" if plan.batches == 1 else f"{plan.batches} batches run"
    return (
        f"{batches} again ({how}); "
        f"{len(plan.removals)} files go into a backup, {format_bytes(sum(plan.bytes.values()))}."
    )


def list_partitions(plan: RewindPlan) -> list[tuple[object, ...]]:
    """A row for each partition of a Kafka source, as `PARTITION_COLUMNS` names them."""
    return [
        (
            part.topic,
            part.partition,
            part.current,
            part.new,
            f"{part.records:,}",
            "?" if part.earliest is None else part.earliest,
            part.status,
        )
        for part in plan.partitions
    ]


def group_sizes(sizes: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """Count the files of a checkpoint and add up their sizes, one row per kind.

    >>> group_sizes({"commits/1": 29, "state/0/1/2.delta": 1024, "state/0/0/2.delta": 1024})
    [('commits', 1, '29 B'), ('state of operator 0', 2, '2.0 KiB')]
    """
    groups: dict[str, list[int]] = {}
    for path, size in sizes.items():
        top, _, rest = path.partition("/")
        name = top if top != "state" else f"state of operator {rest.partition('/')[0]}"
        groups.setdefault(name, []).append(size)
    return [(name, len(group), format_bytes(sum(group))) for name, group in groups.items()]


def format_rewound(backup: Backup, location: str) -> str:
    """Report that a rewind is done."""
    return (
        f"Done: {location} starts again with batch {backup.first_batch}. "
        f"{len(backup.taken)} files are in backup {backup.id}."
    )


def format_query_id(backup: Backup) -> str | None:
    """The query's new id, where a rewind gave it one."""
    return f"The query has a new id: {backup.next_query_id}." if backup.next_query_id else None


def format_returning(backup: Backup) -> str:
    """What an undo would bring back."""
    first, last = backup.first_batch, backup.last_batch
    if last is None or last < first:
        back = "no committed batch comes back"
    else:
        several = f"batches {first} to {last} come back"
        back = several if last > first else f"batch {first} comes back"
    return (
        f"Backup {backup.id}, made {backup.made_at} by {backup.made_by}: {back}; what runs from "
        f"batch {first} on now goes into a backup of its own."
    )


def list_returning_sinks(backup: Backup, *, leave_sink: bool = False) -> list[str]:
    """What an undo would do to each sink."""
    if leave_sink or not backup.sinks:
        return ["The sink stays as it is now, with all that was written since."]
    return [connector_of(change.kind).sink.format_return(change) for change in backup.sinks]


def format_batches(backup: Backup) -> str:
    """Which batches lie in a backup; the first may be planned only."""
    first, last = backup.first_batch, backup.last_batch
    if last is None or last < first:
        return f"{first} (planned)" if f"offsets/{first}" in backup.taken else "none"
    if not backup.taken:
        return "none"
    return f"{first} to {last}" if last > first else f"{first}"


def format_others(backup: Backup) -> list[str]:
    """Warnings, if something still ran while the checkpoint was changed."""
    others = {"vanished": backup.vanished, "appeared": backup.appeared}
    return [
        f"Warning: {len(paths)} files {what} meanwhile, such as {paths[0]}: the query's "
        "application was still running. Stop it, then verify."
        for what, paths in others.items()
        if paths
    ]


def list_sinks(backup: Backup) -> list[str]:
    """What was done to each sink, if anything."""
    lines = (connector_of(change.kind).sink.format_change(change) for change in backup.sinks)
    return [line for line in lines if line is not None]


def format_damage(checkpoint: Checkpoint) -> str | None:
    """A warning, if the query cannot go on from where the checkpoint stands."""
    latest = checkpoint.logs.latest_committed
    chains = checkpoint.chains(latest.id + 1) if latest else {}
    for store, chain in chains.items():
        if chain.problem:
            return (
                f"Warning: the query cannot go on from here, {store} does not load: "
                f"{chain.problem}. See: ebbtide verify {quote(checkpoint.location)}"
            )
    return None


def undo_command(location: str) -> str:
    """The command that undoes the last change.

    >>> undo_command("my checkpoints/c")
    "ebbtide undo 'my checkpoints/c'"
    """
    return f"ebbtide undo {quote(location)}"


def summarize_backup(backup: Backup) -> dict[str, Any]:
    """A backup without its lists of files."""
    values = backup.to_dict()
    counts = {name: len(values[name]) for name in ("taken", "kept", "vanished", "appeared")}
    return {**values, **counts}
