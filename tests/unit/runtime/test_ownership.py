from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide import Files, Kafka
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.notes import read_note
from ebbtide.rewind.holders import CHANGE, read_lease
from ebbtide.rewind.lease import LeaseLostError, hold_lease
from ebbtide.runtime.ownership import claim
from ebbtide.storage import Folder, open_folder
from tests.leases import Clock, on_another_host
from tests.outputs import write_files
from tests.trees import build
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


def test_a_new_query_is_not_run_into_a_folder_that_would_skip_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_files(out, range(3))
    pipeline = replace(PIPELINE, sink=Files(str(out), "json"))
    with pytest.raises(CheckpointError, match="would skip batches 0 to 2"):
        with claim(str(tmp_path / "c"), pipeline, SETTINGS):
            pass


def test_a_run_that_was_stalled_prepares_no_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, pipeline = build(tmp_path / "c", 2, 2), replace(PIPELINE, sink=Files("out", "json"))
    monkeypatch.chdir(tmp_path)
    clock = Clock(monkeypatch)

    def stall(folder: Folder) -> None:
        clock.stalled = 120
        with on_another_host(), hold_lease(folder, CHANGE):
            pass

    with monkeypatch.context() as patch:
        patch.setattr("ebbtide.runtime.ownership.Journal.read", stall)
        with pytest.raises(LeaseLostError, match="was taken over"):
            with claim(str(where), pipeline, SETTINGS):
                pass
    assert not (tmp_path / "out").exists()
    with claim(str(where), pipeline, SETTINGS):
        assert (tmp_path / "out").exists(), "one that is not stalled does"


def test_a_copy_of_a_checkpoint_is_not_running(tmp_path: Path) -> None:
    with claim(str(tmp_path / "c"), PIPELINE, SETTINGS) as claimed:
        shutil.copytree(tmp_path / "c", tmp_path / "copy")
        assert read_lease(claimed.folder) is not None
        assert read_lease(open_folder(str(tmp_path / "copy"))) is None


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
