"""Record what a run has to do and how each chunk ended, so that it can be retried.

The journal is a folder in the home. In a home that is a URL, another machine can retry the run.

`run.json` is written once, before the first chunk: range, chunks, the archive's version, and the
position of the output. `chunk-0003.json` follows when chunk 3 is done or has failed.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import reduce
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from ebbtide.config import Settings
from ebbtide.connectors import streams
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.notes import INVALID, decode, encode
from ebbtide.parsing import parse_json
from ebbtide.reprocessing.diff import ResultDiff
from ebbtide.reprocessing.ranges import Chunk, EventTimeRange
from ebbtide.rewind import lease
from ebbtide.storage import WritableFolder, open_writable

DONE, FAILED = "done", "failed"
_RUN = "run.json"
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class ReprocessRun:
    """What a run has to do, frozen at its start."""

    id: str
    pipeline: str
    reference: str
    """The pipeline as the user typed it, so that a retry finds it again."""
    zone: str
    asked: EventTimeRange
    owned: EventTimeRange
    chunks: tuple[Chunk, ...]
    archive_version: int
    shape: str
    position: streams.OutputPosition
    """The end of the output at the start: new results are compared with what lies before it."""
    only_changed: bool = False
    max_active: int = 1
    backwards: bool = False
    servers: str | None = None
    """Kafka's address if one was given; otherwise the embedded broker of the home."""
    flags: tuple[str, ...] = ()
    """What a retry must be told, too: another home than the default, and how to reach Kafka."""

    @property
    def retry_line(self) -> str:
        """The command that runs the missing chunks, to be copied."""
        return shlex.join(("ebbtide", "retry", self.id, *self.flags))

    def require_reference(self) -> None:
        """Refuse a run that was started from Python with a pipeline that has no name to find."""
        if not self.reference:
            raise EbbtideError(
                f"Run {self.id} was started from Python, so its pipeline cannot be found by name.",
                "Retry it from Python: ebbtide.reprocessing.retry(run, settings, pipeline)",
            )

    def words(self, settings: Settings) -> tuple[str, ...]:
        """The command-line arguments that run the missing chunks."""
        return ("retry", *settings_flags(settings), "--", self.id)


@dataclass(frozen=True)
class ChunkReport:
    """How one chunk ended."""

    number: int
    status: str
    records: int = 0
    broken: int = 0
    results: int = 0
    written: int = 0
    diff: ResultDiff = field(default_factory=ResultDiff)
    error: str = ""

    def without_rows(self) -> ChunkReport:
        """The report with the counts of differing results, but without the results."""
        return replace(self, diff=ResultDiff(self.diff.counts))


@dataclass(frozen=True)
class ReprocessSummary:
    """How a run ended."""

    run: ReprocessRun
    reports: tuple[ChunkReport, ...]
    ran: int
    """The number of chunks that ran this time."""
    diff: ResultDiff
    """Of all chunks together."""

    @classmethod
    def of(
        cls, run: ReprocessRun, reports: Mapping[int, ChunkReport], ran: int
    ) -> ReprocessSummary:
        """Add up the reports of all chunks."""
        ordered = [reports[number] for number in sorted(reports)]
        diff = reduce(ResultDiff.plus, (report.diff for report in ordered), ResultDiff())
        return cls(run, tuple(report.without_rows() for report in ordered), ran, diff)

    @property
    def failed(self) -> tuple[ChunkReport, ...]:
        """The chunks that failed."""
        return tuple(report for report in self.reports if report.status == FAILED)

    @property
    def written(self) -> int:
        """The number of results that were written."""
        return sum(report.written for report in self.reports)

    @property
    def status(self) -> str:
        """The outcome, for people."""
        if not self.failed:
            return "success"
        return "partial success" if len(self.failed) < len(self.reports) else "failed"

    def to_dict(self, *, written: bool, plan: dict[str, Any] | None) -> dict[str, Any]:
        """As `-o json` shows it; a run that only compared has no name."""
        diff = self.diff
        return {
            "run": self.run.id if written else None,
            "status": self.status,
            "written": self.written,
            "counts": diff.counts,
            "changes": [vars(change) for change in diff.changes],
            "points": [dict(zip(("start", "old", "new"), p, strict=True)) for p in diff.points],
            "chunks": [
                {name: value for name, value in vars(report).items() if name != "diff"}
                for report in self.reports
            ],
            "ran": self.ran,
            "plan": plan,
        }


def new_run_id(pipeline: str) -> str:
    """A unique name that sorts by time."""
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    return f"{now}-{pipeline}-{secrets.token_hex(2)}"


def create_run(settings: Settings, run: ReprocessRun) -> None:
    """Record what a run has to do, before it does anything."""
    _open_runs(settings).write(f"{run.id}/{_RUN}", encode(run, indent=2))


