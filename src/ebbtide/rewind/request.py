"""What somebody asks for who wants to rewind a checkpoint: the flags of `ebbtide rewind`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

from ebbtide.checkpoint import layout
from ebbtide.connectors import SinkPlace, SinkPlan
from ebbtide.errors import UsageError
from ebbtide.rewind import target as targets
from ebbtide.rewind.target import Target, ToBatch

_TARGETS: Mapping[str, Callable[[Any, str], Target]] = {
    "to_batch": lambda batch, _: ToBatch(_parse_batch(batch)),
    "shift_by": lambda batches, _: targets.ShiftBy(int(batches)),
    "to_datetime": targets.ToDatetime.parse,
    "by_duration": targets.ByDuration.parse,
    "to_offsets": lambda offsets, _: targets.ToOffsets.parse(offsets),
    "to_event_time": targets.ToEventTime.parse,
    "to_earliest": lambda *_: targets.ToEarliest(),
    "to_latest_good": lambda *_: targets.ToLatestGood(),
}


@dataclass(frozen=True)
class RewindRequest:
    """A rewind that is asked for; `plan_rewind` says what it means."""

    checkpoint: str
    target: Target
    replan: bool = False
    """Whether Spark chooses new batch boundaries from the first batch on."""
    remedy: str | None = None
    """What becomes of rows that the sink holds of the batches that run again."""
    sink_table: str | None = None
    sink_files: str | None = None
    """Where the query writes, if its owner has not noted that."""
    event_time_field: str | None = None
    zone: str = "UTC"
    assume_stopped: bool = False

    def __post_init__(self) -> None:
        if self.sink_table and self.sink_files:
            raise UsageError("--sink-table and --sink-files exclude each other.", "Give one.")

    @classmethod
    def parse(cls, checkpoint: str, zone: str = "UTC", **fields: Any) -> RewindRequest:
        """From flags by their names, as typed or as a form sends them.

        >>> RewindRequest.parse("/data/c", to_batch="5", replan="on").execute_command(5)
        'ebbtide rewind /data/c --to-batch 5 --replan --execute'
        """
        given = {name: value for name, value in fields.items() if value or value == 0}
        given = {name: value for name, value in given.items() if value is not False}
        if (remedy := given.get("sink")) not in (None, *SinkPlan.REMEDIES):
            choices = " or ".join(SinkPlan.REMEDIES)
            raise UsageError(f"{remedy!r} is not a way to treat a sink.", f"Choose {choices}.")
        return cls(
            checkpoint,
            _choose_target(given, zone),
            replan="replan" in given,
            remedy=remedy,
            sink_table=given.get("sink_table"),
            sink_files=given.get("sink_files"),
            event_time_field=given.get("event_time_field"),
            zone=zone,
            assume_stopped="assume_stopped" in given,
        )

    @property
    def mode(self) -> str:
        """How the first batch runs again."""
        return layout.REPLAN if self.replan else layout.EXACT

    @property
    def sink(self) -> SinkPlace | None:
        """Where the query writes, if that was named."""
        return SinkPlace.named({"--sink-table": self.sink_table, "--sink-files": self.sink_files})

    def command(self) -> str:
        """The line that plans it.

        >>> RewindRequest("my checkpoints/c", ToBatch(5), remedy="restore").command()
        "ebbtide rewind 'my checkpoints/c' --to-batch 5 --sink restore"
        """
        flags = {
            "--event-time-field": self.event_time_field,
            "--sink": self.remedy,
            "--sink-table": self.sink_table,
            "--sink-files": self.sink_files,
        }
        words = [f"ebbtide rewind {quote(self.checkpoint)} {self.target}"]
        words += ["--replan"] if self.replan else []
        words += [f"{flag} {quote(value)}" for flag, value in flags.items() if value]
        return " ".join([*words, *(["--assume-stopped"] if self.assume_stopped else [])])

    def execute_command(self, first_batch: int) -> str:
        """The line that carries out a plan for it."""
        resolved = replace(self, target=ToBatch(first_batch), event_time_field=None)
        return f"{resolved.command()} --execute"


def _choose_target(given: Mapping[str, Any], zone: str) -> Target:
    chosen = [name for name in _TARGETS if name in given]
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in chosen or _TARGETS)
    if len(chosen) != 1:
        what = f"{len(chosen)} targets are given ({flags})." if chosen else "No target is given."
        raise UsageError(what, "Give exactly one." if chosen else f"Give one of {flags}.")
    return _TARGETS[chosen[0]](given[chosen[0]], zone)


def _parse_batch(batch: int | str) -> int:
    text = str(batch)
    if isinstance(batch, str) and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"{text[:40]!r} is not a batch.", "Give its number.")
    return int(batch)
