from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ebbtide import Files, Kafka
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.notes import read_note, write_note
from ebbtide.rewind.backups import prune_backups
from ebbtide.rewind.lease import CHANGE, Claim, hold_lease, read_lease
from ebbtide.runtime.ownership import claim
from ebbtide.storage import open_folder
from tests.outputs import write_files
from tests.trees import build, in_the_way_of
from tests.unit.test_pipeline import PIPELINE

SETTINGS = Settings(home=Path("home"))


def test_a_claim_is_given_back(tmp_path: Path) -> None:
    for _ in range(2):
        with claim(str(tmp_path / "c"), PIPELINE, SETTINGS) as claimed:
            assert read_lease(claimed.folder).holder() is not None  # type: ignore[union-attr]
        assert read_lease(claimed.folder).holder() is None  # type: ignore[union-attr]


def test_a_running_query_is_not_run_twice(tmp_path: Path) -> None:
    where = str(tmp_path / "c")
    with claim(where, PIPELINE, SETTINGS), pytest.raises(CheckpointError, match="running already"):
        with claim(where, PIPELINE, SETTINGS):
            pass


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    where = str(tmp_path / "c")
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    note = {"host": socket.gethostname(), "processes": [[int(gone.stdout), 1.0]], "renewed": 0}
    write_note(open_folder(where), "lease.json", note)
    with claim(where, PIPELINE, SETTINGS):
        pass


def test_the_jvm_of_a_killed_driver_is_waited_for(tmp_path: Path) -> None:
    where = str(tmp_path / "c")
    jvm = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.4)"])
    started = psutil.Process(jvm.pid).create_time()
    note = {
        "host": socket.gethostname(),
        "processes": [[2**22 + 7, 1.0], [jvm.pid, started]],
        "renewed": time.time(),
    }
    write_note(open_folder(where), "lease.json", note)
    assert jvm.poll() is None
    with claim(where, PIPELINE, SETTINGS):
        assert (
            jvm.poll() is not None
            or not psutil.pid_exists(jvm.pid)
            or (psutil.Process(jvm.pid).status() == psutil.STATUS_ZOMBIE)
        )
    jvm.wait()


def test_another_host_holds_it_while_it_is_fresh(tmp_path: Path) -> None:
    where = str(tmp_path / "c")
    note = {"host": "elsewhere", "processes": [[1, 1.0]], "renewed": time.time() - 5}
    write_note(open_folder(where), "lease.json", note)
    with pytest.raises(CheckpointError, match="on host elsewhere, seen 5 s ago"):
        with claim(where, PIPELINE, SETTINGS):
            pass
    write_note(open_folder(where), "lease.json", note | {"renewed": time.time() - 600})
    with claim(where, PIPELINE, SETTINGS):
        pass


def test_a_lease_that_cannot_be_renewed_is_kept(tmp_path: Path) -> None:
    notes = tmp_path / "c" / ".ebbtide"
    with claim(str(tmp_path / "c"), PIPELINE, SETTINGS) as claimed:
        before = read_lease(claimed.folder)
        with in_the_way_of(notes):
            claimed.renew(every_seconds=0)
            assert "Not a directory" in (claimed.problem or "")
        claimed.renew(every_seconds=0)
        after = read_lease(claimed.folder)
        assert claimed.problem is None
        assert before is not None
        assert after is not None
        assert after.renewed > before.renewed
    assert read_lease(claimed.folder).released  # type: ignore[union-attr]


@pytest.mark.parametrize("released", [False, True])
def test_a_lease_that_another_process_has_taken_is_lost(tmp_path: Path, released: bool) -> None:
    taken = {
        "host": "elsewhere",
        "processes": [[1, 1.0]],
        "renewed": time.time(),
        "released": released,
    }
    with claim(str(tmp_path / "c"), PIPELINE, SETTINGS) as claimed:
        write_note(claimed.folder, "lease.json", taken)
        with pytest.raises(CheckpointError, match=r"was taken over by .* elsewhere"):
            claimed.renew(every_seconds=0)
    assert read_note(claimed.folder, "lease.json") == taken


def test_a_new_query_is_not_run_into_a_folder_that_would_skip_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_files(out, range(3))
    pipeline = replace(PIPELINE, sink=Files(str(out), "json"))
    with pytest.raises(CheckpointError, match="would skip batches 0 to 2"):
        with claim(str(tmp_path / "c"), pipeline, SETTINGS):
            pass


