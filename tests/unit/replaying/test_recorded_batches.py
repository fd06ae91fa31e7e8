"""Which batches a replay runs again, and when it must not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.checkpoint import Timeline
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.history import Entry, Output
from ebbtide.history.store import write_entry
from ebbtide.replaying.recorded_batches import find_range, find_rewound, ran_again
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind, restore_offsets, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder, open_writable
from tests.trees import Shape, make, snapshot


@pytest.fixture
def folder(tmp_path: Path) -> WritableFolder:
    """Seven batches, planned and done, with a history."""
    found = open_writable(str(make(tmp_path / "c", Shape("hdfs"))))
    for batch in range(7):
        ran(found, batch, "old")
    return found


def ran(folder: WritableFolder, batch: int, digest: str, *, end: int | None = None) -> None:
    timeline = Timeline.read(folder).name
    read = (json.dumps({"visits": {"1": 2 * batch, "0": batch if end is None else end}}),)
    entry = Entry(batch, timeline, "", "", read, rows=3, output=Output(2, digest))
    write_entry(folder, entry)


def rewind(folder: WritableFolder, batch: int, *, replan: bool = False) -> None:
    plan = plan_rewind(
        RewindRequest(folder.url, ToBatch(batch), replan=replan, assume_stopped=True, remedy="none")
    )
    apply_rewind(plan, assume_stopped=True)


@pytest.mark.parametrize("replan", [False, True], ids=["exact", "replan"])
def test_what_the_last_rewind_took_away(folder: WritableFolder, replan: bool) -> None:
    before = snapshot(Path(folder.root))
    rewind(folder, 3, replan=replan)
    found = find_rewound(folder)
    assert (found.first, found.last) == (3, 6)
    for batch in range(3, 7):
        assert found.offsets[batch].encode() == before[f"offsets/{batch}"]
        ran(folder, batch, "new")
        assert found.entries[batch].output == Output(2, "old")
        restore_offsets(folder, batch, found.offsets[batch])
        assert (Path(folder.root) / f"offsets/{batch}").read_bytes() == before[f"offsets/{batch}"]
    # what was put back is no plan of its own, nor is what comes after all that
    assert find_rewound(folder) == found
    folder.write("offsets/7", found.offsets[6])
    assert find_rewound(folder) == found


def test_what_was_planned_anew_is_not_replayed(folder: WritableFolder) -> None:
    rewind(folder, 3)
    recorded = find_rewound(folder)
    folder.write("offsets/4", recorded.offsets[4].replace('"1": 8', '"1": 11'))
    with pytest.raises(
        CheckpointError, match=r"Batch 4 of .* has been planned again .*ebbtide undo"
    ):
        find_rewound(folder)
    # to scratch, the new plan is what there is
    assert list(find_range(folder, 3, None).offsets) == [3, 4]
    with pytest.raises(UsageError, match="Say from which batch"):
        find_range(folder, None, None)


def test_nothing_to_replay(folder: WritableFolder) -> None:
    with pytest.raises(CheckpointError, match=r"was not rewound.*--to-batch B .*--from-batch B"):
        find_rewound(folder)
    rewind(folder, 3)
    undo_rewind(folder.url, assume_stopped=True)
    with pytest.raises(CheckpointError, match="was not rewound"):
        find_rewound(folder)
    # the undo undone: again the first timeline is what was taken away
    undo_rewind(folder.url, assume_stopped=True)
    assert list(find_rewound(folder).offsets) == [3, 4, 5, 6]


@pytest.mark.parametrize("replan", [False, True], ids=["exact", "replan"])
@pytest.mark.parametrize("second", [2, 5])
def test_two_rewinds_without_a_run_between(
    folder: WritableFolder, second: int, replan: bool
) -> None:
    before = snapshot(Path(folder.root))
    rewind(folder, 5, replan=replan)
    if replan and second == 5:
        folder.write("offsets/5", before["offsets/5"].decode())  # planned as before
    if second == 5 and not replan:
        with pytest.raises(CheckpointError, match="is at batch 5 already"):
            rewind(folder, second)
    else:
        rewind(folder, second, replan=replan)
    found = find_rewound(folder)
    assert list(found.offsets) == list(find_range(folder, None, None).offsets)
    assert {id_: text.encode() for id_, text in found.offsets.items()} == {
        id_: before[f"offsets/{id_}"] for id_ in range(second, 7)
    }
    assert list(found.entries) == list(range(second, 7))


def test_an_older_rewind_is_not_replayed(folder: WritableFolder) -> None:
    rewind(folder, 5)
    # then batch 6 ran, and ended elsewhere
    planned = (folder.read("offsets", "5") or "").replace('"0": 5', '"0": 6')
    folder.write("offsets/6", planned.replace('"1": 10', '"1": 11'))
    rewind(folder, 2)
    found = find_rewound(folder)
    assert list(found.offsets) == [2, 3, 4, 5, 6]
    assert '"1": 11' in found.offsets[6]
    assert list(found.entries) == [2, 3, 4], "no run of it is known that read this"


def test_an_undone_timeline_is_not_the_first_run(folder: WritableFolder) -> None:
    planned = folder.read("offsets", "0") or ""
    rewind(folder, 0, replan=True)
    folder.write("offsets/0", planned)
    undo_rewind(folder.url, assume_stopped=True)
    with pytest.raises(CheckpointError, match="was not rewound"):
        find_rewound(folder)
    # of two at the same batch, the second one undone, the first is what counts
    planned = folder.read("offsets", "5") or ""
    rewind(folder, 4)
    folder.write("offsets/5", planned)
    rewind(folder, 4)
    undo_rewind(folder.url, assume_stopped=True)
    assert list(find_rewound(folder).offsets) == [4, 5, 6]


def test_a_run_that_read_other_offsets_is_not_compared(folder: WritableFolder) -> None:
    ran(folder, 4, "of a copy", end=999)
    assert list(find_range(folder, 3, 5).entries) == [3, 5]
    rewind(folder, 3)
    assert list(find_rewound(folder).entries) == [3, 5, 6]


def test_a_second_run_that_read_other_offsets_is_not_compared(folder: WritableFolder) -> None:
    """Spark may have cleaned up its plan, so that only the history tells."""
    rewind(folder, 3)
    ran(folder, 3, "new")
    ran(folder, 4, "new", end=999)
    again = ran_again(folder, find_rewound(folder))
    assert {batch: entry.output for batch, entry in again.items()} == {3: Output(2, "new")}


def test_a_range(folder: WritableFolder) -> None:
    assert list(find_range(folder, 2, 4).offsets) == [2, 3, 4]
    assert find_range(folder, 2, 4).entries[2].output == Output(2, "old")
    rewind(folder, 4)
    assert list(find_range(folder, None, None).offsets) == [4, 5, 6]
    assert list(find_range(folder, 3, 5).offsets) == [3, 4, 5]
    for first, last, says in (
        (8, None, "no batch 8"),
        (3, 9, "no batch 9"),
        (5, 4, "is before batch 5"),
    ):
        with pytest.raises((CheckpointError, UsageError), match=says):
            find_range(folder, first, last)


def test_what_cannot_run_one_by_one(folder: WritableFolder) -> None:
    text = folder.read("offsets", "5") or ""
    folder.write("offsets/5", text.replace('"conf"', '"controlBatchInfo": {"x": 1}, "conf"'))
    with pytest.raises(CheckpointError, match=r"Batch 5 .* only changed the number of partitions"):
        find_range(folder, 3, None)
    folder.remove("offsets/5")
    with pytest.raises(CheckpointError, match=r"Batch 5 .* has no offsets"):
        find_range(folder, 3, None)
