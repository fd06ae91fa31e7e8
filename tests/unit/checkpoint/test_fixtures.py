"""The kept checkpoints of Spark 3.5 to 4.3: read, verified, rewound, undone."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ebbtide.checkpoint import read_checkpoint
from ebbtide.checkpoint.verification import GOOD, verify_checkpoint
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import NOTES
from tests.compat.environments import VERSIONS
from tests.compat.kept import FIXTURES, unpack
from tests.compat.play import CELLS
from tests.conftest import Cli
from tests.trees import snapshot

ARCHIVES = sorted(FIXTURES.rglob("*.tar.gz"))
STATE_FILE = re.compile(r"state/.*/\.?(\d+)(_[^/]+)?\.(delta|snapshot|zip|changelog)(\.crc)*")
LOG_FILE = re.compile(r"(offsets|commits)/\.?(\d+)(\.crc)?")
OPERATOR_FILE = re.compile(r"state/\d+/_metadata/v2/\.?(\d+)(\.crc)?")

Tree = dict[str, bytes | None]


def take_stock(checkpoint: Path) -> Tree:
    """Every path with its content, None for a folder; our own notes aside."""
    folders = (Path(place).relative_to(checkpoint) for place, _, _ in os.walk(checkpoint))
    found: Tree = {folder.as_posix(): None for folder in folders if NOTES not in folder.parts}
    return {**found, **snapshot(checkpoint)}


def stays(path: str, batch: int) -> bool:
    """Whether a file is still there after a rewind to a batch that repeats it exactly."""
    if found := STATE_FILE.fullmatch(path):
        return int(found[1]) <= batch
    if found := LOG_FILE.fullmatch(path):
        return int(found[2]) <= (batch if found[1] == "offsets" else batch - 1)
    if found := OPERATOR_FILE.fullmatch(path):
        return int(found[1]) < batch
    return True


@pytest.fixture(params=ARCHIVES, ids=lambda a: f"{a.parent.name}-{a.name.split('.')[0]}")
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One of the kept checkpoints."""
    return unpack(request.param, tmp_path / "checkpoint")


def test_every_cell_of_every_version_is_kept() -> None:
    wanted = {
        f"{version}/{cell}.tar.gz"
        for version in VERSIONS
        for cell in CELLS
        if cell.runs_on(version)
    }
    assert {path.relative_to(FIXTURES).as_posix() for path in ARCHIVES} == wanted
    assert sum(path.stat().st_size for path in ARCHIVES) < 2_000_000


def test_read_verified_rewound_and_undone(checkpoint: Path) -> None:
    before = take_stock(checkpoint)
    batches = read_checkpoint(str(checkpoint)).logs.batches
    report = verify_checkpoint(str(checkpoint))
    assert report.unknown == ()
    assert [proof.verdict for proof in report.proofs] == [GOOD] * len(batches)

    middle = len(batches) // 2
    apply_rewind(plan_rewind(RewindRequest(str(checkpoint), ToBatch(middle), remedy="none")))
    assert take_stock(checkpoint) == {
        path: content for path, content in before.items() if stays(path, middle)
    }
    report = verify_checkpoint(str(checkpoint))
    assert [proof.verdict for proof in report.proofs] == [GOOD] * (middle + 1)

    undo_rewind(str(checkpoint))
    assert take_stock(checkpoint) == before


def test_what_a_join_of_files_shows(inside: Cli, tmp_path: Path) -> None:
    """Two sources in one cell, and a batch that reads no file again."""
    folder = unpack(FIXTURES / "4.2.0/v2-join.tar.gz", tmp_path / "checkpoint")
    assert " files 7, files" in inside("inspect", folder).stdout
    plan = inside("rewind", folder, "--shift-by", "-1", "--sink", "none", "--assume-stopped")
    assert "no file is read again." in plan.stdout
