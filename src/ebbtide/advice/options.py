"""The values that `ebbtide plan` returns: both recovery options, and which one to take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from ebbtide.reprocessing import EventTimeRange
from ebbtide.times import in_utc

OptionName = Literal["rewind", "reprocess"]
_UNKNOWN = "?"


@dataclass(frozen=True)
class RecoveryStep:
    """One thing to do, with the command for it if there is one."""

    what: str
    command: str = ""


@dataclass(frozen=True)
class RecoveryOption:
    """One way to recover: whether it is possible, what it costs, what it leaves behind."""

    name: OptionName
    problem: str | None
    """Why it is not possible; None if it is."""
    remedy: str = ""
    """How to solve the problem."""
    batches: int | None = None
    records: int | None = None
    """Records to read again; for a reprocess an upper limit."""
    files: int | None = None
    bytes: int | None = None
    """For a rewind, the state that is removed; for a reprocess, what is read from the archive."""
    retention: str = _UNKNOWN
    """Whether the records to read still exist."""
    state: str = _UNKNOWN
    stream: str = _UNKNOWN
    sink: str = _UNKNOWN
    """What happens to the output."""
    command: str = ""
    """The command to type after the steps before it; it shows a plan and changes nothing."""
    steps: tuple[RecoveryStep, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def possible(self) -> bool:
        """Whether nothing prevents it."""
        return self.problem is None

    @property
    def stops_stream(self) -> bool:
        """Whether the stream must stop for it."""
        return self.name == "rewind"

    def to_dict(self) -> dict[str, Any]:
        """The option as plain values, for JSON."""
        return {"possible": self.possible, "stops_stream": self.stops_stream, **asdict(self)}


@dataclass(frozen=True)
class Advice:
    """Both ways to recover from results that are wrong since some time."""

    name: str
    """Of the query."""
    pipeline: str | None
    """None if only a checkpoint was named."""
    checkpoint: str
    since: datetime
    clock: Literal["processing time", "event time"]
    zone: str
    first_batch: int | None
    first_batch_reason: str
    """How `since` led to the first batch, or why it did not."""
    span: EventTimeRange | None
    """The event times to reprocess."""
    span_origin: str
    """Where they come from."""
    rewind: RecoveryOption
    reprocess: RecoveryOption
    recommended: OptionName | None
    reason: str
    caveats: tuple[str, ...]

    @property
    def possible(self) -> bool:
        """Whether at least one option is possible."""
        return self.rewind.possible or self.reprocess.possible

    def to_dict(self) -> dict[str, Any]:
        """The advice as plain values, for JSON; times are ISO-8601 in UTC."""
        return {
            "name": self.name,
            "pipeline": self.pipeline,
            "checkpoint": self.checkpoint,
            "since": in_utc(self.since),
            "clock": self.clock,
            "timezone": self.zone,
            "first_batch": self.first_batch,
            "found": self.first_batch_reason,
            "event_time_start": in_utc(self.span.start) if self.span else None,
            "event_time_end": in_utc(self.span.end) if self.span else None,
            "range": self.span_origin,
            "rewind": self.rewind.to_dict(),
            "reprocess": self.reprocess.to_dict(),
            "recommended": self.recommended,
            "reason": self.reason,
            "caveats": list(self.caveats),
        }
