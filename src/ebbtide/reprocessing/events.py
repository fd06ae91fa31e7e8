"""The events of a reprocess, which the CLI and the web UI show."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from ebbtide.checks import Check
from ebbtide.errors import EbbtideError
from ebbtide.formatting import format_number
from ebbtide.notes import INVALID, decode, encode
from ebbtide.parsing import parse_json
from ebbtide.reprocessing.journal import ChunkReport, ReprocessRun, ReprocessSummary
from ebbtide.reprocessing.ranges import EventTimeRange
from ebbtide.reprocessing.request import ReprocessPlan
from ebbtide.times import echo


class ReprocessEvent:
    """Something that happened; `to_json` and `read_event` convert it to a line and back."""

    exit_code: int = 0
    """The exit code of a command that ends with this event."""

    def lines(self) -> tuple[str, ...]:
        """What to log about it."""
        match self:
            case RangeRequested(pipeline, asked, zone):
                start, end = echo(asked.start, zone), echo(asked.end, zone)
                return (f"{pipeline}: event time from {start} to, not including, {end}.",)
            case SparkStarting():
                return ("Starting Spark …",)
            case PlanRefused(check):
                return (f"{self.problem} {check.next}".rstrip(),)
            case RunStarted(run, resumed=False):
                return (f"Run {run.id}",)
            case RunStarted(run, done):
                what = f"{run.asked}, archive version {run.archive_version}"
                return (f"Run {run.id}: {what}; {done} of {len(run.chunks)} chunks are done.",)
            case ChunkFinished(report, _, total) if report.error:
                return (f"chunk {report.number} of {total} failed: {report.error}",)
            case ChunkFinished(report, _, total):
                read = " · ".join(
                    (
                        format_number(report.records, "record"),
                        format_number(report.results, "result"),
                    )
                )
                return (f"chunk {report.number} of {total} · {read}",)
            case RunFinished(summary, executed):
                return _summarize(summary, executed=executed)
            case ErrorRaised(problem, next_step):
                return (f"{problem} {next_step}".rstrip(),)
        return ()

    def to_json(self) -> str:
        """One line of JSON: the event's name and its fields.

        >>> read_event(SparkStarting().to_json()).lines()
        ('Starting Spark …',)
        """
        return encode({"event": type(self).__name__, **vars(self)})


@dataclass(frozen=True)
class RangeRequested(ReprocessEvent):
    """A range of a pipeline was requested; nothing has been read yet."""

    pipeline: str
    asked: EventTimeRange
    zone: str


@dataclass(frozen=True)
class SparkStarting(ReprocessEvent):
    """Every check that needs no Spark has passed."""


@dataclass(frozen=True)
class ReprocessPlanned(ReprocessEvent):
    """The plan is complete; nothing has been written."""

    plan: ReprocessPlan


@dataclass(frozen=True)
class PlanRefused(ReprocessEvent):
    """The requested plan could not be carried out."""

    check: Check
    exit_code: int = 1

    @property
    def problem(self) -> str:
        """Why not."""
        return f"This would be refused: {self.check.detail}."


@dataclass(frozen=True)
class RunStarted(ReprocessEvent):
    """A run has started or resumed."""

    run: ReprocessRun
    done: int = 0
    """Chunks that an earlier attempt has finished."""
    resumed: bool = False


@dataclass(frozen=True)
class ChunkFinished(ReprocessEvent):
    """A chunk is done or has failed.

    >>> ChunkFinished(ChunkReport(3, "done", records=1200, results=40), done=3, total=24).lines()
    ('chunk 3 of 24 · 1,200 records · 40 results',)
    >>> ChunkFinished(ChunkReport(4, "failed", error="no space left"), 4, 24).lines()
    ('chunk 4 of 24 failed: no space left',)
    """

    report: ChunkReport
    done: int
    total: int


@dataclass(frozen=True)
class RunFinished(ReprocessEvent):
    """Every chunk has run; some may have failed."""

    summary: ReprocessSummary
    executed: bool
    """False if results were only compared."""

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """1 if a chunk failed."""
        return int(bool(self.summary.failed))


@dataclass(frozen=True)
class ErrorRaised(ReprocessEvent):
    """The reprocess was refused or has failed: the last event."""

    problem: str
    next_step: str = ""
    exit_code: int = 1


ReprocessEvents = Generator[ReprocessEvent, None, None]
_KINDS = {kind.__name__: kind for kind in ReprocessEvent.__subclasses__()}


def read_event(line: str) -> ReprocessEvent:
    """The event of a line of JSON; ValueError if it is none."""
    try:
        data = parse_json(line)
        return decode(_KINDS[data.pop("event")], data)
    except (*INVALID, EbbtideError) as error:
        raise ValueError(f"Not an event: {error!r}") from None


def _summarize(summary: ReprocessSummary, *, executed: bool) -> tuple[str, ...]:
    run, failed = summary.run, len(summary.failed)
    broken = sum(report.broken for report in summary.reports)
    verb = "computed" if failed else "written"
    written = f"{format_number(summary.written, 'result')} {verb}"
    chunks = f"{len(summary.reports) - failed} of {format_number(len(run.chunks), 'chunk')}"
    done = written if executed else "nothing written"
    lines = [f"{summary.status.capitalize()}: {chunks}, {done}."]
    if broken:
        count, were = format_number(broken, "broken record"), "was" if broken == 1 else "were"
        lines.insert(0, f"{count} of the range {were} left out, as in the stream.")
    if failed and executed:
        lines.append(f"To run what is missing: {run.retry_line}")
    return tuple(lines)
