"""Which batches a replay runs again, and when it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.checkpoint.apply import apply_rewind, undo_rewind
from ebbtide.checkpoint.folder import Folder, open_folder
from ebbtide.checkpoint.history import Entry, Output, write_entry
from ebbtide.checkpoint.journal import read_timeline
from ebbtide.checkpoint.plan import plan_rewind
from ebbtide.checkpoint.recorded import find_range, find_rewound, put_back
from ebbtide.checkpoint.target import ToBatch
from ebbtide.errors import CheckpointError, UsageError
from tests.trees import Shape, make, snapshot


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Seven batches, planned and done, with a history."""
    found = open_folder(str(make(tmp_path / "c", Shape("hdfs"))))
    for batch in range(7):
        ran(found, batch, "old")
    return found


def ran(folder: Folder, batch: int, digest: str) -> None:
    timeline = read_timeline(folder)[-1][0]
    entry = Entry(batch, timeline, "", "", (), rows=3, output=Output(2, digest))
    write_entry(folder, entry)


def rewind(folder: Folder, batch: int, *, replan: bool = False) -> None:
    plan = plan_rewind(folder.url, ToBatch(batch), replan=replan, assume_stopped=True)
    apply_rewind(plan, assume_stopped=True)


@pytest.mark.parametrize("replan", [False, True], ids=["exact", "replan"])
def test_what_the_last_rewind_took_away(folder: Folder, replan: bool) -> None:
    before = snapshot(Path(folder.root))
    rewind(folder, 3, replan=replan)
    found = find_rewound(folder)
    assert (found.first, found.last) == (3, 6)
    for batch in range(3, 7):
        assert found.offsets[batch].encode() == before[f"offsets/{batch}"]
        ran(folder, batch, "new")
        assert found.entries[batch].output == Output(2, "old")
        put_back(folder, found, batch)
        assert (Path(folder.root) / f"offsets/{batch}").read_bytes() == before[f"offsets/{batch}"]
    # what was put back is no plan of its own, nor is what comes after all that
    assert find_rewound(folder) == found
    folder.write("offsets/7", found.offsets[6])
    assert find_rewound(folder) == found


def test_what_was_planned_anew_is_not_replayed(folder: Folder) -> None:
    rewind(folder, 3)
    recorded = find_rewound(folder)
    folder.write("offsets/4", recorded.offsets[4].replace('"1": 8', '"1": 11'))
    with pytest.raises(
        CheckpointError, match=r"Batch 4 of .* has been planned anew .*ebbtide undo"
    ):
        find_rewound(folder)
    # to scratch, the new plan is what there is
    assert list(find_range(folder, 3, None).offsets) == [3, 4]
    with pytest.raises(UsageError, match="Say from which batch"):
        find_range(folder, None, None)


def test_nothing_to_replay(folder: Folder) -> None:
    with pytest.raises(CheckpointError, match=r"was not rewound.*--to-batch B .*--from-batch B"):
        find_rewound(folder)
    rewind(folder, 3)
    undo_rewind(folder.url, assume_stopped=True)
    with pytest.raises(CheckpointError, match="was not rewound"):
        find_rewound(folder)
    # the undo undone: again the first timeline is what was taken away
    undo_rewind(folder.url, assume_stopped=True)
    assert list(find_rewound(folder).offsets) == [3, 4, 5, 6]


def test_an_older_rewind_is_not_replayed(folder: Folder) -> None:
    rewind(folder, 5)
    rewind(folder, 2)
    found = find_rewound(folder)
    # batch 6 had gone with the first, and batch 5 was to run as it was planned
    assert list(found.offsets) == [2, 3, 4, 5]


def test_a_range(folder: Folder) -> None:
    assert list(find_range(folder, 2, 4).offsets) == [2, 3, 4]
    assert find_range(folder, 2, 4).entries[2].output == Output(2, "old")
    rewind(folder, 4)
    assert list(find_range(folder, None, None).offsets) == [4, 5, 6]
    assert list(find_range(folder, 3, 5).offsets) == [3, 4, 5]
    for first, last, says in ((8, None, "no batch 8"), (3, 9, "no batch 9"), (5, 4, "lies before")):
        with pytest.raises((CheckpointError, UsageError), match=says):
            find_range(folder, first, last)


def test_what_cannot_run_one_by_one(folder: Folder) -> None:
    text = folder.read("offsets", "5") or ""
    folder.write("offsets/5", text.replace('"conf"', '"controlBatchInfo": {"x": 1}, "conf"'))
    with pytest.raises(CheckpointError, match=r"Batch 5 .* only changed the number of partitions"):
        find_range(folder, 3, None)
    folder.remove("offsets/5")
    with pytest.raises(CheckpointError, match=r"Batch 5 .* has no offsets"):
        find_range(folder, 3, None)
