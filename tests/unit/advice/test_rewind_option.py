"""What the advice says of a rewind."""

from __future__ import annotations

from pathlib import Path

from ebbtide.advice.rewind_option import describe_retention
from ebbtide.checkpoint import layout
from ebbtide.checks import CheckKind
from ebbtide.notes import write_note
from ebbtide.rewind import RewindPlan, RewindRequest, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_folder
from tests.unit.connectors.test_sources import (  # noqa: F401 - fixtures
    four_batches,
    inputs,
    of_files,
    table,
    with_sources,
)


def plan(checkpoint: Path, batch: int, **source: str) -> RewindPlan:
    write_note(open_folder(str(checkpoint)), layout.OWNER, {"source": source})
    return plan_rewind(
        RewindRequest(str(checkpoint), ToBatch(batch), assume_stopped=True, remedy="none")
    )


def test_the_retention_of_a_delta_source(tmp_path: Path, table: Path) -> None:  # noqa: F811
    found = plan(four_batches(tmp_path / "c", table), 2, kind="delta", path=str(table))
    assert describe_retention(found) == f"{table} holds what versions 2 to 5 added"


def test_the_retention_of_a_file_source(of_files: Path, inputs: Path) -> None:  # noqa: F811
    found = plan(of_files, 1, kind="files", path=str(inputs))
    (check,) = (one for one in found.checks if one.kind is CheckKind.FILE_SOURCE)
    assert describe_retention(found) == check.detail


def test_a_source_that_cannot_be_asked(tmp_path: Path) -> None:
    found = plan(with_sources(tmp_path / "c", {"own": "offset"}, {"own": "later"}), 1)
    assert "cannot be seen from here" in describe_retention(found)
