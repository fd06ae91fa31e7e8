"""A run of a reprocess in, its frozen plan and what each chunk did out: on disk, written whole.

`run.json` is written once, before the first chunk: range, chunks, the archive's version, where the
output stood. `chunk-0003.json` follows when chunk 3 is done or has failed.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ebbtide.config import Settings, make_folder, write_whole
from ebbtide.connectors import OutputPosition
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.reprocess.diff import Change, Diff
from ebbtide.reprocess.ranges import Chunk, Span
from ebbtide.times import in_utc, parse_time

DONE, FAILED = "done", "failed"
COMPLETE = "complete"
LAST = "last"
"""Instead of a run's name: the one that was begun last."""
_RUN = "run.json"
_CHUNK = re.compile(r"chunk-(\d+)\.json")


@dataclass(frozen=True)
class Run:
    """What a run was asked to do, frozen at its start."""

    id: str
    pipeline: str
    reference: str
    """The pipeline as it was typed, so that a retry finds it again."""
    zone: str
    asked: Span
    owned: Span
    chunks: tuple[Chunk, ...]
    archive_version: int
    shape: str
    position: OutputPosition
    """Where the output stood: what the new results are compared with."""
    only_changed: bool = False
    max_active: int = 1
    backwards: bool = False
    servers: str | None = None
    """Kafka's address, if one was named; the embedded broker of the home if not."""


@dataclass(frozen=True)
class ChunkReport:
    """What became of one chunk."""

    number: int
    status: str
    records: int = 0
    broken: int = 0
    results: int = 0
    written: int = 0
    diff: Diff = field(default_factory=Diff)
    error: str = ""


def new_run_id(pipeline: str) -> str:
    """A name that sorts by time and that nobody else takes."""
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    return f"{now}-{pipeline}-{secrets.token_hex(2)}"


def create_run(settings: Settings, run: Run) -> None:
    """Write down what a run is to do, before it does anything."""
    folder = make_folder(settings.runs, "--home") / run.id
    folder.mkdir()
    write_whole(folder / _RUN, json.dumps(_plain(asdict(run)), indent=2))


def load_run(settings: Settings, name: str) -> Run:
    """What a run was asked to do, or the last one; refused if there is none of that name."""
    there = sorted(path.parent.name for path in settings.runs.glob(f"*/{_RUN}"))
    name = there[-1] if name == LAST and there else name
    file = settings.runs / name / _RUN
    if not re.fullmatch(r"[\w.-]+", name) or not file.is_file():
        raise UsageError(
            f"There is no run {name!r} in {settings.runs}.",
            f"The last ones: {', '.join(there[-3:]) or 'none'}.",
        )
    found = _read(file)
    position = found["position"]
    offsets = position["offsets"]
    return Run(
        **{
            **found,
            "asked": _span(found["asked"]),
            "owned": _span(found["owned"]),
            "chunks": tuple(
                Chunk(c["number"], _span(c["owns"]), _span(c["reads"])) for c in found["chunks"]
            ),
            "position": OutputPosition(
                None if offsets is None else {int(p): offset for p, offset in offsets.items()},
                position["version"],
            ),
        }
    )


def list_runs(settings: Settings, pipeline: str, most: int) -> list[tuple[Run, str]]:
    """The last runs of a pipeline, the newest first, and how far each is in a few words."""
    names = sorted((path.parent.name for path in settings.runs.glob(f"*/{_RUN}")), reverse=True)
    found: list[tuple[Run, str]] = []
    for name in names:
        if f"-{pipeline}-" in name and len(found) < most:
            with suppress(EbbtideError, KeyError, TypeError):  # one that was edited says so itself
                run = load_run(settings, name)
                if run.pipeline == pipeline:
                    found.append((run, _say_progress(run, load_reports(settings, run))))
    return found


def _say_progress(run: Run, reports: Mapping[int, ChunkReport]) -> str:
    """How far a run is: complete, or what is done and what failed."""
    done = sum(report.status == DONE for report in reports.values())
    if done == len(run.chunks):
        return COMPLETE
    failed = sum(report.status == FAILED for report in reports.values())
    return f"{done} of {len(run.chunks)} chunks done" + (f", {failed} failed" if failed else "")


def save_report(settings: Settings, run: Run, report: ChunkReport) -> None:
    """Note what became of a chunk."""
    file = settings.runs / run.id / f"chunk-{report.number:04}.json"
    write_whole(file, json.dumps(_plain(asdict(report)), ensure_ascii=False))


def load_reports(settings: Settings, run: Run) -> dict[int, ChunkReport]:
    """What became of the chunks that were begun, by number."""
    found = {}
    for file in (settings.runs / run.id).iterdir():
        if _CHUNK.fullmatch(file.name):
            report = _report(_read(file))
            found[report.number] = report
    return found


@contextmanager
def hold_run(settings: Settings, run: Run) -> Iterator[None]:
    """One process at a time works on a run; the lock goes when its holder dies."""
    try:
        with FileLock(settings.runs / run.id / ".lock", timeout=0):
            yield
    except Timeout:
        raise EbbtideError(
            f"Another process is working on run {run.id}.", "Wait for it, then try again."
        ) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise EbbtideError(
            f"The journal {file} cannot be read: {error}.", "Start the reprocess anew."
        ) from None


def _report(found: Mapping[str, Any]) -> ChunkReport:
    diff = found["diff"]
    return ChunkReport(
        **{
            **found,
            "diff": Diff(
                diff["counts"],
                tuple(Change(**change) for change in diff["changes"]),
                tuple((start, old, new) for start, old, new in diff["points"]),
                diff["measure"],
            ),
        }
    )


def _span(found: Mapping[str, str]) -> Span:
    return Span(parse_time(found["start"]), parse_time(found["end"]))


def _plain(value: Any) -> Any:
    """Times as text, exact to the microsecond."""
    match value:
        case datetime():
            exact = value.astimezone(timezone.utc).isoformat(timespec="microseconds")
            return exact if value.microsecond % 1000 else in_utc(value)
        case Mapping():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return value
