"""A query in real-time mode is known by the times of its log files, and the plan warns."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from ebbtide.checks import Check, CheckKind
from ebbtide.rewind import RewindRequest, plan_rewind
from ebbtide.rewind.target import ToBatch
from tests.conftest import Cli
from tests.trees import build

BATCH_SECONDS = 5


def set_times(checkpoint: Path, offsets: float, commit: float) -> None:
    """When each batch's files were written, in seconds after it began; the next began then."""
    for batch in range(6):
        begun = 1_700_000_000 + batch * (commit + 0.1)
        file = checkpoint / "offsets" / str(batch)
        text = re.sub(r'(?<="batchTimestampMs": )\d+', str(int(begun * 1000)), file.read_text())
        file.with_name(f".{batch}.crc").unlink()
        file.write_text(text)
        for log, seconds in (("offsets", offsets), ("commits", commit)):
            os.utime(checkpoint / log / str(batch), (begun + seconds, begun + seconds))


def trigger_check(checkpoint: Path, *, replan: bool = False) -> Check | None:
    request = RewindRequest(
        str(checkpoint), ToBatch(4), assume_stopped=True, remedy="none", replan=replan
    )
    found = [check for check in plan_rewind(request).checks if check.kind == CheckKind.TRIGGER]
    return found[0] if found else None


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return build(tmp_path / "c", batches=6, committed=6)


def test_offsets_at_the_end_of_a_batch_are_those_of_real_time_mode(checkpoint: Path) -> None:
    set_times(checkpoint, BATCH_SECONDS + 0.1, BATCH_SECONDS + 0.2)
    check = trigger_check(checkpoint)
    assert check is not None
    assert check.verdict == "warn"
    assert "batch 4 was written in real-time mode, which deletes offsets/4" in check.detail
    assert "start the query once with another trigger, such as availableNow=True" in check.next
    assert trigger_check(checkpoint, replan=True) is None


@pytest.mark.parametrize(
    ("offsets", "commit"),
    [
        (0.1, 3.0),  # as usual
        (0.1, 600.0),  # a long batch
        (2.0, 2.1),  # a slow disk and a short batch
        (4.5, 9.0),  # a very slow one
    ],
)
def test_offsets_at_its_beginning_are_not(checkpoint: Path, offsets: float, commit: float) -> None:
    set_times(checkpoint, offsets, commit)
    assert trigger_check(checkpoint) is None


@pytest.mark.parametrize(
    ("mode", "first_batch", "warns"),
    [
        ("real-time", 2, True),  # whatever the times are
        ("batches", 5, False),  # since then, it runs in batches
        ("batches", 1, True),  # later, somebody else ran it in real-time mode
    ],
)
def test_a_note_of_the_last_run_is_preferred(
    checkpoint: Path, mode: str, first_batch: int, warns: bool
) -> None:
    if mode != "real-time":
        set_times(checkpoint, BATCH_SECONDS + 0.1, BATCH_SECONDS + 0.2)
    note = {"mode": mode, "first_batch": first_batch}
    (checkpoint / ".ebbtide").mkdir()
    (checkpoint / ".ebbtide" / "mode.json").write_text(json.dumps(note))
    assert (trigger_check(checkpoint) is not None) == warns


def test_a_copy_has_other_times(checkpoint: Path, tmp_path: Path) -> None:
    set_times(checkpoint, 0.1, 3.0)
    shutil.copytree(checkpoint, tmp_path / "copy", copy_function=shutil.copyfile)
    assert trigger_check(tmp_path / "copy") is None


def test_a_fork_warns_too(checkpoint: Path, tmp_path: Path, inside: Cli) -> None:
    set_times(checkpoint, BATCH_SECONDS + 0.1, BATCH_SECONDS + 0.2)
    answer = inside("fork", checkpoint, tmp_path / "fork", "--at-batch", "4")
    assert answer.returncode == 0, answer.stderr
    assert "batch 4 was written in real-time mode" in answer.stderr
