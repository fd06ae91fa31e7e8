"""The request for a rewind: the flags of `ebbtide rewind` as a value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from os import PathLike, fspath
from shlex import quote
from typing import Any

from ebbtide.checkpoint import layout
from ebbtide.connectors import SinkPlace, SinkPlan, base
from ebbtide.credentials import take_credentials
from ebbtide.errors import UsageError
from ebbtide.rewind import target as targets
from ebbtide.rewind.target import Target, ToBatch

StrPath = str | PathLike[str]
_TARGETS: Mapping[str, Callable[[Any, str], Target]] = {
    "to_batch": lambda batch, _: ToBatch(_parse_batch(batch)),
    "shift_by": lambda batches, _: targets.ShiftBy(_parse_number(batches)),
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
    """What becomes of rows that the sink holds of the batches that run again; or `none`."""
    sink_tables: tuple[str, ...] = ()
    sink_files: str | None = None
    """Where the query writes, if that is not known."""
    event_time_field: str | None = None
    zone: str = "UTC"
    assume_stopped: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "checkpoint", take_credentials(self.checkpoint))
        object.__setattr__(self, "sink_tables", tuple(map(take_credentials, self.sink_tables)))
        object.__setattr__(self, "sink_files", take_credentials(self.sink_files or "") or None)
        named = {
            "--sink-table": bool(self.sink_tables),
            "--sink-files": bool(self.sink_files),
            "--sink none": self.remedy == base.WAIVE,
        }
        if len(given := [flag for flag, is_given in named.items() if is_given]) > 1:
            raise UsageError(f"{' and '.join(given)} exclude each other.", "Give one.")

    @classmethod
    def parse(
        cls,
        checkpoint: str,
        zone: str = "UTC",
        *,
        sink: str | None = None,
        replan: bool | str = False,
        assume_stopped: bool | str = False,
        sink_table: StrPath | Iterable[StrPath] | None = None,
        sink_files: StrPath | None = None,
        event_time_field: str | None = None,
        **target: Any,
    ) -> RewindRequest:
        """From flags by their names, as typed or as a form sends them; `target` is one of them.

        >>> RewindRequest.parse("/data/c", to_batch="5", replan="on").execute_command(5)
        'ebbtide rewind /data/c --to-batch 5 --replan --execute'
        """
        if sink not in (None, *SinkPlan.REMEDIES, base.WAIVE):
            choices = f"{', '.join(SinkPlan.REMEDIES)} or {base.WAIVE}"
            raise UsageError(f"{sink!r} is not a way to treat a sink.", f"Choose {choices}.")
        tables = [sink_table] if isinstance(sink_table, str | PathLike) else sink_table or ()
        return cls(
            checkpoint,
            _choose_target(target, zone),
            replan=bool(replan),
            remedy=sink,
            sink_tables=tuple(fspath(table) for table in tables),
            sink_files=fspath(sink_files) if sink_files else None,
            event_time_field=event_time_field,
            zone=zone,
            assume_stopped=bool(assume_stopped),
        )

    @property
    def mode(self) -> str:
        """How the first batch runs again."""
        return layout.REPLAN if self.replan else layout.EXACT

    @property
    def sinks(self) -> tuple[SinkPlan, ...]:
        """Where the query writes and what becomes of its rows, if that was named, or waived."""
        if self.remedy == base.WAIVE:
            return (SinkPlan(SinkPlace(base.WAIVE, "the sink")),)
        files = (self.sink_files,) if self.sink_files else ()
        places = SinkPlace.named({"--sink-table": self.sink_tables, "--sink-files": files})
        return tuple(SinkPlan(place, self.remedy) for place in places)

    def command(self) -> str:
        """The line that plans it.

        >>> RewindRequest("my checkpoints/c", ToBatch(5), remedy="restore").command()
        "ebbtide rewind 'my checkpoints/c' --to-batch 5 --sink restore"
        """
        flags = (
            ("--event-time-field", self.event_time_field),
            ("--sink", self.remedy),
            *(("--sink-table", table) for table in self.sink_tables),
            ("--sink-files", self.sink_files),
        )
        words = [f"ebbtide rewind {quote(self.checkpoint)} {self.target}"]
        words += ["--replan"] if self.replan else []
        words += [f"{flag} {quote(value)}" for flag, value in flags if value]
        return " ".join([*words, *(["--assume-stopped"] if self.assume_stopped else [])])

    def execute_command(self, first_batch: int) -> str:
        """The line that carries out a plan for it."""
        resolved = replace(self, target=ToBatch(first_batch), event_time_field=None)
        return f"{resolved.command()} --execute"


def _choose_target(flags_by_name: Mapping[str, Any], zone: str) -> Target:
    given = {n: v for n, v in flags_by_name.items() if v is not None and v is not False}
    if unknown := sorted(flags_by_name.keys() - _TARGETS):
        raise UsageError(f"A rewind takes no {unknown[0]}.", "See: ebbtide rewind --help")
    chosen = [name for name in _TARGETS if name in given]
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in chosen or _TARGETS)
    if len(chosen) != 1:
        what = f"{len(chosen)} targets are given ({flags})." if chosen else "No target is given."
        raise UsageError(what, "Give exactly one." if chosen else f"Give one of {flags}.")
    return _TARGETS[chosen[0]](_to_text(given[chosen[0]]), zone)


def _to_text(value: Any) -> str:
    """A value as it would be typed: Python callers may have it as an object."""
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _parse_number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise UsageError(f"{text[:40]!r} is not a number of batches.", "Give a whole number.")
    return int(text)


def _parse_batch(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"{text[:40]!r} is not a batch.", "Give its number.")
    return int(text)
