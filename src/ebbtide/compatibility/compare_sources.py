"""Compare the sources of a new query with those whose offsets a checkpoint holds.

Spark knows a source by its position. With offsets of format v2 (4.2, on request) it knows one by
its position or by the name that the query gives it, starts those that it does not find from their
beginning, and leaves out those that the query does not read any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ebbtide.checks import BREAKS, COMPATIBLE, IGNORES, MISBINDS, REFUSES, PartVerdict
from ebbtide.compatibility.demands import NAMED, CheckpointDemands, SourceDemand
from ebbtide.compatibility.planned import PlannedQuery
from ebbtide.connectors import connector_of, streams


def find_folders(old: CheckpointDemands, new: PlannedQuery) -> dict[str, str]:
    """By the id of a source, the folder in `sources` that is its own, where that is not its id."""
    if not old.finds_by_id and len(old.sources) != len(new.sources):
        return {}
    ids = _find_ids(old, new)
    return {id_: read.folder for id_, read in ids.items() if read.folder and read.folder != id_}


def _find_ids(old: CheckpointDemands, new: PlannedQuery) -> dict[str, streams.StreamRead]:
    """The sources of a query by the ids under which Spark looks for their offsets."""
    by_name = old.finds_by_id and old.has_names
    return {read.called if by_name else str(index): read for index, read in enumerate(new.sources)}


def compare_sources(old: CheckpointDemands, new: PlannedQuery) -> Iterator[PartVerdict]:
    """Number, order and kind of the sources, and what each reads."""
    if old.finds_by_id:
        yield from _compare_by_id(old, new)
        return
    counts = len(old.sources), len(new.sources)
    if counts[0] != counts[1]:
        listed = ", ".join(map(str, new.sources)) or "none"
        detail = f"{counts[0]} in the checkpoint, {counts[1]} in the query: {listed}"
        yield PartVerdict("sources", BREAKS, detail, REFUSES)
        return
    for index, (demand, source) in enumerate(zip(old.sources, new.sources, strict=True)):
        yield _compare_source(f"source {index}", demand, source, new)


def _compare_by_id(old: CheckpointDemands, new: PlannedQuery) -> Iterator[PartVerdict]:
    unnamed = [read for read in new.sources if not read.called]
    if old.has_names and unnamed:
        listed = ", ".join(demand.id for demand in old.sources)
        detail = f"the checkpoint has names for its sources ({listed}), and {unnamed[0]} has none"
        next_ = f"Name it with .name(…), and set {NAMED}=true"
        yield PartVerdict("sources", BREAKS, detail, REFUSES, next_)
        return
    demands, reads = {demand.id: demand for demand in old.sources}, _find_ids(old, new)
    gone = [demand for id_, demand in demands.items() if id_ not in reads]
    for id_, read in reads.items():
        if id_ in demands:
            yield _compare_source(f"source {id_}", demands[id_], read, new)
        elif not _is_read_twice(id_, reads, demands):
            yield _judge_added(f"source {id_}", read, gone)
    for demand in gone:
        detail = f"{_describe(demand)} is not read any more"
        yield PartVerdict(f"source {demand.id}", COMPATIBLE, detail, IGNORES)


def _is_read_twice(
    id_: str, reads: Mapping[str, streams.StreamRead], demands: Mapping[str, SourceDemand]
) -> bool:
    """Whether a source without an offset is one that the query reads in another place, too."""
    folder = reads[id_].folder
    return bool(folder) and any(
        other in demands and read.folder == folder for other, read in reads.items()
    )


def _judge_added(part: str, read: streams.StreamRead, gone: list[SourceDemand]) -> PartVerdict:
    """A source that is new, or one that has another id now: Spark does not tell them apart."""
    for demand in gone:
        if demand.kind != read.kind or not demand.last.names:
            continue
        found = connector_of(read.kind).source.compare_read(part, demand.last, read, ())
        if found.verdict != BREAKS:
            detail = f"{read} was {demand.id} before: Spark reads it again from its beginning"
            return PartVerdict(part, BREAKS, detail, MISBINDS, f"Call it {demand.id}")
    return PartVerdict(part, COMPATIBLE, f"{read} is new, and read from its beginning")


def _compare_source(
    part: str, old: SourceDemand, new: streams.StreamRead, query: PlannedQuery
) -> PartVerdict:
    if old.kind == "none":
        return PartVerdict(part, COMPATIBLE, f"{new}; the checkpoint has no offset of it yet")
    if old.kind == "unknown":
        detail = f"{new}; of which kind the offsets in the checkpoint are is not known"
        return PartVerdict(part, COMPATIBLE, detail)
    if old.kind != new.kind:
        return PartVerdict(part, BREAKS, f"{_describe(old)} becomes {new}", REFUSES)
    others = [each for each in query.sources if each is not new]
    source = connector_of(new.kind).source
    read = source.compare_read(part, old.last, new, others)
    if read.verdict == BREAKS or old.offset is None:
        return read
    return source.compare_offset(part, old.offset, new) or read


def _describe(demand: SourceDemand) -> str:
    return " ".join((demand.kind, *demand.last.names))
