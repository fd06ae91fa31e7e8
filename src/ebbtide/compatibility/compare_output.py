"""Compare the output mode and the sink of a new query with what a checkpoint shows of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote

from ebbtide.checkpoint import Checkpoint
from ebbtide.checks import (
    BREAKS,
    COMPATIBLE,
    MISBINDS,
    REFUSES,
    SAME,
    PartVerdict,
)
from ebbtide.compatibility.demands import CheckpointDemands
from ebbtide.compatibility.planned import PlannedQuery
from ebbtide.compatibility.windows import HeldWindows
from ebbtide.connectors import SinkPlace, connector_of
from ebbtide.times import in_utc


def find_refused_mode(new: PlannedQuery) -> PartVerdict | None:
    """Why Spark does not start the query at all, on any checkpoint; None if it does."""
    part, place = "output mode", new.sink
    if new.refusal is not None:
        return PartVerdict(part, BREAKS, new.refusal, REFUSES)
    if new.output_mode is None or place is None:
        return None
    if new.output_mode in connector_of(place.kind).sink.output_modes:
        return None
    return PartVerdict(part, BREAKS, f"{place.name} cannot take {new.output_mode}", REFUSES)


def compare_output_mode(
    old: CheckpointDemands, new: PlannedQuery, held: Mapping[int, HeldWindows]
) -> Iterator[PartVerdict]:
    """Whether Spark takes the output mode, and whether the state has what it needs."""
    part = "output mode"
    if (refused := find_refused_mode(new)) is not None:
        yield refused
    elif new.output_mode is None:
        return
    elif old.output_mode is not None:
        yield _compare_known_mode(old, old.output_mode, new.output_mode)
    elif new.output_mode == "complete" and any(
        each.outlive(old.dropped_ms) for each in held.values()
    ):
        detail = "complete; the last batch left windows in the state that the watermark had passed"
        yield PartVerdict(part, COMPATIBLE, detail)
    else:
        detail = f"{new.output_mode}; the earlier mode is not recorded"
        if new.output_mode == "update" and any(operator.windows for operator in old.operators):
            detail += ". If it was append, open windows without further rows are never written"
        yield PartVerdict(part, COMPATIBLE, detail)


def _compare_known_mode(old: CheckpointDemands, before: str, now: str) -> PartVerdict:
    """Whether the state has what another output mode needs, and nothing that it never writes."""
    part, detail = "output mode", f"{before} becomes {now}"
    if before == now:
        return PartVerdict.same(part, now)
    if not any(operator.is_closed_in_time for operator in old.operators):
        return PartVerdict.compatible(part, detail)
    if (before, now) == ("append", "update"):
        why = "what the state holds now is never written unless further rows of it come"
        return PartVerdict.breaks(part, f"{detail}: {why}", MISBINDS)
    if now == "complete" and old.dropped_ms:
        why = f"what ended before {in_utc(old.dropped_ms)} is not in the state any more"
        return PartVerdict.breaks(part, f"{detail}: {why}", MISBINDS)
    why = "what was written already is written again when the watermark passes it"
    return PartVerdict.compatible(part, f"{detail}: {why}" if now == "append" else detail)


def list_unknown_drops(
    old: CheckpointDemands, new: PlannedQuery, held: Mapping[int, HeldWindows]
) -> Iterator[str]:
    """Where complete mode would lack windows that an earlier mode has dropped."""
    if new.output_mode != "complete" or old.output_mode is not None or not old.dropped_ms:
        return
    for operator in old.operators:
        windows = held.get(operator.id)
        if operator.windows and not (windows and windows.outlive(old.dropped_ms)):
            yield (
                f"complete mode of operator {operator.id}: it is not known whether windows were "
                "dropped, as other modes do"
            )


def compare_sink(
    old: CheckpointDemands, new: PlannedQuery, checkpoint: Checkpoint
) -> Iterator[PartVerdict]:
    """Whether the query writes to the same place, and whether that place takes its batches."""
    place = new.sink
    if place is None:
        return
    if place.kind == "memory" and new.output_mode != "complete":
        detail = "memory goes on from a checkpoint in complete mode only"
        yield PartVerdict("sink", BREAKS, detail, REFUSES)
        return
    sink = connector_of(place.kind).sink
    newest = sink.newest_batch(place, checkpoint) if place.path else None
    if newest is not None and newest >= old.next_batch:
        detail = (
            f"{place.name} holds batches up to {newest}, and skips those of the query from "
            f"{old.next_batch} to {newest}"
        )
        yield PartVerdict("sink", BREAKS, detail, MISBINDS, "Write to another place")
        return
    lacks = sink.why_no_begin(place, newest, old.next_batch) if place.path else None
    if lacks is not None and not new.is_pipeline:
        fork = f"ebbtide fork {quote(old.location)} NEW --at-batch {old.next_batch}"
        next_ = f"{fork} --sink-files {quote(place.path)} gives it a log"
        yield PartVerdict("sink", BREAKS, lacks, REFUSES, next_)
        return
    yield _judge_place(old, place, newest)


def _judge_place(old: CheckpointDemands, place: SinkPlace, newest: int | None) -> PartVerdict:
    starts = f"it gets batches from {old.next_batch} on"
    if old.sink is not None:
        if old.sink.address == place.address:
            return PartVerdict("sink", SAME, place.name)
        detail = f"{old.sink.name} becomes {place.name}: {starts}"
        return PartVerdict("sink", COMPATIBLE, detail)
    if newest is not None and newest == old.next_batch - 1:
        return PartVerdict("sink", SAME, f"{place.name}, which ends with batch {newest}")
    detail = f"{place.name}: {starts}; where the query wrote before is not recorded"
    return PartVerdict("sink", COMPATIBLE, detail)
