"""Plan what a rewind does to a query's sink."""

from __future__ import annotations

from ebbtide.checkpoint import Checkpoint
from ebbtide.checks import Check, CheckKind
from ebbtide.connections import KafkaConnection
from ebbtide.connectors.base import ReplayedQuery, SinkPlace, SinkPlan
from ebbtide.connectors.registry import all_connectors, connector_of
from ebbtide.errors import UsageError


def plan_sink(
    checkpoint: Checkpoint,
    batch: int,
    place: SinkPlace | None,
    remedy: str | None,
    connection: KafkaConnection | None,
) -> tuple[SinkPlan | None, Check]:
    """What a rewind to a batch does to the sink, and the check that reports it."""
    flags = " or ".join(c.sink.flag for c in all_connectors() if c.sink.flag)
    if place is None:
        if remedy is not None:
            raise UsageError(f"--sink {remedy} needs to know the sink.", f"Add {flags}.")
        return None, CheckKind.SINK.warn(
            "not known, so what it does with batches that it has seen cannot be predicted: "
            "Delta and file sinks skip them, others write them again",
            f"Name it with {flags}.",
        )
    sink = connector_of(place.kind).sink
    if remedy is not None and not sink.can_restore:
        raise UsageError(
            f"--sink {remedy} is for Delta and file sinks, and this query writes to {place.name}.",
            "Leave it out, or name the table that it writes with --sink-table.",
        )
    if sink.can_restore and not place.path:
        return SinkPlan(place), CheckKind.SINK.refuse(
            f"{place.name} skips batches that it has seen, and where it lies was not noted",
            f"Name it with {flags}.",
        )
    return sink.plan(place, ReplayedQuery(checkpoint, batch, remedy, connection))
