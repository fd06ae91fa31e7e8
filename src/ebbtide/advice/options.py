"""What was found out in, a frozen value out that says it in words and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from ebbtide.reprocess import EventTimeRange
from ebbtide.times import in_utc

Name = Literal["rewind", "reprocess"]
_UNKNOWN = "?"


@dataclass(frozen=True)
class Step:
    """One thing to do, and the line to type for it if there is one."""

    what: str
    command: str = ""


@dataclass(frozen=True)
class Way:
    """One way back: whether it is open, what it takes, what it leaves behind."""

    name: Name
    problem: str | None
    """Why it is closed; None if it is open."""
    remedy: str
    """What to do about that."""
    batches: int | None
    records: int | None
    """To be read again; of a reprocess at most so many."""
    files: int | None
    bytes: int | None
    """Of a rewind the state that is given up, of a reprocess what is read from the archive."""
    retention: str
    """Whether what it reads is still there."""
    state: str
    stream: str
    sink: str
    """What the output will see."""
    command: str
    """The line to type, once the steps before it are done; it shows a plan and changes nothing."""
    steps: tuple[Step, ...]
    remarks: tuple[str, ...] = ()

    @classmethod
    def closed(cls, name: Name, problem: str, remedy: str, sink: str = _UNKNOWN) -> Way:
        """A way of which no more is known than why it is closed."""
        return cls(
            name,
            problem,
            remedy,
            batches=None,
            records=None,
            files=None,
            bytes=None,
            retention=_UNKNOWN,
            state=_UNKNOWN,
            stream=_UNKNOWN,
            sink=sink,
            command="",
            steps=(),
        )

    @property
    def possible(self) -> bool:
        """Whether it is open."""
        return self.problem is None

    @property
    def stops_stream(self) -> bool:
        """Whether the stream must stop for it."""
        return self.name == "rewind"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"possible": self.possible, "stops_stream": self.stops_stream, **asdict(self)}


@dataclass(frozen=True)
class Ways:
    """Both ways back from results that are wrong since a moment."""

    pipeline: str
    checkpoint: str
    since: datetime
    clock: Literal["processing time", "event time"]
    zone: str
    first_batch: int | None
    found: str
    """How the moment led to the first batch, or why it did not."""
    span: EventTimeRange | None
    """The event times to reprocess."""
    span_found: str
    """Where they come from."""
    rewind: Way
    reprocess: Way
    recommended: Name | None
    reason: str
    caveats: tuple[str, ...]

    @property
    def possible(self) -> bool:
        """Whether at least one way is open."""
        return self.rewind.possible or self.reprocess.possible

    def to_json(self) -> dict[str, Any]:
        """As plain values; times are ISO-8601 in UTC."""
        return {
            "pipeline": self.pipeline,
            "checkpoint": self.checkpoint,
            "since": in_utc(self.since),
            "clock": self.clock,
            "timezone": self.zone,
            "first_batch": self.first_batch,
            "found": self.found,
            "event_time_start": in_utc(self.span.start) if self.span else None,
            "event_time_end": in_utc(self.span.end) if self.span else None,
            "range": self.span_found,
            "rewind": self.rewind.to_json(),
            "reprocess": self.reprocess.to_json(),
            "recommended": self.recommended,
            "reason": self.reason,
            "caveats": list(self.caveats),
        }
