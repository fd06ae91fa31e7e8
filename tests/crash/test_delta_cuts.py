"""The power is cut around every change of a rewind, which is then finished and undone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from ebbtide.checkpoint import Backup, Journal, read_checkpoint
from ebbtide.rewind import RewindRequest, apply_rewind, finish_interrupted, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder, open_writable
from tests.outputs import QUERY, rows_of, write_batches, write_partitions
from tests.power import cut
from tests.trees import Shape, make

FIRST = 2


def _write(table: Path, kind: str) -> None:
    if kind == "partitioned":
        write_partitions(table, range(4), ["a b", "100%", None])
    else:
        write_batches(table, range(4), "my-app" if kind == "function" else QUERY)
    if kind == "compacted":
        DeltaTable(str(table)).optimize.compact()


@pytest.mark.parametrize(
    ("kind", "batch"),
    [("plain", 0), ("function", FIRST), ("compacted", FIRST), ("partitioned", FIRST)],
)
def test_a_rewind_that_was_cut_and_finished_can_be_undone(
    kind: str, batch: int, tmp_path: Path
) -> None:
    world, begun = tmp_path / "world", tmp_path / "begun"
    where, table = str(world / "c"), world / "out"

    def there(on: WritableFolder | None = None) -> None:
        if not finish_interrupted(where, "rewind", lambda _journal: True, folder=on):
            request = RewindRequest(
                where,
                ToBatch(batch),
                remedy="restore",
                sink_tables=(str(table),),
                assume_stopped=True,
            )
            apply_rewind(plan_rewind(request), assume_stopped=True, folder=on)

    make(begun / "c", Shape(batches=4))
    _write(begun / "out", kind)
    shutil.copytree(begun, world)
    before = rows_of(table)
    there()
    rewound = rows_of(table)
    assert len(rewound) < len(before)
    n, is_cut = 0, True
    while is_cut:
        shutil.rmtree(world)
        shutil.copytree(begun, world)
        is_cut = cut(world / "c", n, there)
        opened = open_writable(where)
        if is_cut and (Journal.read(opened) is not None or not Backup.read_all(opened)):
            there()
        assert rows_of(table) == rewound, n
        if kind in ("plain", "function"):  # the query ran on
            query_id = read_checkpoint(where).logs.query_id
            write_batches(table, (batch,), "my-app" if kind == "function" else query_id)
        undo_rewind(where, assume_stopped=True)
        assert rows_of(table) == before, n
        n += 1
    assert n > 10