def _open_runs(settings: Settings) -> WritableFolder:
    return open_writable(settings.location("runs"))


def _run_names(runs: WritableFolder) -> list[str]:
    return [name for name in runs.names() if runs.exists(f"{name}/{_RUN}")]


def load_run(settings: Settings, name: str) -> ReprocessRun:
    """The run of a name, or the newest if the name is `last`; refused if there is none."""
    runs = _open_runs(settings)
    if name == "last":
        name = (_run_names(runs) or [name])[-1]
    if not re.fullmatch(r"(?!\.)[\w.-]+", name) or not runs.exists(f"{name}/{_RUN}"):
        last = ", ".join(_run_names(runs)[-3:])
        raise UsageError(
            f"There is no run {name!r} in {runs.url}.",
            f"The last ones: {last}." if last else "None was begun there: see --home.",
        )
    return _read(ReprocessRun, runs, f"{name}/{_RUN}")


def list_runs(settings: Settings, pipeline: str, most: int) -> list[tuple[ReprocessRun, str, bool]]:
    """The last runs of a pipeline, newest first, each with its progress and if it is complete."""
    runs: list[tuple[ReprocessRun, str, bool]] = []
    for name in reversed(_run_names(_open_runs(settings))):
        if f"-{pipeline}-" in name and len(runs) < most:
            with suppress(EbbtideError):  # a damaged journal is reported when it is retried
                run = load_run(settings, name)
                if run.pipeline == pipeline:
                    runs.append((run, *_progress(run, load_reports(settings, run))))
    return runs


def _progress(run: ReprocessRun, reports: Mapping[int, ChunkReport]) -> tuple[str, bool]:
    statuses = [report.status for report in reports.values()]
    done, failed = statuses.count(DONE), statuses.count(FAILED)
    if done == len(run.chunks):
        return "complete", True
    progress = f"{done} of {len(run.chunks)} chunks done"
    return f"{progress}, {failed} failed" if failed else progress, False


def save_report(settings: Settings, run: ReprocessRun, report: ChunkReport) -> None:
    """Record how a chunk ended."""
    _open_runs(settings).write(f"{run.id}/chunk-{report.number:04}.json", encode(report))


def load_reports(settings: Settings, run: ReprocessRun) -> dict[int, ChunkReport]:
    """The reports of the chunks that have run, by number."""
    runs = _open_runs(settings)
    files = [name for name in runs.names(run.id) if re.fullmatch(r"chunk-\d+\.json", name)]
    reports = [_read(ChunkReport, runs, f"{run.id}/{name}") for name in files]
    return {report.number: report for report in reports}


@contextmanager
def hold_run(
    settings: Settings, run: ReprocessRun, *, alone: bool = False
) -> Iterator[Callable[[], None]]:
    """Let one process at a time work on a run; released when its holder dies, at a URL later.

    What it gives raises if another process has taken the run over. `alone` says that no other can
    work on it, where a store cannot tell.
    """
    runs = _open_runs(settings)
    with ExitStack() as held:
        check: Callable[[], None] = nothing
        try:
            if runs.local:
                held.enter_context(FileLock(runs.path(run.id, ".lock"), timeout=0))
            else:
                folder = open_writable(f"{runs.url}/{run.id}")
                held_run = lease.hold_lease(folder, lease.RUN, assume_stopped=alone)
                check = held.enter_context(held_run).check
        except (Timeout, lease.InUseError):
            raise EbbtideError(
                f"Another process is working on run {run.id}.", "Wait for it, then try again."
            ) from None
        yield check


def nothing() -> None:
    """No process can take over a run that is locked on a disk."""


def retry_flags(settings: Settings) -> tuple[str, ...]:
    """The flags that a person needs to retry a run; a journal has Kafka's address.

    >>> retry_flags(Settings()), retry_flags(Settings(url="s3a://lake/ebbtide"))
    ((), ('--home', 's3a://lake/ebbtide'))
    """
    home = settings.url or str(settings.home)
    # the file may name another address
    kafka = settings.kafka_flags() if settings.kafka_config else []
    return (
        *(("--home", home) if home != str(Settings.home) else ()),
        *(word for flag in kafka for word in flag),
    )


def settings_flags(settings: Settings) -> tuple[str, ...]:
    """The flags that give another process our home and our broker, whatever its environment is."""
    kafka = settings.kafka_flags()
    return (f"--home={settings.location()}", *(f"{flag}={value}" for flag, value in kafka))


def _read(kind: type[_Value], runs: WritableFolder, file: str) -> _Value:
    try:
        return decode(kind, parse_json(runs.read(file) or ""))
    except (*INVALID, UsageError) as error:  # a time may be none
        raise EbbtideError(
            f"The journal {runs.path(file)} cannot be read: {error}.", "Start a new reprocess."
        ) from None
