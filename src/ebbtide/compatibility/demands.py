"""What a checkpoint demands of the query that goes on from it, read without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ebbtide.checkpoint import Checkpoint, Owner, Timeline, read_checkpoint
from ebbtide.compatibility.operators import OperatorState, read_operators
from ebbtide.connectors import SinkPlace, connector_of_offset, streams
from ebbtide.errors import CheckpointError
from ebbtide.history import kept_entries
from ebbtide.storage import open_folder

NAMED = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""Whether a query must name its sources (Spark 4.2)."""


@dataclass(frozen=True)
class SourceDemand:
    """One source, as the newest offsets show it."""

    kind: str
    """That of its connector; `none` if it had no offset yet, or `unknown`."""
    offset: str | None = None
    """The newest, as Spark writes it."""
    id: str = ""
    """By which Spark knows it: its position, or the name that the query gave it (4.2)."""
    last: streams.LastRead = field(default_factory=streams.LastRead)
    """What it has read last."""


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
    finds_by_id: bool = False
    """Whether the offsets have format v2: Spark finds a source by its id, and may miss some."""
    has_names: bool = False
    """Whether these ids are names that the query must give its sources."""
    dropped_ms: int = 0
    """The watermark by which the last committed batch dropped state; the newest may be later."""
    has_state_ids: bool = False
    """Whether the state has checkpoint format version 2."""
    sink: SinkPlace | None = None
    """Where the query writes, if a run of Ebbtide noted it."""
    output_mode: str | None = None
    """That of the last committed batch, if its run recorded it."""
    metadata: str = "{}"
    """The second line of the newest offsets, from which Spark takes the settings."""


def read_demands(location: str) -> tuple[Checkpoint, CheckpointDemands]:
    """Read a checkpoint and what it demands; refuse one from which no query could go on."""
    if (missing := find_missing(location)) is not None:
        raise CheckpointError(
            f"{missing} yet, so any query can start there.",
            "Name the folder that holds metadata, offsets and commits; for the first deploy, "
            "add --allow-missing.",
        )
    checkpoint = read_checkpoint(location)
    return checkpoint, describe_demands(checkpoint)


def find_missing(location: str) -> str | None:
    """Why there is nothing from which a query could go on; None if there is a planned batch."""
    folder = open_folder(location)
    if folder.local and Path(folder.root).is_file():
        raise CheckpointError(
            f"{location} is a file, not a checkpoint.",
            "Name the folder that holds metadata, offsets and commits.",
        )
    if not folder.names():
        return f"There is no checkpoint at {location}"
    checkpoint = read_checkpoint(location)
    checkpoint.require_finished()
    return None if checkpoint.logs.batches else f"No batch of {location} is planned"


def demand_nothing(location: str) -> CheckpointDemands:
    """What a checkpoint demands that is not there yet."""
    return CheckpointDemands(location, 0, (), (), {}, None, 0, Timeline().name)


def describe_demands(checkpoint: Checkpoint) -> CheckpointDemands:
    """What a checkpoint with at least one batch demands."""
    last = checkpoint.logs.batches[-1]
    offsets = last.offsets
    committed = checkpoint.logs.latest_committed
    commit = committed.commit if committed else None
    text = checkpoint.folder.read("offsets", str(last.id)) or ""
    sink, output_mode = _read_last_run(checkpoint)
    watermarks = [offsets.watermark_ms, commit.next_watermark_ms if commit else 0]
    return CheckpointDemands(
        location=checkpoint.location,
        next_batch=checkpoint.logs.next_id,
        sources=describe_sources(checkpoint),
        operators=read_operators(checkpoint.folder, checkpoint.tree),
        conf=offsets.conf,
        partitions=offsets.partitions,
        watermark_ms=max(watermarks),
        dropped_ms=committed.offsets.watermark_ms if committed else 0,
        timeline=Timeline.read(checkpoint.folder).name,
        finds_by_id=offsets.version != "v1",
        has_names=offsets.conf.get(NAMED, "false").lower() == "true",
        has_state_ids=commit is not None and commit.state_ids is not None,
        sink=sink,
        output_mode=output_mode,
        metadata="".join(text.split("\n")[1:2]) or "{}",
    )


def _read_last_run(checkpoint: Checkpoint) -> tuple[SinkPlace | None, str | None]:
    """Where the last run wrote, and its output mode; None if nobody followed that run.

    A job that was started again without `attach` may have another sink and another mode.
    """
    committed = checkpoint.logs.latest_committed
    entry = kept_entries(checkpoint).get(committed.id) if committed else None
    if committed and (entry is None or entry.rebuilt):
        return None, None
    noted = Owner.read(checkpoint.folder).sink_of(checkpoint.folder)
    mode = entry.output_mode if entry else None
    return SinkPlace.of_note(noted) if noted else None, mode


def describe_sources(
    checkpoint: Checkpoint, folders: Mapping[str, str] = MappingProxyType({})
) -> tuple[SourceDemand, ...]:
    """The sources of the last batch; `folders` gives that of a source by its id, if it differs."""
    last = checkpoint.logs.batches[-1]
    before = checkpoint.logs.before(last.id)
    starts = before.offsets.by_name if before else {}
    demands = []
    for id_, offset in last.offsets.by_name.items():
        connector = connector_of_offset(offset)
        read = streams.LastRead()
        if offset is not None:
            log = streams.SourceLog(checkpoint, folders.get(id_, id_), starts.get(id_), offset)
            read = connector.source.list_read(log)
        demands.append(SourceDemand(connector.kind, offset, id_, read))
    return tuple(demands)
