"""The holder of a checkpoint is stalled before every change, and another host takes over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ebbtide.checkpoint import Backup, Journal, read_checkpoint
from ebbtide.rewind import (
    RewindRequest,
    apply_rewind,
    finish_interrupted,
    fork,
    plan_rewind,
    undo_rewind,
)
from ebbtide.rewind.backups import prune_backups
from ebbtide.rewind.holders import read_leases
from ebbtide.rewind.lease import LeaseLostError
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder, open_folder
from tests.leases import Clock, on_another_host
from tests.power import barrier
from tests.trees import Shape, make, snapshot

SHAPE = Shape("hdfs", batches=4, partitions=1, hadoop_checksums=False)
FIRST = 2


@dataclass(frozen=True)
class Stalled(WritableFolder):
    """A folder whose user is stalled before its n-th change, while somebody does something."""

    left: list[int] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def changing(self, what: str, path: str) -> None:
        self.left[0] -= 1
        # its own lease is another matter: see the tests of leases
        if self.left[0] <= 0 and self.left[1:] and not path.startswith(".ebbtide/leases"):
            self.left.pop()
            self.meanwhile()
        super().changing(what, path)


def rewind(folder: Path, on: WritableFolder | None = None) -> None:
    if not finish_interrupted(str(folder), "rewind", lambda _journal: True, folder=on):
        request = RewindRequest(str(folder), ToBatch(FIRST), assume_stopped=True, remedy="none")
        apply_rewind(plan_rewind(request), assume_stopped=True, folder=on)


def undo(folder: Path, on: WritableFolder | None = None) -> None:
    undo_rewind(str(folder), assume_stopped=True, folder=on)


def fork_it(folder: Path, on: WritableFolder | None = None) -> None:
    fork.fork_checkpoint(str(folder.parent / "origin"), str(folder), FIRST, folder=on)


@pytest.mark.parametrize("change", [rewind, undo, fork_it])
def test_who_was_stalled_changes_nothing_that_another_has_taken(
    change: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, begun, folder = Clock(monkeypatch), tmp_path / "begun", tmp_path / "c"
    make(tmp_path / "origin", SHAPE)
    if change is not fork_it:
        shutil.copytree(tmp_path / "origin", begun)
    if change is undo:
        rewind(begun)
    n, lost = 0, 0
    while True:
        n += 1
        shutil.rmtree(folder, ignore_errors=True)
        if begun.exists():
            shutil.copytree(begun, folder)
        after = list[dict[str, bytes]]()

        def take_over(after: list[dict[str, bytes]] = after) -> None:
            clock.stalled += 3600
            with on_another_host():
                change(folder)
            after.append(snapshot(folder))

        found = open_folder(str(folder))
        on = Stalled(found.url, found.filesystem, found.root, left=[n, 1], meanwhile=take_over)
        try:
            change(folder, on)
        except LeaseLostError as error:
            lost += "was taken over by a process on host elsewhere" in str(error)
        if not after:
            break
        assert [snapshot(folder)] == after, n
        assert (barrier(folder), Journal.read(found)) == (None, None), n
        (holder,) = read_leases(found)
        assert (holder.host, holder.released) == ("elsewhere", True), n
        if change is not fork_it:
            require_whole(folder, begun)
    assert lost > 10


def require_whole(folder: Path, begun: Path) -> None:
    """What another host has done can be undone."""
    (backup,) = Backup.read_all(open_folder(str(folder)))
    undo(folder)
    assert snapshot(folder) == snapshot(begun), backup.id
    assert read_checkpoint(str(folder)).interrupted is None


def test_who_was_stalled_prunes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, folder = Clock(monkeypatch), make(tmp_path / "c", SHAPE)
    for batch in (3, 2, 1):
        request = RewindRequest(str(folder), ToBatch(batch), assume_stopped=True, remedy="none")
        apply_rewind(plan_rewind(request), assume_stopped=True)
    left = len(Backup.read_all(open_folder(str(folder))))
    remove_tree, stalls = WritableFolder.remove_tree, [1]

    def stall(one: WritableFolder, path: str) -> None:
        remove_tree(one, path)
        if stalls:
            stalls.pop()
            clock.stalled += 3600
            with on_another_host():
                undo(folder)

    monkeypatch.setattr(WritableFolder, "remove_tree", stall)
    with pytest.raises(LeaseLostError, match="was taken over by"):
        prune_backups(str(folder), keep=1)
    assert left == 3
    assert len(Backup.read_all(open_folder(str(folder)))) == 2
