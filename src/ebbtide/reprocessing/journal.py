"""Record on disk what a run has to do and how each chunk ended, so that it can be retried.

`run.json` is written once, before the first chunk: range, chunks, the archive's version, and the
position of the output. `chunk-0003.json` follows when chunk 3 is done or has failed.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from ebbtide.config import Settings, make_folder, write_whole
from ebbtide.connectors import streams
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.notes import INVALID, decode, encode
from ebbtide.reprocessing.diff import ResultDiff
from ebbtide.reprocessing.ranges import Chunk, EventTimeRange

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
    folder = make_folder(settings.runs, "--home") / run.id
    folder.mkdir()
    write_whole(folder / _RUN, encode(run, indent=2))


def _run_names(settings: Settings) -> list[str]:
    return sorted(path.parent.name for path in settings.runs.glob(f"*/{_RUN}"))


def load_run(settings: Settings, name: str) -> ReprocessRun:
    """The run of a name, or the newest if the name is `last`; refused if there is none."""
    names = _run_names(settings)
    name = names[-1] if name == "last" and names else name
    file = settings.runs / name / _RUN
    if not re.fullmatch(r"[\w.-]+", name) or not file.is_file():
        raise UsageError(
            f"There is no run {name!r} in {settings.runs}.",
            f"The last ones: {', '.join(names[-3:]) or 'none'}.",
        )
    return _read(ReprocessRun, file)


def list_runs(settings: Settings, pipeline: str, most: int) -> list[tuple[ReprocessRun, str, bool]]:
    """The last runs of a pipeline, newest first, each with its progress and if it is complete."""
    runs: list[tuple[ReprocessRun, str, bool]] = []
    for name in reversed(_run_names(settings)):
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
    write_whole(settings.runs / run.id / f"chunk-{report.number:04}.json", encode(report))


def load_reports(settings: Settings, run: ReprocessRun) -> dict[int, ChunkReport]:
    """The reports of the chunks that have run, by number."""
    files = (settings.runs / run.id).glob("chunk-*.json")
    reports = [_read(ChunkReport, file) for file in files]
    return {report.number: report for report in reports}


@contextmanager
def hold_run(settings: Settings, run: ReprocessRun) -> Iterator[None]:
    """Let one process at a time work on a run; the lock is released when its holder dies."""
    try:
        with FileLock(settings.runs / run.id / ".lock", timeout=0):
            yield
    except Timeout:
        raise EbbtideError(
            f"Another process is working on run {run.id}.", "Wait for it, then try again."
        ) from None


def settings_flags(settings: Settings) -> tuple[str, ...]:
    """The flags that give another process our home and our broker, whatever its environment is."""
    servers = settings.bootstrap_servers
    named = (f"--bootstrap-servers={servers}",) if servers else ()
    return (f"--home={settings.home.absolute()}", *named)


def _read(kind: type[_Value], file: Path) -> _Value:
    try:
        return decode(kind, json.loads(file.read_text("utf-8")))
    except (OSError, *INVALID) as error:
        raise EbbtideError(
            f"The journal {file} cannot be read: {error}.", "Start a new reprocess."
        ) from None
