"""What a run writes down is what a retry reads; one process at a time."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ebbtide.config import Settings
from ebbtide.connectors.streams import OutputPosition
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.reprocessing.diff import ResultChange, ResultDiff
from ebbtide.reprocessing.journal import (
    DONE,
    FAILED,
    ChunkReport,
    ReprocessRun,
    create_run,
    hold_run,
    load_reports,
    load_run,
    save_report,
)
from ebbtide.reprocessing.ranges import EventTimeRange, Shape, cut

AT = datetime(2025, 9, 4, 7, 0, 0, 123_456, tzinfo=timezone.utc)
ASKED = EventTimeRange(AT, AT + timedelta(hours=2))
RUN = ReprocessRun(
    id="20250904T081500-visits-counter-1a2b",
    pipeline="visits-counter",
    reference="my_pipelines.py:counter",
    zone="Europe/Warsaw",
    asked=ASKED,
    owned=ASKED,
    chunks=tuple(cut(ASKED, Shape("stateless"))),
    archive_version=12,
    shape="row by row",
    position=OutputPosition(offsets={0: 3, 1: 0}),
    only_changed=True,
    max_active=2,
    backwards=True,
)
DIFF = ResultDiff(
    {"unchanged": 1, "changed": 1, "new": 0, "gone": 0},
    (ResultChange("changed", "2025-09-04T07:00:00.000Z", {"count": 3}, {"count": 5}),),
    (("2025-09-04T07:00:00.000Z", 3.0, None),),
    "count",
)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    create_run(settings, RUN)
    assert load_run(settings, RUN.id) == load_run(settings, "last") == RUN
    reports = [
        ChunkReport(1, DONE, 10, 1, 2, 2, DIFF),
        ChunkReport(2, FAILED, error="no space left"),
    ]
    for report in reports:
        save_report(settings, RUN, report)
    assert load_reports(settings, RUN) == {1: reports[0], 2: reports[1]}


@pytest.mark.parametrize("name", ["none-such", "..", "../runs", ""])
def test_another_run_is_refused_and_the_last_ones_named(tmp_path: Path, name: str) -> None:
    settings = Settings(home=tmp_path)
    create_run(settings, RUN)
    with pytest.raises(UsageError, match=f"There is no run .* The last ones: {RUN.id}"):
        load_run(settings, name)


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    create_run(settings, RUN)
    (settings.runs / RUN.id / "run.json").write_text('{"half')
    with pytest.raises(EbbtideError, match=r"run\.json cannot be read: .* Start a new reprocess"):
        load_run(settings, RUN.id)


def test_two_processes_do_not_work_on_one_run(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    create_run(settings, RUN)
    program = (
        "import sys, filelock\n"
        f"with filelock.FileLock({str(settings.runs / RUN.id / '.lock')!r}):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(EbbtideError, match="Another process is working on run"):
            with hold_run(settings, RUN):
                pass
        other.kill()
    with hold_run(settings, RUN):
        pass


def test_diffs_add_up() -> None:
    both = DIFF.plus(DIFF)
    assert both.counts == {"unchanged": 2, "changed": 2, "new": 0, "gone": 0}
    assert len(both.changes) == 2
    assert both.measure == "count"
    assert both.differs
    assert not ResultDiff({"unchanged": 4}).differs
