"""What a run writes down is what a retry reads; one process at a time."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from ebbtide.config import Settings
from ebbtide.connectors.streams import OutputPosition
from ebbtide.errors import CheckpointError, EbbtideError, UsageError
from ebbtide.reprocessing import core
from ebbtide.reprocessing.diff import ResultChange, ResultDiff
from ebbtide.reprocessing.journal import (
    DONE,
    FAILED,
    ChunkReport,
    ReprocessRun,
    create_run,
    hold_run,
    list_runs,
    load_reports,
    load_run,
    retry_flags,
    save_report,
)
from ebbtide.reprocessing.logic import Logic
from ebbtide.reprocessing.ranges import EventTimeRange, Shape, cut
from ebbtide.reprocessing.run import _Worker
from ebbtide.rewind.lease import LeaseLostError
from ebbtide.storage import WritableFolder, open_writable
from tests.conftest import Cli
from tests.leases import Clock, on_another_host

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


def test_the_line_to_retry_finds_the_journal_and_kafka() -> None:
    assert RUN.retry_line == f"ebbtide retry {RUN.id}"
    settings = Settings(
        bootstrap_servers="b:1", url="s3a://lake/ebbtide", kafka_config="/etc/my kafka.properties"
    )
    line = replace(RUN, flags=retry_flags(settings)).retry_line
    kafka = "--bootstrap-servers b:1 --kafka-config '/etc/my kafka.properties'"
    flags = f"--home s3a://lake/ebbtide {kafka}"
    assert line == f"ebbtide retry {RUN.id} {flags}"


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
    (settings.home / "runs" / RUN.id / "run.json").write_text('{"half')
    with pytest.raises(EbbtideError, match=r"run\.json cannot be read: .* Start a new reprocess"):
        load_run(settings, RUN.id)


def test_two_processes_do_not_work_on_one_run(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    create_run(settings, RUN)
    lock = str(settings.home / "runs" / RUN.id / ".lock")
    program = (
        "import sys, filelock\n"
        f"with filelock.FileLock({lock!r}):\n"
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


def test_a_driver_elsewhere_finds_the_run_of_a_home_at_a_url(tmp_path: Path) -> None:
    """Another local home, as on another host; one of them at a time."""
    url = "memory://runs-elsewhere/home"
    here, there = (Settings(home=tmp_path / name, url=url) for name in ("here", "there"))
    create_run(here, RUN)
    save_report(here, RUN, ChunkReport(1, DONE, 10, 1, 2, 2, DIFF))
    assert load_run(there, "last") == RUN
    assert load_reports(there, RUN)[1].diff == DIFF
    assert [run.id for run, _, _ in list_runs(there, RUN.pipeline, 5)] == [RUN.id]
    assert RUN.words(there) == ("retry", f"--home={url}", "--", RUN.id)
    assert not list(tmp_path.iterdir())
    with hold_run(here, RUN), pytest.raises(EbbtideError, match="Another process is working on"):
        with hold_run(there, RUN):
            pass
    with hold_run(there, RUN):
        pass


def test_a_run_that_was_taken_over_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path, url="memory://runs-taken/home")
    create_run(settings, RUN)
    worker = object.__new__(_Worker)
    worker.run, worker.write, worker.logic = RUN, True, Logic.__new__(Logic)
    object.__setattr__(worker.logic, "settings", settings)
    object.__setattr__(worker.logic, "spark", None)
    clock = Clock(monkeypatch)
    with hold_run(settings, RUN) as worker.require_ours:
        monkeypatch.setattr(worker, "_run", lambda _: ChunkReport(1, DONE), raising=False)
        worker.work(RUN.chunks[0])
        clock.stalled = 3600
        with on_another_host(), hold_run(settings, RUN):
            pass
        with pytest.raises(LeaseLostError, match="was taken over"):
            worker.work(RUN.chunks[-1])
        with pytest.raises(LeaseLostError, match="was taken over"):
            worker.publish(DIFF)
    assert list(load_reports(settings, RUN)) == [1]


def test_a_run_that_cannot_be_held_says_why(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, url="memory://runs-damaged/home")
    create_run(settings, RUN)
    folder = open_writable(f"{settings.url}/runs/{RUN.id}")
    folder.write(".ebbtide/leases/1.json", "{")
    with pytest.raises(CheckpointError, match=r"leases/1\.json"), hold_run(settings, RUN):
        pass


def test_where_a_store_cannot_tell_a_retry_is_told(
    inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(url="memory://runs-of-an-old-store/home")
    begun = replace(RUN, reference="visits-counter")
    create_run(settings, begun)
    for chunk in begun.chunks:
        save_report(settings, begun, ChunkReport(chunk.number, DONE))
    shape = SimpleNamespace(describe=lambda: begun.shape)
    logic = nullcontext(SimpleNamespace(shape=shape, settings=settings))
    monkeypatch.setattr(core, "_prepare", lambda *_: (settings, None, None))
    monkeypatch.setattr(core, "_open_logic", lambda *_: logic)
    monkeypatch.setattr("ebbtide.reprocessing.run._Worker", MagicMock())
    monkeypatch.setattr(WritableFolder, "creates_exclusively", False)
    words = ("retry", begun.id, "--home", str(settings.url))
    refused = inside(*words)
    assert (refused.returncode, "then add --assume-stopped" in refused.stderr) == (1, True)
    assert inside(*words, "--assume-stopped").returncode == 0


def test_diffs_add_up() -> None:
    both = DIFF.plus(DIFF)
    assert both.counts == {"unchanged": 2, "changed": 2, "new": 0, "gone": 0}
    assert len(both.changes) == 2
    assert both.measure == "count"
    assert both.differs
    assert not ResultDiff({"unchanged": 4}).differs
