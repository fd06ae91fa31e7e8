"""What happens during a reprocess, as values that the CLI and the web UI show; no Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from ebbtide.reprocess.encoding import decode, encode
from ebbtide.reprocess.journal import ChunkReport, ReprocessRun, ReprocessSummary
from ebbtide.reprocess.ranges import EventTimeRange
from ebbtide.reprocess.request import ReprocessPlan
from ebbtide.rewind.checks import Check
from ebbtide.times import echo


class ReprocessEvent:
    """Something that happened; it becomes a line of JSON and back."""

    exit_code: int = 0
    """Of a command that this event ends."""

    def lines(self) -> tuple[str, ...]:
        """What to log about it."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """The event's name and its fields."""
        return {"event": type(self).__name__, **encode(self)}

    def to_json(self) -> str:
        """One line of JSON.

        >>> read_event(SparkStarting().to_json())
        SparkStarting()
        """
        return json.dumps(self.to_dict(), ensure_ascii=False)


@dataclass(frozen=True)
class RangeRequested(ReprocessEvent):
    """A pipeline and the range as it was understood, before anything is read."""

    pipeline: str
    asked: EventTimeRange
    zone: str

    def lines(self) -> tuple[str, ...]:
        """Both times in the session's zone and in UTC, so that nobody is hours off."""
        return (
            f"{self.pipeline}: event time from {echo(self.asked.start, self.zone)}",
            f"{'':{len(self.pipeline)}}  to, not including, {echo(self.asked.end, self.zone)}",
        )


@dataclass(frozen=True)
class SparkStarting(ReprocessEvent):
    """Nothing was refused that can be known without Spark."""

    def lines(self) -> tuple[str, ...]:
        """It takes a few seconds."""
        return ("Starting Spark …",)


@dataclass(frozen=True)
class ReprocessPlanned(ReprocessEvent):
    """The plan is made; nothing was written."""

    plan: ReprocessPlan


@dataclass(frozen=True)
class PlanRefused(ReprocessEvent):
    """The plan that was asked for could not be carried out."""

    check: Check
    exit_code: int = 1

    @property
    def problem(self) -> str:
        """Why not."""
        return f"This would be refused: {self.check.detail}."

    def lines(self) -> tuple[str, ...]:
        """Why not, and what to do about it."""
        return (f"{self.problem} {self.check.next}".rstrip(),)


@dataclass(frozen=True)
class RunStarted(ReprocessEvent):
    """A run has begun, or goes on."""

    run: ReprocessRun
    done: int = 0
    """Chunks that an earlier attempt has done."""
    resumed: bool = False

    def lines(self) -> tuple[str, ...]:
        """The run's name and, if it goes on, what is done."""
        if not self.resumed:
            return (f"Run {self.run.id}",)
        what = f"{self.run.asked}, archive version {self.run.archive_version}"
        return (
            f"Run {self.run.id}: {what}; {self.done} of {len(self.run.chunks)} chunks are done.",
        )


@dataclass(frozen=True)
class ChunkFinished(ReprocessEvent):
    """A chunk is done or has failed."""

    report: ChunkReport
    done: int
    total: int

    def lines(self) -> tuple[str, ...]:
        """What became of it.

        >>> report = ChunkReport(3, "done", records=1200, results=40)
        >>> ChunkFinished(report, done=3, total=24).lines()
        ('chunk 3 of 24 · 1,200 records · 40 results',)
        >>> ChunkFinished(ChunkReport(4, "failed", error="no space left"), 4, 24).lines()
        ('chunk 4 of 24 failed: no space left',)
        """
        report = self.report
        chunk = f"chunk {report.number} of {self.total}"
        if report.error:
            return (f"{chunk} failed: {report.error}",)
        return (f"{chunk} · {report.records:,} records · {report.results:,} results",)


@dataclass(frozen=True)
class RunFinished(ReprocessEvent):
    """Every chunk was run, though some may have failed."""

    summary: ReprocessSummary
    executed: bool
    """False if results were only compared."""

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """1 if a chunk failed."""
        return int(bool(self.summary.failed))

    def lines(self) -> tuple[str, ...]:
        """What was done, and the retry line if a chunk failed."""
        summary, run = self.summary, self.summary.run
        failed, broken = len(summary.failed), sum(report.broken for report in summary.reports)
        left_out = f"{broken:,} broken records of the range were left out, as in the stream."
        written = f"{summary.written:,} results {'computed' if failed else 'written'}"
        chunks = f"{len(summary.reports) - failed} of {len(run.chunks)} chunks"
        done = written if self.executed else "nothing written"
        return (
            *([left_out] if broken else []),
            f"{summary.status.capitalize()}: {chunks}, {done}.",
            *(
                [f"To run what is missing: ebbtide retry {run.id}"]
                if failed and self.executed
                else []
            ),
        )


@dataclass(frozen=True)
class ErrorRaised(ReprocessEvent):
    """It was refused or has failed: the last event."""

    problem: str
    next_step: str = ""
    exit_code: int = 1

    def lines(self) -> tuple[str, ...]:
        """The problem and what to type next."""
        return (f"{self.problem} {self.next_step}".rstrip(),)


_KINDS = {kind.__name__: kind for kind in ReprocessEvent.__subclasses__()}


def read_event(line: str) -> ReprocessEvent:
    """The event of a line of JSON; ValueError if it is none."""
    try:
        data = json.loads(line)
        return cast(ReprocessEvent, decode(_KINDS[data.pop("event")], data))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"Not an event: {error!r}") from None
