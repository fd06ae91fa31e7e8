"""The request for a reprocess, and the plan of what it would do."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from ebbtide.archive import Archive, ArchiveCost
from ebbtide.checks import REFUSE, Check
from ebbtide.config import Settings
from ebbtide.connectors import streams
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.reprocessing.journal import ReprocessRun, new_run_id, settings_flags
from ebbtide.reprocessing.ranges import Chunk, EventTimeRange, Shape
from ebbtide.times import exact_time, in_utc, parse_duration, parse_time

ReprocessMode = Literal["plan", "compare", "execute"]
_ARCHIVE_FIELDS = ("path", "version", "offsets", "files", "bytes")


@dataclass(frozen=True)
class ReprocessRequest:
    """What is requested: the flags of `ebbtide reprocess`."""

    reference: str
    """The pipeline: a ready job, `module:attr` or `path.py:attr`."""
    asked: EventTimeRange
    chunk: timedelta | None = None
    only_changed: bool = False
    max_active: int = 1
    backwards: bool = False
    servers: str | None = None
    """Kafka's address, if one was given: a retry must not use another."""
    mode: ReprocessMode = "plan"

    @classmethod
    def parse(
        cls,
        settings: Settings,
        pipeline: str,
        event_time_start: str,
        event_time_end: str,
        *,
        chunk: str | None = None,
        only_changed: bool = False,
        max_active: int = 1,
        run_backwards: bool = False,
        compare: bool = False,
        execute: bool = False,
    ) -> ReprocessRequest:
        """Parse the flags as the user typed them; `execute` takes precedence over `compare`.

        >>> asked = ReprocessRequest.parse(Settings(), "jobs:visits", "2025-09-04", "2025-09-05")
        >>> asked.mode, asked.asked.length
        ('plan', datetime.timedelta(days=1))
        """
        times = (parse_time(text, settings.timezone) for text in (event_time_start, event_time_end))
        asked = EventTimeRange(*times)
        length = None if chunk is None else parse_duration(chunk)
        if length is not None and not length:
            raise UsageError(f"--chunk {chunk} is no length.", "Write it as PT1H.")
        return cls(
            pipeline,
            asked,
            length,
            only_changed,
            max_active,
            run_backwards,
            settings.bootstrap_servers,
            "execute" if execute else "compare" if compare else "plan",
        )

    def words(self, settings: Settings) -> tuple[str, ...]:
        """The command-line arguments; the pipeline comes last and cannot be taken for a flag."""
        return (
            "reprocess",
            f"--event-time-start={exact_time(self.asked.start)}",
            f"--event-time-end={exact_time(self.asked.end)}",
            *(["--only-changed"] if self.only_changed else []),
            *([f"--chunk={_format_duration(self.chunk)}"] if self.chunk else []),
            *([f"--max-active={self.max_active}"] if self.max_active > 1 else []),
            *(["--run-backwards"] if self.backwards else []),
            *([f"--{self.mode}"] if self.mode != "plan" else []),
            *settings_flags(settings),
            f"--timezone={settings.timezone}",
            *("--", self.reference),
        )

    def command_line(self, settings: Settings) -> str:
        """The command to type."""
        return shlex.join(("ebbtide", *self.words(settings)))


@dataclass(frozen=True)
class ReprocessPlan:
    """Everything that a reprocess would do."""

    pipeline: str
    request: ReprocessRequest
    zone: str
    shape: Shape
    owned: EventTimeRange
    """The results that begin in it are computed again."""
    reads: EventTimeRange
    """The event times that they are computed from."""
    archive: Archive
    cost: ArchiveCost
    records: int
    """The number of archived records to read."""
    output: str
    position: streams.OutputPosition
    chunks: tuple[Chunk, ...]
    checks: tuple[Check, ...]

    @property
    def refusal(self) -> Check | None:
        """The first reason not to do it."""
        return next((check for check in self.checks if check.verdict == REFUSE), None)

    def require(self) -> None:
        """Raise the first reason not to do it."""
        if (check := self.refusal) is not None:
            raise EbbtideError(f"{check.detail[:1].upper()}{check.detail[1:]}.", check.next)

    def begin(self, flags: tuple[str, ...] = ()) -> ReprocessRun:
        """A run of this plan, with everything that must not change until it is done."""
        request = self.request
        return ReprocessRun(
            id=new_run_id(self.pipeline),
            pipeline=self.pipeline,
            reference=request.reference,
            zone=self.zone,
            asked=request.asked,
            owned=self.owned,
            chunks=self.chunks,
            archive_version=self.archive.version,
            shape=self.shape.describe(),
            position=self.position,
            only_changed=request.only_changed,
            max_active=request.max_active,
            backwards=request.backwards,
            servers=request.servers,
            flags=flags,
        )

    def to_dict(self) -> dict[str, Any]:
        """As `-o json` shows it."""
        cost = self.cost
        return {
            "pipeline": self.pipeline,
            "timezone": self.zone,
            "asked": _pair(self.request.asked),
            "results": _pair(self.owned),
            "reads": _pair(self.reads),
            "shape": self.shape.describe(),
            "archive": {name: getattr(self.archive, name) for name in _ARCHIVE_FIELDS},
            "cost": {"files": cost.files, "bytes": cost.bytes, "records": self.records},
            "output": self.output,
            "chunks": [{"number": c.number, **_pair(c.owns)} for c in self.chunks],
            "checks": [check.to_dict() for check in self.checks],
        }


def _pair(span: EventTimeRange) -> dict[str, str]:
    return {"start": in_utc(span.start), "end": in_utc(span.end)}


def _format_duration(length: timedelta) -> str:
    """A duration as ISO-8601.

    >>> _format_duration(timedelta(hours=26)), _format_duration(timedelta(seconds=90.5))
    ('PT26H', 'PT90.5S')
    """
    for size, unit in ((3_600, "H"), (60, "M")):
        count, rest = divmod(length, timedelta(seconds=size))
        if not rest:
            return f"PT{count}{unit}"
    return f"PT{length.total_seconds():.6f}".rstrip("0").rstrip(".") + "S"
