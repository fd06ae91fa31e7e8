"""On a disk, a step begins when the names of the one before are there for good.

Without that, a power cut could take back the barrier and keep a removal.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ebbtide.checkpoint import Journal
from ebbtide.rewind import RewindRequest, apply_rewind, fork, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder, open_folder
from tests.trees import Shape, make

SHAPE = Shape("hdfs", batches=4, partitions=1, hadoop_checksums=False)


@dataclass(frozen=True)
class Watched(WritableFolder):
    """A folder that looks, before each change, which names a power cut could still take back."""

    def changing(self, what: str, path: str) -> None:
        super().changing(what, path)
        if path.startswith((".ebbtide/tmp", ".ebbtide/leases")):
            return
        # a lease has times of its own, and the folders of a move are made just before it
        places = {place[len(self.root) + 1 :] for place in self.unsynced}
        parts = ("offsets", "commits", "state")
        loose = {place for place in places if place.startswith(parts) or "/kept" in place}
        if what == "remove" and self._is_barrier(path):
            assert not loose, f"the barrier goes, but not for good: {loose}"
            seen.append("lift")
        elif what == "remove" and path == ".ebbtide/change.json":
            assert not loose, f"the journal goes, but not for good: {loose}"
            seen.append("end")
        elif what == "move":
            phase = self._phase()
            if seen[-1:] != [phase]:
                assert not loose, f"{phase} begins, but not for good: {loose}"
                seen.append(phase)

    def _is_barrier(self, path: str) -> bool:
        return path.startswith("offsets/") and (self.read(path) or "").startswith("ebbtide: ")

    def _phase(self) -> str:
        journal = Journal.read(self)
        return journal.phase if journal else "probe"


seen: list[str] = []


def watched(folder: Path) -> Watched:
    found = open_folder(str(folder))
    seen.clear()
    return Watched(found.url, found.filesystem, found.root)


def test_a_rewind_an_undo_and_a_fork_go_step_by_step(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", SHAPE)
    request = RewindRequest(str(folder), ToBatch(2), assume_stopped=True, remedy="none")
    apply_rewind(plan_rewind(request), assume_stopped=True, folder=watched(folder))
    assert seen == ["6 state away", "7 logs away", "lift", "end"]
    shutil.copy(folder / "offsets/2", folder / "offsets/3")  # the query ran on
    undo_rewind(str(folder), assume_stopped=True, folder=watched(folder))
    assert seen == ["7 logs away", "lift", "end"]
    fork.fork_checkpoint(str(folder), str(tmp_path / "f"), 2, folder=watched(tmp_path / "f"))
    assert seen == ["lift"]
