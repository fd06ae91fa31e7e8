"""The power is cut before every single change of a rewind and of an undo, on many layouts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ebbtide.checkpoint import Backup, Journal
from ebbtide.errors import CheckpointError
from ebbtide.rewind import RewindRequest, apply_rewind, finish_interrupted, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder, open_writable
from tests.outputs import QUERY, rows_of, shown, write_batches, write_files
from tests.power import barrier, cut, everywhere, fragile
from tests.trees import JOIN_STORES, Shape, make, snapshot

FIRST = 2
SHAPES = {
    "stateless": Shape(batches=5),
    "hdfs": Shape("hdfs", batches=5, partitions=1),
    "rocksdb": Shape("rocksdb", batches=4, partitions=2, hadoop_checksums=False),
    "changelog": Shape("changelog", batches=5, partitions=2, hadoop_checksums=False),
    "v2": Shape("v2", batches=5, partitions=2, hadoop_checksums=False),
    "join": Shape("hdfs", batches=4, partitions=1, stores=JOIN_STORES, hadoop_checksums=False),
    "tws": Shape(
        "v2-zips",
        batches=4,
        partitions=1,
        operator_metadata="v2",
        hadoop_checksums=False,
        spark_checksums=True,
    ),
    "uncommitted": Shape("hdfs", batches=5, committed=4, partitions=1, hadoop_checksums=False),
}


def apply(folder: Path, on: WritableFolder | None = None, *, replan: bool = False) -> None:
    """As the command line does it: plan, then apply; or finish."""
    where = str(folder)
    if not finish_interrupted(where, "rewind", lambda _journal: True, folder=on):
        plan = plan_rewind(
            RewindRequest(where, ToBatch(FIRST), replan=replan, assume_stopped=True, remedy="none")
        )
        apply_rewind(plan, assume_stopped=True, folder=on)


def undo(folder: Path, on: WritableFolder | None = None) -> None:
    undo_rewind(str(folder), assume_stopped=True, folder=on)


def count(folder: Path, change: Callable[[Path, WritableFolder], None]) -> int:
    counted = fragile(folder, 1 << 60)
    change(folder, counted)
    return (1 << 60) - counted.left[0]


def cut_everywhere(base: Path, change: Callable[..., None], tmp: Path) -> None:
    """Cut the power before each change; what is left must be safe, and finish when run again."""
    before, contents = snapshot(base), set(snapshot(base).values())
    whole = tmp / "whole"
    shutil.copytree(base, whole)
    steps = count(whole, change)
    after = snapshot(whole)
    assert steps > 10
    for n in range(steps):
        folder = tmp / "cut"
        shutil.copytree(base, folder)
        assert cut(folder, n, partial(change, folder))
        left = snapshot(folder)
        # Spark starts only on the one tree or the other
        if (line := barrier(folder)) is None:
            assert left in (before, after), n
        else:
            assert "Finish it: ebbtide" in line
        assert contents <= everywhere(folder), f"a file is lost when cut before change {n}"
        opened = open_writable(str(folder))
        if left != after or Journal.read(opened) is not None:
            change(folder)
        assert snapshot(folder) == after, n
        assert Journal.read(opened) is None
        assert len(Backup.read_all(opened)) == len(Backup.read_all(open_writable(str(whole)))), n
        assert len((folder / ".ebbtide/audit.jsonl").read_text().splitlines()) == len(
            (whole / ".ebbtide/audit.jsonl").read_text().splitlines()
        )
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", SHAPES)
def test_a_rewind_cut_anywhere_is_safe_and_finishes(name: str, tmp_path: Path) -> None:
    cut_everywhere(make(tmp_path / "base", SHAPES[name]), apply, tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_an_undo_cut_anywhere_is_safe_and_finishes(name: str, tmp_path: Path) -> None:
    base = make(tmp_path / "base", SHAPES[name])
    apply(base)
    # the query ran on: another timeline from the first batch on, under the same names
    other = make(tmp_path / "other", Shape(**{**vars(SHAPES[name]), "seed": "new", "batches": 4}))
    for path, content in snapshot(other).items():
        if not (base / path).exists():
            (base / path).parent.mkdir(parents=True, exist_ok=True)
            (base / path).write_bytes(content)
    cut_everywhere(base, undo, tmp_path)


def test_another_target_does_not_finish_a_rewind(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", SHAPES["hdfs"])

    def change(on: WritableFolder) -> None:
        apply_rewind(plan, assume_stopped=True, folder=on)

    # cut while state is being moved: later an undo would be the way out
    for n in range(60):
        shutil.rmtree(folder)
        make(folder, SHAPES["hdfs"])
        plan = plan_rewind(
            RewindRequest(str(folder), ToBatch(3), assume_stopped=True, remedy="none")
        )
        assert cut(folder, n, change)
        journal = Journal.read(open_writable(str(folder)))
        if journal is not None and journal.phase == "6 state away":
            break
    other = plan_rewind(
        RewindRequest(
            str(make(tmp_path / "other", SHAPES["hdfs"])),
            ToBatch(1),
            assume_stopped=True,
            remedy="none",
        )
    )
    other = replace(other, checkpoint=str(folder))
    assert barrier(folder)
    with pytest.raises(CheckpointError, match=r"rewind to batch 3 of .* was interrupted. Finish"):
        apply_rewind(other, assume_stopped=True)
    with pytest.raises(CheckpointError, match="was interrupted"):
        undo_rewind(str(folder), assume_stopped=True)
    with pytest.raises(CheckpointError, match="was interrupted"):
        plan_rewind(RewindRequest(str(folder), ToBatch(3)))
    apply_rewind(plan, assume_stopped=True)
    assert barrier(folder) is None


SINKS: dict[str, dict[str, Any]] = {
    "delta": {"sink_tables": ("out",)},
    "files": {"sink_files": "out"},
    "two tables of a function": {"sink_tables": ("out", "more")},
}


def _world(folder: Path, kind: str) -> None:
    """A checkpoint and what its query has written."""
    make(folder / "c", Shape("hdfs", batches=4, partitions=1))
    if kind == "files":
        write_files(folder / "out", range(4))
    for table in SINKS[kind].get("sink_tables", ()):
        write_batches(folder / table, range(4), QUERY if kind == "delta" else "copier")


def _state_of(folder: Path, kind: str) -> tuple[dict[str, bytes], list[str]]:
    """The checkpoint, but for the id that each rewind makes anew, and what a reader sees."""
    found = {p: c for p, c in snapshot(folder / "c").items() if "metadata" not in p}
    tables = SINKS[kind].get("sink_tables", ())
    rows = [row for table in tables for row in rows_of(folder / table)]
    return found, rows if tables else shown(folder / "out")


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink_goes_back_and_forth_wherever_the_power_is_cut(kind: str, tmp_path: Path) -> None:
    world = tmp_path / "world"
    named: dict[str, Any] = {
        flag: str(world / value) if isinstance(value, str) else tuple(str(world / v) for v in value)
        for flag, value in SINKS[kind].items()
    }

    def there(on: WritableFolder | None = None) -> None:
        where = str(world / "c")
        if not finish_interrupted(where, "rewind", lambda _journal: True, folder=on):
            plan = plan_rewind(
                RewindRequest(where, ToBatch(FIRST), assume_stopped=True, remedy="restore", **named)
            )
            apply_rewind(plan, assume_stopped=True, folder=on)

    def back(on: WritableFolder | None = None) -> None:
        undo_rewind(str(world / "c"), assume_stopped=True, folder=on)

    _world(world, kind)
    before, begun = _state_of(world, kind), shutil.copytree(world, tmp_path / "begun")
    there()
    after, rewound = _state_of(world, kind), shutil.copytree(world, tmp_path / "rewound")
    assert len(after[1]) == len(before[1]) / 2
    for change, kept, start, end in ((there, begun, before, after), (back, rewound, after, before)):
        n, is_cut = 0, True
        while is_cut:
            shutil.rmtree(world)
            shutil.copytree(kept, world)  # always to the same place, which the notes name
            is_cut = cut(world / "c", n, change)
            if is_cut and barrier(world / "c") is None:
                assert _state_of(world, kind)[0] in (start[0], end[0]), n
            opened = open_writable(str(world / "c"))
            if is_cut and (_state_of(world, kind) != end or Journal.read(opened) is not None):
                change()
            assert _state_of(world, kind) == end, n
            assert (Journal.read(opened), len(Backup.read_all(opened))) == (None, 1), n
            n += 1
        assert n > 10
