"""Compare a new query with what a checkpoint demands: settings and watermark."""

from __future__ import annotations

from collections.abc import Iterator

from ebbtide.checks import (
    BREAKS,
    COMPATIBLE,
    GOES_ON,
    IGNORES,
    REFUSES,
    SAME,
    PartVerdict,
)
from ebbtide.compatibility.demands import CheckpointDemands
from ebbtide.compatibility.planned import PlannedQuery, format_micros
from ebbtide.runtime import versions
from ebbtide.times import in_utc

_V4_3 = versions.SparkVersion((4, 3))
"""From here on, the checkpoint's format of state counts, not the session's."""
_PARTITION_NAMES = (
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.internal.stateStore.partitions",
)


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
    if versions.SparkVersion.parse(new.spark) >= _V4_3:
        detail = (
            f"{version}, as in the checkpoint; {new.format_version} in the session has no effect"
        )
        yield PartVerdict("state format", COMPATIBLE, detail, IGNORES)
        return
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
        yield _judge_column(old, new, f"{_format_delays(now)}; {stands}")


def _judge_column(old: CheckpointDemands, new: PlannedQuery, detail: str) -> PartVerdict:
    """Equal delays, of the same column or of another."""
    before = {name for operator in old.operators for name in operator.event_times}
    if before == set(new.watermarks):
        return PartVerdict("watermark", SAME, detail)
    now = ", ".join(sorted(new.watermarks))
    if before:
        detail = f"{detail}; of {now}, in the state of {', '.join(sorted(before))}"
    else:
        detail = f"{detail}; of {now}, and the earlier column is not recorded"
    return PartVerdict("watermark", COMPATIBLE, detail)


def _format_delays(delays: set[int]) -> str:
    return " and ".join(
        format_micros(delay * 1_000) if delay else "0 seconds" for delay in sorted(delays)
    )
