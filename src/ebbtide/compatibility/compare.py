"""Compare a new query with what a checkpoint demands: sources, settings, watermark and output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch

from ebbtide.compatibility.demands import CheckpointDemands, SourceDemand
from ebbtide.compatibility.planned import PlannedQuery, PlannedSource, format_micros
from ebbtide.compatibility.verdicts import (
    BREAKS,
    COMPATIBLE,
    GOES_ON,
    IGNORES,
    MISBINDS,
    REFUSES,
    SAME,
    PartVerdict,
)
from ebbtide.errors import EbbtideError
from ebbtide.storage import open_folder
from ebbtide.times import in_utc

_PARTITION_NAMES = (
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.internal.stateStore.partitions",
)


def compare_sources(old: CheckpointDemands, new: PlannedQuery) -> Iterator[PartVerdict]:
    """Number, order and kind of the sources, and what each reads."""
    counts = len(old.sources), len(new.sources)
    if counts[0] != counts[1]:
        listed = ", ".join(map(str, new.sources)) or "none"
        yield PartVerdict(
            "sources",
            BREAKS,
            f"{counts[0]} in the checkpoint, {counts[1]} in the query: {listed}",
            REFUSES,
        )
        return
    for index, (demand, source) in enumerate(zip(old.sources, new.sources, strict=True)):
        yield _compare_source(index, demand, source, new)


def _compare_source(
    index: int, old: SourceDemand, new: PlannedSource, query: PlannedQuery
) -> PartVerdict:
    part = f"source {index}"
    if old.kind == "none":
        return PartVerdict(part, COMPATIBLE, f"{new}; the checkpoint has no offset of it yet")
    if old.kind == "unknown":
        detail = f"{new}; of which kind the offsets in the checkpoint are is not known"
        return PartVerdict(part, COMPATIBLE, detail)
    if old.kind != new.kind:
        was = " ".join((old.kind, *old.names))
        return PartVerdict(part, BREAKS, f"{was} becomes {new}", REFUSES)
    compare = {"kafka": _compare_topics, "files": _compare_folders, "delta": _compare_tables}
    return compare.get(new.kind, _compare_others)(part, old, new, query)


def _compare_others(
    part: str, _old: SourceDemand, new: PlannedSource, _query: PlannedQuery
) -> PartVerdict:
    return PartVerdict(part, SAME, str(new))


def _compare_topics(
    part: str, old: SourceDemand, new: PlannedSource, query: PlannedQuery
) -> PartVerdict:
    if new.pattern is not None:
        gone = {name for name in old.names if not _matches(new.pattern, name)}
        added: set[str] = set()
    else:
        gone, added = set(old.names) - set(new.names), set(new.names) - set(old.names)
    others = [each for each in query.sources if each is not new]
    if gone and any(gone <= set(each.names) for each in others):
        detail = f"{', '.join(sorted(gone))} is read by another source now: the order has changed"
        return PartVerdict(part, BREAKS, detail, REFUSES)
    if gone and new.fails_on_data_loss:
        detail = f"{', '.join(sorted(gone))} is not read any more: to Spark, its data is lost"
        return PartVerdict(part, BREAKS, detail, REFUSES)
    if gone == set(old.names) and gone:
        detail = f"none of the topics {', '.join(old.names)} is read any more"
        return PartVerdict(part, BREAKS, detail, MISBINDS)
    if gone:
        detail = f"{', '.join(sorted(gone))} is left out from now on (failOnDataLoss=false)"
        return PartVerdict(part, COMPATIBLE, detail, IGNORES)
    if added:
        detail = f"{', '.join(sorted(added))} is new, and read from its first record on"
        return PartVerdict(part, COMPATIBLE, detail)
    return PartVerdict(part, SAME, str(new))


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:  # Java's own syntax
        return True


def _compare_folders(
    part: str, old: SourceDemand, new: PlannedSource, query: PlannedQuery
) -> PartVerdict:
    if not old.names or not new.names:
        return PartVerdict(part, COMPATIBLE, f"{new}; the checkpoint lists no file")
    if _holds(new, old):
        return PartVerdict(part, SAME, str(new))
    others = [each for each in query.sources if each.kind == "files" and each is not new]
    if any(_holds(each, old) for each in others):
        detail = f"{old.names[0]} is another source now: the order has changed"
    else:
        detail = f"{old.names[0]} becomes {new.names[0]}, where the files that it read are not"
    return PartVerdict(part, BREAKS, detail, REFUSES)


def _holds(source: PlannedSource, demand: SourceDemand) -> bool:
    """Whether the files that were read lie in the folder of a source."""
    root = _place(source.names[0]).rstrip("/") if source.names else ""
    return any(
        place == root
        or place.startswith(f"{root}/")
        or fnmatch(place, root)
        or fnmatch(place, f"{root}/*")
        for name in demand.names
        for place in (_place(name).rstrip("/"),)
    )


def _place(path: str) -> str:
    """One spelling for each folder."""
    if any(sign in path for sign in "*?[{"):
        return re.sub(r"^file:/*", "/", path)
    with suppress(EbbtideError):
        return str(open_folder(path).address)
    return path


def _compare_tables(
    part: str, old: SourceDemand, new: PlannedSource, _query: PlannedQuery
) -> PartVerdict:
    if not old.names or not new.names:
        return PartVerdict(part, COMPATIBLE, f"{new}; whether it is the same table is not known")
    if old.names != new.names:
        return PartVerdict(part, BREAKS, f"{new} is another table", REFUSES)
    return PartVerdict(part, SAME, str(new))


def compare_settings(old: CheckpointDemands, new: PlannedQuery) -> Iterator[PartVerdict]:
    """Partition count and pinned settings: Spark takes them from the checkpoint."""
    if old.operators and old.partitions is not None:
        text = f"{old.partitions} partitions"
        if new.partitions in (None, old.partitions):
            yield PartVerdict("partitions", SAME, text)
        else:
            detail = f"{text}, as in the checkpoint; {new.partitions} in the session has no effect"
            yield PartVerdict("partitions", COMPATIBLE, detail, IGNORES)
    changed = {
        name: value
        for name, value in new.conf.items()
        if name not in _PARTITION_NAMES and old.conf.get(name, value) != value
    }
    for name, value in changed.items():
        detail = f"{_short(name)} stays {_last(old.conf[name])}; {_last(value)} has no effect"
        yield PartVerdict("settings", COMPATIBLE, detail, IGNORES)
    if not changed:
        yield PartVerdict("settings", SAME, "those that Spark takes from the checkpoint")
    if old.operators:
        yield from _compare_format(old, new)


def _compare_format(old: CheckpointDemands, new: PlannedQuery) -> Iterator[PartVerdict]:
    version = 2 if old.has_state_ids else 1
    if version == new.format_version or new.spark.startswith("3."):
        return
    name = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    detail = f"the state has checkpoint format {version}, and the session {new.format_version}"
    yield PartVerdict("state format", BREAKS, detail, REFUSES, f"Set {name}={version}")


def _short(name: str) -> str:
    return name.removeprefix("spark.sql.streaming.").removeprefix("spark.sql.")


def _last(value: str) -> str:
    return value.rsplit(".", 1)[-1] if value.startswith("org.") else value


def compare_watermark(old: CheckpointDemands, new: PlannedQuery) -> Iterator[PartVerdict]:
    """Added, removed, or with another delay; where it stands never changes."""
    delays = {delay for operator in old.operators for delay in operator.delays}
    had = bool(delays) or old.watermark_ms > 0
    now = set(new.watermarks.values())
    stands = f"it stands at {in_utc(old.watermark_ms)}" if old.watermark_ms else "it has not begun"
    if not had and not now:
        return
    if not now:
        detail = f"removed: state is never dropped again; {stands}"
        yield PartVerdict("watermark", COMPATIBLE, detail, GOES_ON)
    elif not had:
        detail = f"{_format_delays(now)} after the latest event, added: counts from now on"
        yield PartVerdict("watermark", COMPATIBLE, detail, GOES_ON)
    elif not delays:
        detail = f"{_format_delays(now)}; the earlier delay is not recorded; {stands}"
        yield PartVerdict("watermark", COMPATIBLE, detail, GOES_ON)
    elif delays - now:
        was = _format_delays(delays)
        detail = (
            f"{was} becomes {_format_delays(now)}: counts from now on; {stands}, never goes back"
        )
        yield PartVerdict("watermark", COMPATIBLE, detail, GOES_ON)
    else:
        yield PartVerdict("watermark", SAME, f"{_format_delays(now)}; {stands}")


def _format_delays(delays: set[int]) -> str:
    return " and ".join(
        format_micros(delay * 1_000) if delay else "0 seconds" for delay in sorted(delays)
    )
