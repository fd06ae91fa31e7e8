"""What the public API takes and refuses, beyond the examples of its docstrings."""

from __future__ import annotations

import importlib
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import ebbtide
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError, UsageError
from tests.trees import Shape, make


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = make(tmp_path / "checkpoint", Shape(layout="rocksdb", operator_metadata="v1"))
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))  # long ago, so the query counts as stopped
    return folder


@pytest.mark.parametrize(
    ("target", "first_batch"),
    [
        ({"to_batch": 5}, 5),
        ({"shift_by": -2}, 5),
        ({"to_datetime": datetime(1970, 1, 1, tzinfo=timezone.utc)}, 0),
        ({"to_latest_good": True}, 6),
    ],
    ids=str,
)
def test_targets_are_python_values(
    checkpoint: Path, target: dict[str, Any], first_batch: int
) -> None:
    for location in (checkpoint, str(checkpoint), ebbtide.open_checkpoint(checkpoint)):
        plan = ebbtide.plan_rewind(location, assume_stopped=True, **target)
        assert plan.first_batch == first_batch


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"to_batch": 5, "replann": True}, "A rewind takes no replann."),
        ({"to_batch": True}, "'True' is not a batch."),
        ({"to_batch": 2.7}, "'2.7' is not a batch."),
        ({"shift_by": "abc"}, "'abc' is not a number of batches."),
        ({"to_datetime": ""}, "'' is not a time."),
        ({"to_batch": 3, "to_datetime": ""}, "2 targets are given"),
        ({}, "No target is given."),
    ],
    ids=str,
)
def test_wrong_flags_are_refused(checkpoint: Path, flags: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        ebbtide.plan_rewind(checkpoint, **flags)


def test_the_flags_of_a_cluster_are_keywords(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "master": "spark://host:7077",
        "archive_env": tmp_path / "env.tar.gz",
        "settings": Settings(bootstrap_servers="kafka:9092", url="s3a://lake/ebbtide"),
    }
    refused = pytest.raises(UsageError, match=r"There is no file .*env\.tar\.gz")
    with refused:
        ebbtide.run("visits-counter", **flags)
    with refused:
        ebbtide.replay("visits-counter", **flags)
    with refused:
        list(ebbtide.reprocess("visits-counter", "2025-09-04", "2025-09-05", **flags))


def test_the_verbs_stay_functions_after_they_were_used() -> None:
    """Importing a subpackage of the same name would replace a function of the API."""
    for package in ("replaying", "reprocessing", "systems", "rewind"):
        importlib.import_module(f"ebbtide.{package}")
    assert all(callable(getattr(ebbtide, name)) for name in ebbtide.__all__)
    with pytest.raises(UsageError, match="ends at"):
        ebbtide.reprocess("visits-counter", "2025-09-04T08:00", "2025-09-04T07:00")


def test_a_rewind_is_applied_and_undone(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be rewound to batch 5: it is not known"):
        ebbtide.apply_rewind(ebbtide.plan_rewind(checkpoint, to_batch=5))
    plan = ebbtide.plan_rewind(checkpoint, to_batch=5, sink="none")
    backup = ebbtide.apply_rewind(plan)
    assert backup.first_batch == 5
    assert ebbtide.open_checkpoint(checkpoint).logs.latest_committed is not None
    assert ebbtide.undo_rewind(checkpoint, assume_stopped=True).action == "undo"
    assert (checkpoint / "commits" / "6").exists()
