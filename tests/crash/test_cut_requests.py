"""Cut a change before every request: what is left can be finished, whatever filesystem it is on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow.fs import LocalFileSystem  # type: ignore[import-untyped]

from ebbtide.checkpoint import Journal, read_checkpoint
from ebbtide.errors import CheckpointError
from ebbtide.storage import WritableFolder, open_writable
from tests.conftest import Cli
from tests.power import PowerCutError, barrier, bury_the_process, cut
from tests.trees import Shape, make, snapshot
from tests.unit.rewind.test_failures import (
    SHAPE,
    backups_of,
    change_there,
    rewind,
    run_on,
    undo,
    with_sink,
)


class NamedOnce(ArrowFSWrapper):  # type: ignore[misc]
    """A filesystem as HDFS: what is renamed never takes the place of another file."""

    cachable = False

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        if Path(path2).exists():
            raise OSError(f"rename destination {path2} exists")
        super().mv(path1, path2)


class SilentOnce(NamedOnce):
    """A filesystem as WebHDFS, which does not even say so."""

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        if not Path(path2).exists():
            super().mv(path1, path2)


def torn(folder: Path, kind: type[ArrowFSWrapper], left: list[int]) -> WritableFolder:
    """A folder at a filesystem that answers so many requests; then half of a file is written."""
    arrow = kind(LocalFileSystem())

    def count(name: str) -> None:
        function = getattr(arrow, name)

        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                if name == "pipe_file" and left[0] == -1:
                    place, content = arguments
                    Path(place).write_bytes(content[: len(content) // 2])
                raise PowerCutError
            return function(*arguments, **options)

        setattr(arrow, name, call)

    for name in ("pipe_file", "mv", "cp_file", "rm_file", "rm"):
        count(name)
    return WritableFolder(str(folder), arrow, str(folder))


@pytest.mark.parametrize("kind", [ArrowFSWrapper, NamedOnce, SilentOnce])
@pytest.mark.parametrize("change", [change_there, undo])
def test_a_kill_at_any_request_to_a_filesystem_that_renames_can_be_finished(
    kind: type[ArrowFSWrapper], change: Callable[..., Any], tmp_path: Path
) -> None:
    shape = Shape("hdfs", batches=3, partitions=1, hadoop_checksums=False)
    begun = make(tmp_path / "begun", shape)
    if change is undo:
        rewind(begun)
    whole, left = shutil.copytree(begun, tmp_path / "whole"), [1 << 60]
    change(whole, torn(whole, kind, left))
    before, after, requests = snapshot(begun), snapshot(whole), (1 << 60) - left[0]
    assert requests > 20
    for n in range(requests):
        folder = shutil.copytree(begun, tmp_path / "c")
        with pytest.raises(PowerCutError):
            change(folder, torn(folder, kind, [n]))
        bury_the_process(folder)
        if barrier(folder) is None:
            assert snapshot(folder) in (before, after), n
        if snapshot(folder) != after or (folder / ".ebbtide/change.json").exists():
            change(folder, torn(folder, kind, [1 << 60]))
            assert not list((folder / ".ebbtide/tmp").iterdir()), n
        assert snapshot(folder) == after, n
        assert Journal.read(open_writable(str(folder))) is None, n
        shutil.rmtree(folder)


@pytest.mark.parametrize("damage", ["half", "empty", "gone"])
@pytest.mark.parametrize("change", [change_there, undo])
def test_a_change_whose_journal_is_lost_is_finished(
    damage: str, change: Callable[..., Any], tmp_path: Path
) -> None:
    folder = make(tmp_path / "begun/c", SHAPE)
    if change is undo:
        rewind(folder)
        run_on(folder, tmp_path, batches=4)
    begun = shutil.copytree(folder, tmp_path / "kept")
    change(folder)
    after, n, seen = snapshot(folder), -1, 0
    while True:
        n += 1
        shutil.rmtree(folder)
        shutil.copytree(begun, folder)
        if not cut(folder, n, partial(change, folder)):
            break
        note = folder / ".ebbtide/change.json"
        if not note.exists() or (damage == "gone" and not backups_of(folder)):
            continue
        seen += 1
        text = note.read_text()
        note.write_text(text[: len(text) // 2] if damage == "half" else "")
        if damage == "gone":
            note.unlink()
        elif barrier(folder):
            with pytest.raises(CheckpointError, match=r"damaged. Finish it: ebbtide \w+ .*/c "):
                read_checkpoint(str(folder))
        if snapshot(folder) != after:
            change(folder)
        assert (snapshot(folder), barrier(folder)) == (after, None), n
    assert seen > 20


@pytest.mark.parametrize("is_undo", [False, True])
def test_a_sink_that_is_left_is_whole_wherever_it_was_interrupted(
    is_undo: bool, inside: Cli, tmp_path: Path
) -> None:
    """Some of its files had moved: they go back before the checkpoint does."""
    world, begun = tmp_path / "world", tmp_path / "begun"
    folder = with_sink(world)
    before = snapshot(folder)
    if is_undo:
        rewind(folder)
    sink = snapshot(world / "out")
    shutil.copytree(world, begun)
    halves = 0
    for cuts in range(200):
        shutil.rmtree(world)
        shutil.copytree(begun, world)
        if not cut(folder, cuts, partial(undo if is_undo else rewind, folder)):
            break
        journal = Journal.read(open_writable(str(folder)))
        if journal is None or journal.phase != "5 sink":
            continue
        halves += snapshot(world / "out") != sink
        left = inside("undo", folder, "--leave-sink", "--yes", "--assume-stopped")
        assert (left.returncode, barrier(folder)) == (0, None), left.stderr
        assert snapshot(folder) == before
        assert snapshot(world / "out") == sink
    assert halves > 2


def test_a_rewind_that_its_sink_refused_is_taken_back_wherever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_sink(tmp_path / "world")
    begun = shutil.copytree(tmp_path / "world", tmp_path / "begun")
    before = snapshot(folder)
    from ebbtide.connectors.files.sink import FilesSink

    def refuse(*_: object) -> None:
        raise CheckpointError("The sink was written to meanwhile.", "Stop what writes to it.")

    cuts = 0
    while True:
        with monkeypatch.context() as patch:
            patch.setattr(FilesSink, "apply", refuse)
            try:
                cut(folder, cuts, partial(rewind, folder))
            except CheckpointError:
                break
        cuts += 1
        if barrier(folder) is None:
            assert snapshot(folder) == before, cuts
        change_there(folder)
        assert barrier(folder) is None, cuts
        shutil.rmtree(tmp_path / "world")
        shutil.copytree(begun, tmp_path / "world")
    assert cuts > 10
    assert snapshot(folder) == before
