"""Keep on disk what a run was asked to do and what became of each chunk, for a retry.

`run.json` is written once, before the first chunk: range, chunks, the archive's version, where the
output stood. `chunk-0003.json` follows when chunk 3 is done or has failed.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar, cast

from filelock import FileLock, Timeout

from ebbtide.config import Settings, make_folder, write_whole
from ebbtide.connectors import streams
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.reprocessing.diff import ResultDiff
from ebbtide.reprocessing.encoding import decode, encode
from ebbtide.reprocessing.ranges import Chunk, EventTimeRange

DONE, FAILED = "done", "failed"
LAST = "last"
"""Instead of a run's name: the one that was begun last."""
_RUN = "run.json"
_CHUNK = re.compile(r"chunk-(\d+)\.json")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class ReprocessRun:
    """What a run was asked to do, frozen at its start."""

    id: str
    pipeline: str
    reference: str
    """The pipeline as it was typed, so that a retry finds it again."""
    zone: str
    asked: EventTimeRange
    owned: EventTimeRange
    chunks: tuple[Chunk, ...]
    archive_version: int
    shape: str
    position: streams.OutputPosition
    """Where the output stood: what the new results are compared with."""
    only_changed: bool = False
    max_active: int = 1
    backwards: bool = False
    servers: str | None = None
    """Kafka's address, if one was named; the embedded broker of the home if not."""

    def words(self, settings: Settings) -> tuple[str, ...]:
        """The arguments of the command line that run what is missing."""
        return ("retry", *settings_flags(settings), "--", self.id)


@dataclass(frozen=True)
class ChunkReport:
    """What became of one chunk."""

    number: int
    status: str
    records: int = 0
    broken: int = 0
    results: int = 0
    written: int = 0
    diff: ResultDiff = field(default_factory=ResultDiff)
    error: str = ""

    def without_rows(self) -> ChunkReport:
        """The same without the results that differ, only their counts."""
        return replace(self, diff=ResultDiff(self.diff.counts))


@dataclass(frozen=True)
class ReprocessSummary:
    """What became of a run."""

    run: ReprocessRun
    reports: tuple[ChunkReport, ...]
    ran: int
    """How many chunks ran this time."""
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
        """How many results were written."""
        return sum(report.written for report in self.reports)

    @property
    def status(self) -> str:
        """As people read it at the end."""
        if not self.failed:
            return "success"
        return "partial success" if len(self.failed) < len(self.reports) else "failed"

    def to_dict(self, *, written: bool, plan: dict[str, Any] | None) -> dict[str, Any]:
        """As `-o json` shows it; a run that only compared has no name."""
        diff = self.diff
        columns = ("number", "status", "records", "broken", "results", "written", "error")
        return {
            "run": self.run.id if written else None,
            "status": self.status,
            "written": self.written,
            "counts": diff.counts,
            "changes": [asdict(change) for change in diff.changes],
            "points": [dict(zip(("start", "old", "new"), p, strict=True)) for p in diff.points],
            "chunks": [{name: getattr(r, name) for name in columns} for r in self.reports],
            "ran": self.ran,
            "plan": plan,
        }


def new_run_id(pipeline: str) -> str:
    """A name that sorts by time and that nobody else takes."""
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    return f"{now}-{pipeline}-{secrets.token_hex(2)}"


def create_run(settings: Settings, run: ReprocessRun) -> None:
    """Write down what a run is to do, before it does anything."""
    folder = make_folder(settings.runs, "--home") / run.id
    folder.mkdir()
    write_whole(folder / _RUN, json.dumps(encode(run), indent=2))


def load_run(settings: Settings, name: str) -> ReprocessRun:
    """What a run was asked to do, or the last one; refused if there is none of that name."""
    there = sorted(path.parent.name for path in settings.runs.glob(f"*/{_RUN}"))
    name = there[-1] if name == LAST and there else name
    file = settings.runs / name / _RUN
    if not re.fullmatch(r"[\w.-]+", name) or not file.is_file():
        raise UsageError(
            f"There is no run {name!r} in {settings.runs}.",
            f"The last ones: {', '.join(there[-3:]) or 'none'}.",
        )
    return _read(ReprocessRun, file)


def list_runs(settings: Settings, pipeline: str, most: int) -> list[tuple[ReprocessRun, str, bool]]:
    """The last runs of a pipeline, the newest first: how far each is, and if it is complete."""
    names = sorted((path.parent.name for path in settings.runs.glob(f"*/{_RUN}")), reverse=True)
    runs: list[tuple[ReprocessRun, str, bool]] = []
    for name in names:
        if f"-{pipeline}-" in name and len(runs) < most:
            with suppress(EbbtideError):  # one that was edited says so itself
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
    """Note what became of a chunk."""
    file = settings.runs / run.id / f"chunk-{report.number:04}.json"
    write_whole(file, json.dumps(encode(report), ensure_ascii=False))


def load_reports(settings: Settings, run: ReprocessRun) -> dict[int, ChunkReport]:
    """What became of the chunks that were begun, by number."""
    files = (settings.runs / run.id).iterdir()
    reports = [_read(ChunkReport, file) for file in files if _CHUNK.fullmatch(file.name)]
    return {report.number: report for report in reports}


@contextmanager
def hold_run(settings: Settings, run: ReprocessRun) -> Iterator[None]:
    """One process at a time works on a run; the lock goes when its holder dies."""
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
        return cast(_Value, decode(kind, json.loads(file.read_text("utf-8"))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EbbtideError(
            f"The journal {file} cannot be read: {error}.", "Start a new reprocess."
        ) from None