def test_a_process_is_not_locked_out_by_a_lease_that_it_could_not_give_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(str(tmp_path / "c"))
    with monkeypatch.context() as outage:
        outage.setattr(Claim, "release", lambda _claim: None)
        with hold_lease(folder, CHANGE):
            with pytest.raises(CheckpointError, match="is being rewound"):
                with hold_lease(folder, CHANGE):
                    pass
    with hold_lease(folder, CHANGE):
        pass


def test_a_copy_of_a_checkpoint_is_not_running(tmp_path: Path) -> None:
    with claim(str(tmp_path / "c"), PIPELINE, SETTINGS) as claimed:
        shutil.copytree(tmp_path / "c", tmp_path / "copy")
        assert read_lease(claimed.folder) is not None
        assert read_lease(open_folder(str(tmp_path / "copy"))) is None


def test_backups_may_be_pruned_while_a_lease_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claim(str(tmp_path / "c"), PIPELINE, SETTINGS) as claimed:
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 300)
        prune_backups(str(tmp_path / "c"), keep=1)
        note = read_note(claimed.folder, "change-lease.json")
        assert note is not None
        write_note(claimed.folder, "change-lease.json", note | {"host": "elsewhere"})
        claimed.renew(every_seconds=0)
        assert claimed.problem is None


@pytest.mark.parametrize("stale", [False, True])
def test_a_checkpoint_that_was_rewound_meanwhile_is_lost(tmp_path: Path, stale: bool) -> None:
    """A change beside a run, such as the removal of a backup, is none."""
    change = {"host": "elsewhere", "processes": [[1, 1.0]], "purpose": "change", "released": True}
    with claim(str(tmp_path / "c"), PIPELINE, SETTINGS) as claimed:
        later = time.time() + (300 if stale else 0)
        write_note(claimed.folder, "change-lease.json", change | {"renewed": later})
        if not stale:
            claimed.renew(every_seconds=0)
            return
        with pytest.raises(CheckpointError, match="was taken over by a process on host elsewhere"):
            claimed.renew(every_seconds=0)


def test_a_checkpoint_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    where = str(build(tmp_path / "c", 2, 2))
    with claim(where, PIPELINE, SETTINGS):
        pass
    with pytest.raises(CheckpointError, match="of pipeline visits-raw, not of other"):
        with claim(where, replace(PIPELINE, name="other"), SETTINGS):
            pass


def test_a_bare_checkpoint_of_another_topic_is_refused(tmp_path: Path) -> None:
    where = str(build(tmp_path / "c", 2, 2))
    clicks = replace(PIPELINE, source=Kafka("clicks", schema="event_time TIMESTAMP"))
    with pytest.raises(CheckpointError, match="reads topic visits, not of visits-raw"):
        with claim(where, clicks, SETTINGS):
            pass


def test_a_join_with_itself_has_two_lines_for_one_source(tmp_path: Path) -> None:
    folder = build(tmp_path / "c", 2, 2)
    lines = (folder / "offsets" / "1").read_text().split("\n")
    # one of them may have read on a little further
    for second in (lines[-1], '{"visits": {"0": 1, "1": 7}}'):
        (folder / "offsets" / "1").write_text("\n".join([*lines, second]))
        with claim(str(folder), PIPELINE, SETTINGS):
            pass
    (folder / "offsets" / "1").write_text("\n".join([*lines, '{"clicks":{"0":5}}']))
    with pytest.raises(CheckpointError, match="of a query with 2 sources"):
        with claim(str(folder), PIPELINE, SETTINGS):
            pass


def test_a_run_that_writes_elsewhere_notes_no_sink(tmp_path: Path) -> None:
    for writes in (True, False):
        with claim(str(tmp_path / "c"), PIPELINE, SETTINGS, writes=writes) as claimed:
            assert ("sink" in (read_note(claimed.folder, "pipeline.json") or {})) == writes


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(CheckpointError, match=r"holds holiday.jpg, which is not a checkpoint"):
        with claim(str(tmp_path), PIPELINE, SETTINGS):
            pass
    assert os.listdir(tmp_path) == ["holiday.jpg"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EbbtideError, match="Cannot write to"):
        with claim(str(tmp_path / "file" / "c"), PIPELINE, SETTINGS):
            pass
