"""Ask a query's sources whether they still hold what is read again, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from ebbtide.checkpoint import Checkpoint, Owner
from ebbtide.connections import KafkaConnection
from ebbtide.connectors import base
from ebbtide.connectors.registry import connector_of, connector_of_offset
from ebbtide.errors import CheckpointError


def check_sources(
    checkpoint: Checkpoint,
    batch: int,
    note: Mapping[str, Any] | None,
    connection: KafkaConnection | None = None,
    *,
    replan: bool = False,
) -> base.SourceVerdict:
    """Whether the sources of a query still hold what a rewind to a batch reads again.

    `note` is what the runner noted of the source.
    """
    verdicts: list[base.SourceVerdict] = []
    for kind, ranges in _ranges_by_kind(checkpoint, batch).items():
        own_note = _note_of(note, kind)
        replay = base.SourceReplay(checkpoint, batch, tuple(ranges), own_note, connection, replan)
        verdicts.append(connector_of(kind).source.check(replay))
    # sources with partitions first: their check says most
    verdicts.sort(key=lambda verdict: not verdict.partitions)
    return base.SourceVerdict(
        tuple(check for verdict in verdicts for check in verdict.checks),
        tuple(part for verdict in verdicts for part in verdict.partitions),
    )


def read_retention(
    checkpoint: Checkpoint,
    owner: Owner,
    connection: KafkaConnection | None,
    now: datetime,
    older: Mapping[int, tuple[str | None, ...]],
) -> list[base.Retention]:
    """How long sources and sink keep what each batch needs; `owner` names both.

    `older` are the offsets of batches that only the history knows.
    """
    sink = owner.sink_of(checkpoint.folder)
    asked = base.RetentionRequest(checkpoint, {}, connection, now, older)
    planned = [text for batch in checkpoint.logs.batches[-1:] for text in batch.offsets.sources]
    kinds = dict.fromkeys(connector_of_offset(text).kind for text in planned if text is not None)
    retentions = [
        connector_of(kind).source.limit(replace(asked, note=_note_of(owner.source, kind)))
        for kind in kinds
    ]
    if sink:
        retentions.append(connector_of(sink["kind"]).sink.limit(replace(asked, note=sink)))
    return retentions


def _ranges_by_kind(checkpoint: Checkpoint, batch: int) -> dict[str, list[base.SourceRange]]:
    """What each source reads again: from the offset of the batch before to the last planned one."""
    planned = checkpoint.logs.batches[-1].offsets.sources
    before, first = checkpoint.before(batch), checkpoint.logs.by_id[batch].offsets.sources
    starts = before.offsets.sources if before else ()
    ranges: dict[str, list[base.SourceRange]] = {}
    for index, end in enumerate(planned):
        if end is None:
            continue
        if end in planned[:index] and f"sources/{index}" not in checkpoint.tree:
            continue  # a source that the query reads in two places, as a join with itself does
        start, own = (
            offsets[index] if index < len(offsets) else None for offsets in (starts, first)
        )
        kind = connector_of_offset(end).kind
        if {connector_of_offset(text).kind for text in (start, own) if text is not None} - {kind}:
            raise CheckpointError(
                f"Source {index} of {checkpoint.location} has offsets of different systems in "
                f"batch {batch} and in the last one.",
                "Choose a batch of the same query.",
            )
        ranges.setdefault(kind, []).append(base.SourceRange(index, start, own, end))
    return ranges


def _note_of(note: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    return note if note and note.get("kind") == kind else {}
