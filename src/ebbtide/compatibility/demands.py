"""What a checkpoint demands of the query that goes on from it, read without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide.checkpoint import Checkpoint, Owner, Timeline, read_checkpoint
from ebbtide.compatibility.operators import OperatorState, read_operators
from ebbtide.connectors import SinkPlace, connector_of_offset
from ebbtide.errors import CheckpointError
from ebbtide.storage import open_folder


@dataclass(frozen=True)
class SourceDemand:
    """One source, as the newest offsets show it."""

    kind: str
    """That of its connector; `none` if it had no offset yet, or `unknown`."""
    names: tuple[str, ...] = ()
    """The topics, the table's id, or the folders of the files that were read."""
    offset: str | None = None
    """The newest, as Spark writes it."""


@dataclass(frozen=True)
class CheckpointDemands:
    """Everything in a checkpoint to which a new query must fit."""

    location: str
    next_batch: int
    sources: tuple[SourceDemand, ...]
    operators: tuple[OperatorState, ...]
    conf: Mapping[str, str]
    """The settings that Spark takes from the checkpoint, whatever the session says."""
    partitions: int | None
    watermark_ms: int
    timeline: str
    dropped_ms: int = 0
    """The watermark by which the last committed batch dropped state; the newest may be later."""
    has_state_ids: bool = False
    """Whether the state has checkpoint format version 2."""
    sink: SinkPlace | None = None
    """Where the query writes, if a run of Ebbtide noted it."""
    metadata: str = "{}"
    """The second line of the newest offsets, from which Spark takes the settings."""


def read_demands(location: str) -> tuple[Checkpoint, CheckpointDemands]:
    """Read a checkpoint and what it demands; refuse one from which no query could go on."""
    folder = open_folder(location)
    if not folder.names():
        raise CheckpointError(
            f"There is no checkpoint at {location} yet, so any query can start there.",
            "Name the folder that holds metadata, offsets and commits.",
        )
    checkpoint = read_checkpoint(location)
    checkpoint.require_finished()
    if not checkpoint.logs.batches:
        raise CheckpointError(
            f"No batch of {location} is planned yet, so any query can start there.",
            "Check again when its first batch has run.",
        )
    return checkpoint, describe_demands(checkpoint)


def describe_demands(checkpoint: Checkpoint) -> CheckpointDemands:
    """What a checkpoint with at least one batch demands."""
    last = checkpoint.logs.batches[-1]
    committed = checkpoint.logs.latest_committed
    commit = committed.commit if committed else None
    text = checkpoint.folder.read("offsets", str(last.id)) or ""
    noted = Owner.read(checkpoint.folder).sink_of(checkpoint.folder)
    watermarks = [last.offsets.watermark_ms, commit.next_watermark_ms if commit else 0]
    return CheckpointDemands(
        location=checkpoint.location,
        next_batch=checkpoint.logs.next_id,
        sources=tuple(
            _describe_source(checkpoint, index, offset)
            for index, offset in enumerate(last.offsets.sources)
        ),
        operators=read_operators(checkpoint.folder, checkpoint.tree),
        conf=last.offsets.conf,
        partitions=last.offsets.partitions,
        watermark_ms=max(watermarks),
        dropped_ms=committed.offsets.watermark_ms if committed else 0,
        timeline=Timeline.read(checkpoint.folder).name,
        has_state_ids=commit is not None and commit.state_ids is not None,
        sink=SinkPlace.of_note(noted) if noted else None,
        metadata="".join(text.split("\n")[1:2]) or "{}",
    )


def _describe_source(checkpoint: Checkpoint, index: int, offset: str | None) -> SourceDemand:
    connector = connector_of_offset(offset)
    names = connector.source.list_read(checkpoint, index, offset) if offset else ()
    return SourceDemand(connector.kind, names, offset)
