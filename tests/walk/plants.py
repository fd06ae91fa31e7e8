"""Faults that are planted in Ebbtide, to see that a walk finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.checkpoint import Journal
from ebbtide.connectors.delta import rollback
from ebbtide.connectors.files import sink as files
from ebbtide.rewind import backups, plan, steps
from tests.walk.model import Case


@dataclass(frozen=True)
class Plant:
    """A fault, the cases in which it does harm, and a short walk that finds it."""

    plant: Callable[[pytest.MonkeyPatch], None]
    matters: Callable[[Case], bool]
    case: Case
    steps: tuple[tuple[str, dict[str, Any]], ...]


def leave_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A rewind that leaves one snapshot of the old timeline in each store."""
    real = plan.list_removals

    def list_removals(*arguments: Any, **flags: Any) -> list[str]:
        gone = real(*arguments, **flags)
        stay = {path.rpartition("/")[0]: path for path in gone if path.endswith(_SNAPSHOTS)}
        return [path for path in gone if path not in stay.values()]

    for module in (plan, backups, steps):
        patch.setattr(module, "list_removals", list_removals)


_SNAPSHOTS = (".snapshot", ".zip")


def forget_a_commit(patch: pytest.MonkeyPatch) -> None:
    """An undo that does not bring the last commit back."""
    real = steps.CheckpointChange.go_on

    def go_on(self: steps.CheckpointChange, journal: Journal) -> Any:
        done = real(self, journal)
        commits = Path(self._folder.root) / "commits"
        ids = [int(path.name) for path in commits.glob("*") if path.name.isdigit()]
        if journal.action == "undo" and ids:
            (commits / str(max(ids))).unlink()
        return done

    patch.setattr(steps.CheckpointChange, "go_on", go_on)


def forget_a_file(patch: pytest.MonkeyPatch) -> None:
    """An undo that does not bring one file of a file sink back."""
    real = files.move_files

    def move_files(folder: Any, going: Any, coming: Any, ids: Any) -> None:
        data = [path for path in coming.files if path.endswith(".json")] if coming else []
        if data:
            coming = replace(coming, files=tuple(p for p in coming.files if p != data[0]))
        real(folder, going, coming, ids)

    patch.setattr(files, "move_files", move_files)


def restore_a_version_late(patch: pytest.MonkeyPatch) -> None:
    """A rollback of a Delta table that keeps the first batch that has to go."""
    real = rollback.roll_back_table

    def roll_back_table(folder: Any, change: Any, *ids: str) -> None:
        if change.to_version is not None and change.to_version + 1 < change.version:
            change = replace(change, to_version=change.to_version + 1)
        real(folder, change, *ids)

    patch.setattr("ebbtide.connectors.delta.sink.roll_back_table", roll_back_table)


def _run(units: int = 3, *, eager: bool = False) -> tuple[str, dict[str, Any]]:
    return "run", {"units": units, "eager": eager}


def _rewind(batch: int) -> tuple[str, dict[str, Any]]:
    more = {"replan": False, "again": False, "new_code": True}
    return "rewind", {"to": "to_batch", "pick": batch, **more}


_UNDO = ("undo", dict[str, Any]())
PLANTS = {
    "snapshot": Plant(
        leave_a_snapshot,
        lambda case: case.store in ("hdfs", "changelog") and case.operator == "aggregation",
        Case("changelog", "aggregation", "ledger", "rate"),
        (_run(eager=True), _run(eager=True), _rewind(1), _run(), _run()),
    ),
    "commit": Plant(
        forget_a_commit,
        lambda _case: True,
        Case("hdfs", "none", "ledger", "rate"),
        (_run(), _rewind(1), _UNDO),
    ),
    "file": Plant(
        forget_a_file,
        lambda case: case.sink == "files",
        Case("hdfs", "none", "files", "files"),
        (_run(), _rewind(0), _UNDO),
    ),
    "version": Plant(
        restore_a_version_late,
        lambda case: case.sink == "delta",
        Case("hdfs", "none", "delta", "files"),
        (_run(), _rewind(0)),
    ),
}
