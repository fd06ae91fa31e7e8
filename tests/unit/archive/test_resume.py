"""Where an archive goes on, and when it must not: no record may be missing or there twice."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from pathlib import Path

import psutil
import pytest

from ebbtide.archive.facts import read_archive
from ebbtide.archive.resume import check_kafka, resume, starting_offsets
from ebbtide.config import Settings
from ebbtide.errors import ArchiveError, CheckpointError
from ebbtide.notes import write_note
from ebbtide.storage import open_folder
from tests.unit.archive.tables import PIPELINE, append, checkpoint, create, plan_batches

ENDS = [{0: 1, 1: 0}, {0: 2, 1: 1}]


@pytest.fixture
def folder(settings: Settings) -> Path:
    """Two batches, both in the table and in the checkpoint."""
    create(settings)
    append(settings, 0, (0, 0, "07:00"))
    append(settings, 1, (0, 1, "07:10"), (1, 0, "07:20"))
    plan_batches(checkpoint(settings), ENDS, committed=2)
    return checkpoint(settings)


def go_on(settings: Settings, folder: Path) -> dict[int, int]:
    found = read_archive(PIPELINE, settings)
    return resume(found, open_folder(str(folder)), found.path)


def test_the_first_start(settings: Settings) -> None:
    assert resume(None, open_folder(str(checkpoint(settings))), "t") == {}
    create(settings)
    assert go_on(settings, checkpoint(settings)) == {}


def test_a_restart(settings: Settings, folder: Path) -> None:
    assert go_on(settings, folder) == {0: 2, 1: 1}


def test_killed_before_the_commit(settings: Settings, folder: Path) -> None:
    (folder / "commits" / "1").unlink()
    assert go_on(settings, folder) == {0: 2, 1: 1}


def test_killed_before_the_table(settings: Settings, folder: Path) -> None:
    plan_batches(folder, [*ENDS, {0: 5, 1: 5}], committed=2)
    assert go_on(settings, folder) == {0: 5, 1: 5}


def test_a_new_checkpoint_goes_on_after_the_table(settings: Settings, folder: Path) -> None:
    assert go_on(settings, settings.home / "new") == {0: 2, 1: 1}
    shutil.rmtree(folder)
    assert go_on(settings, folder) == {0: 2, 1: 1}


def test_a_new_checkpoint_beside_a_running_query(settings: Settings, folder: Path) -> None:
    me = [os.getpid(), psutil.Process().create_time()]
    lease = {"host": socket.gethostname(), "processes": [me], "renewed": time.time()}
    write_note(open_folder(str(folder)), "lease.json", lease)
    with pytest.raises(CheckpointError, match="is running already"):
        go_on(settings, settings.home / "new")


def test_a_moved_checkpoint(settings: Settings, folder: Path) -> None:
    moved = folder.rename(settings.home / "moved")
    assert go_on(settings, moved) == {0: 2, 1: 1}
    (moved / "commits" / "1").unlink()
    assert go_on(settings, moved) == {0: 2, 1: 1}


@pytest.mark.usefixtures("folder")
def test_the_checkpoint_of_an_earlier_query(settings: Settings) -> None:
    """It was lost, another went on, then it was found again."""
    found = settings.home / "found"
    plan_batches(found, ENDS[:1], committed=1, query="other")
    with pytest.raises(ArchiveError, match="partition 0 up to offset 2, the checkpoint continues"):
        go_on(settings, found)


def test_a_checkpoint_that_was_taken_back(settings: Settings, folder: Path) -> None:
    for name in ("commits", "offsets"):
        (folder / name / "1").unlink()
    with pytest.raises(ArchiveError, match=r"holds batch 1, .* taken back to 0, and Delta would"):
        go_on(settings, folder)


def test_a_table_that_was_taken_back(settings: Settings, folder: Path) -> None:
    plan_batches(folder, [*ENDS, {0: 5, 1: 5}], committed=3)
    with pytest.raises(
        ArchiveError, match=r"has done batch 2, the table ends with 1.*--checkpoint"
    ):
        go_on(settings, folder)


def test_a_table_that_is_gone(settings: Settings, folder: Path) -> None:
    with pytest.raises(ArchiveError, match="has run up to batch 1, but there is no table at t"):
        resume(None, open_folder(str(folder)), "t")
    shutil.rmtree(settings.table("visits"))
    create(settings)
    with pytest.raises(ArchiveError, match="up to offset 0, the checkpoint continues at 2"):
        go_on(settings, folder)


def test_another_topic_of_that_name() -> None:
    with pytest.raises(
        ArchiveError, match=r"ends at offset 3 of partition 1, .* up to 7: it is an"
    ):
        check_kafka("visits", {0: 2, 1: 7}, {0: (0, 9), 1: (0, 3)}, loss_allowed=True)
    with pytest.raises(ArchiveError, match="ends at offset 0 of partition 1"):
        check_kafka("visits", {0: 2, 1: 7}, {0: (0, 9)}, loss_allowed=True)


def test_records_that_left_kafka() -> None:
    retained = {0: (5, 9)}
    with pytest.raises(ArchiveError, match=r"Records 2 to 4 .* never archived.*failOnDataLoss"):
        check_kafka("visits", {0: 2}, retained, loss_allowed=False)
    assert len(check_kafka("visits", {0: 2}, retained, loss_allowed=True)) == 1
    assert check_kafka("visits", {0: 5}, retained, loss_allowed=False) == []
    assert json.loads(starting_offsets("visits", {0: 2}, retained)) == {"visits": {"0": 5}}


def test_a_partition_that_is_new() -> None:
    begin = starting_offsets("visits", {0: 2}, {0: (0, 9), 1: (0, 4)})
    assert json.loads(begin) == {"visits": {"0": 2, "1": 0}}
    assert starting_offsets("visits", {}, {0: (0, 9)}) == "earliest"
