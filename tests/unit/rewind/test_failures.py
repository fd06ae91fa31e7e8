"""A change that meets a failing disk, a foreign filesystem or another program can be finished."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ebbtide.checkpoint import Backup, Journal, read_checkpoint
from ebbtide.errors import CheckpointError, StorageError
from ebbtide.notes import write_note
from ebbtide.rewind import (
    RewindRequest,
    apply_rewind,
    finish_interrupted,
    plan_rewind,
    undo_rewind,
)
from ebbtide.rewind.backups import prune_backups
from ebbtide.rewind.holders import CHANGE, read_lease
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder, open_writable
from tests.conftest import Cli
from tests.outputs import write_files
from tests.power import barrier, cut
from tests.trees import Shape, make, snapshot

SHAPE = Shape("hdfs", batches=5, partitions=1)


def rewind(folder: Path, on: WritableFolder | None = None, batch: int = 2) -> Backup:
    remedy = None if (folder / ".ebbtide/pipeline.json").exists() else "none"
    request = RewindRequest(str(folder), ToBatch(batch), assume_stopped=True, remedy=remedy)
    plan = plan_rewind(request)
    return apply_rewind(plan, assume_stopped=True, folder=on)


def change_there(folder: Path, on: WritableFolder | None = None) -> None:
    """Rewind, or finish that, as the command line does."""
    if not finish_interrupted(
        str(folder), "rewind", lambda _journal: True, assume_stopped=True, folder=on
    ):
        rewind(folder, on)


def undo(folder: Path, on: WritableFolder | None = None) -> Backup:
    return undo_rewind(str(folder), assume_stopped=True, folder=on)


def run_on(folder: Path, tmp: Path, **shape: Any) -> None:
    """The query ran on after a rewind: another timeline, under the same names."""
    other = make(tmp / "other", replace(SHAPE, seed="new", **shape))
    for path, content in snapshot(other).items():
        if not (folder / path).exists() and not path.endswith(".tmp"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)


@dataclass(frozen=True)
class Disturbed(WritableFolder):
    """A folder in which something else happens before a change, or that gives a wrong answer."""

    before: Callable[[str, str], None] = lambda _what, _path: None
    denies: list[str] = field(default_factory=list)
    """Endings of paths that are denied, each once, though they are there."""

    def changing(self, what: str, path: str) -> None:
        self.before(what, path)

    def exists(self, path: str) -> bool:
        for end in self.denies:
            if path.endswith(end) and super().exists(path):
                self.denies.remove(end)
                return False
        return super().exists(path)


def disturbed(folder: Path, **how: Any) -> Disturbed:
    found = open_writable(str(folder))
    return Disturbed(found.url, found.filesystem, found.root, **how)


@pytest.fixture
def rewound(tmp_path: Path) -> Path:
    """A checkpoint that was rewound, and whose query ran on."""
    folder = make(tmp_path / "c", SHAPE)
    shutil.copytree(folder, tmp_path / "begun")
    rewind(folder)
    run_on(folder, tmp_path, batches=4)
    return folder


def test_an_undo_ends_though_a_file_vanished_whose_name_comes_back(
    rewound: Path, tmp_path: Path
) -> None:
    def clean_up(what: str, path: str) -> None:
        if (what, path) == ("move", "state/0/0/3.delta"):
            (rewound / path).unlink()

    done = undo(rewound, disturbed(rewound, before=clean_up))
    assert done.vanished == ("state/0/0/3.delta",)
    assert snapshot(rewound) == snapshot(tmp_path / "begun")
    assert Journal.read(open_writable(str(rewound))) is None
    again = undo(rewound)
    assert "state/0/0/3.delta" in again.taken, "the timeline that came back is whole"
    assert not (rewound / "state/0/0/3.delta").exists()


def test_an_undo_ends_though_a_file_vanished_that_had_come_back(
    rewound: Path, tmp_path: Path
) -> None:
    def clean_up(what: str, path: str) -> None:
        if (what, path) == ("move", "commits/3"):
            (rewound / "state/0/0/4.delta").unlink()

    undo(rewound, disturbed(rewound, before=clean_up))
    assert snapshot(rewound) == snapshot(tmp_path / "begun"), "linked back from the backup"


@pytest.mark.parametrize("denied", ["taken/state/0/0/3.delta", "state/0/0/3.delta", "offsets/4"])
@pytest.mark.parametrize("skip", [0, 1, 2, 3])
def test_one_wrong_answer_of_exists_neither_stops_an_undo_nor_loses_a_file(
    denied: str, skip: int, rewound: Path, tmp_path: Path
) -> None:
    now = snapshot(rewound)
    phases: list[str] = []

    def deny(what: str, path: str) -> None:  # from a later phase on each time
        if (what, path) == ("write", ".ebbtide/change.json"):
            phases.append(path)
            if len(phases) == skip + 2:
                folder.denies.append(denied)

    folder = disturbed(rewound, before=deny)
    undo(rewound, folder)
    assert snapshot(rewound) == snapshot(tmp_path / "begun")
    undo(rewound)
    assert snapshot(rewound) == now


def test_a_file_of_the_backup_that_is_lost_does_not_hold_up_an_undo(rewound: Path) -> None:
    (place,) = (rewound / ".ebbtide/backups").iterdir()

    def lose(what: str, path: str) -> None:
        if (what, path) == ("move", "commits/3"):
            (place / "taken/state/0/0/4.delta").unlink(missing_ok=True)
            (rewound / "state/0/0/4.delta").unlink(missing_ok=True)

    done = undo(rewound, disturbed(rewound, before=lose))
    assert "state/0/0/4.delta" in done.vanished
    assert barrier(rewound) is None
    undo(rewound)


@dataclass(frozen=True)
class Emptied(WritableFolder):
    """A folder from which something removes a file again and again."""

    def exists(self, path: str) -> bool:
        if path == "state/0/0/4.delta":
            (Path(self.root) / path).unlink(missing_ok=True)
        return super().exists(path)


def test_what_still_changes_is_named_with_the_line_that_finishes(rewound: Path) -> None:
    found = open_writable(str(rewound))
    with pytest.raises(CheckpointError, match=r"4.delta is not .* Stop what .* finish: ebbtide un"):
        undo(rewound, Emptied(found.url, found.filesystem, found.root))
    assert barrier(rewound)
    assert undo(rewound).action == "undo"
    assert barrier(rewound) is None


def test_a_rewind_on_a_full_disk_is_taken_back(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", SHAPE)
    before = snapshot(folder)

    def full(what: str, path: str) -> None:
        if what == "link" and path.startswith("state"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CheckpointError, match=r"backed up: No space left .* as it was before"):
        rewind(folder, disturbed(folder, before=full))
    assert (snapshot(folder), barrier(folder)) == (before, None)
    assert not list((folder / ".ebbtide/backups").iterdir())
    rewind(folder)


class ForeignError(Exception):
    """Of a library that knows nothing of `OSError`, such as botocore's ClientError."""


@pytest.mark.parametrize("error", [ForeignError("Denied\nmore"), ForeignError(), KeyError("x")])
def test_a_foreign_error_is_one_line_that_says_how_to_finish(
    error: Exception, rewound: Path
) -> None:
    def fail(what: str, path: str) -> None:
        if what == "move" and path.startswith("commits"):
            raise error

    with pytest.raises(CheckpointError, match=r"was interrupted: .*Finish it: ebbtide undo"):
        undo(rewound, disturbed(rewound, before=fail))
    undo(rewound)
    assert barrier(rewound) is None


def test_an_interrupt_says_how_to_finish(rewound: Path) -> None:
    def interrupt(what: str, path: str) -> None:
        if what == "move" and path.startswith("commits"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"was interrupted\. Finish it: ebbtide undo"):
        undo(rewound, disturbed(rewound, before=interrupt))
    undo(rewound)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_a_change_with_the_line_that_finishes_it(
    number: signal.Signals, inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "c", SHAPE)
    command = [
        "rewind",
        str(folder),
        "--to-batch",
        "2",
        "--execute",
        "--assume-stopped",
        "--sink",
        "none",
    ]

    def stop(_folder: WritableFolder, what: str, path: str) -> None:
        if what == "move" and path.startswith("commits"):
            os.kill(os.getpid(), number)

    if number == signal.SIGINT:  # a job in the background of a shell ignores it
        signal.signal(number, signal.default_int_handler)
    with monkeypatch.context() as patch:
        patch.setattr(WritableFolder, "changing", stop)
        stopped = inside(*command)
    assert stopped.returncode == 128 + number
    assert (
        f"Finish it: ebbtide rewind {folder} --to-batch 2 --sink none --execute" in stopped.stderr
    )
    lease = read_lease(open_writable(str(folder)), CHANGE)
    assert lease is not None
    assert lease.released, "nobody has to wait for it"
    assert inside(*command).returncode == 0
    assert barrier(folder) is None


def test_an_interrupt_before_anything_has_moved_is_taken_back(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", SHAPE)
    before = snapshot(folder)

    def interrupt(what: str, path: str) -> None:
        if what == "link" and path.startswith("state"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewind(folder, disturbed(folder, before=interrupt))
    assert (snapshot(folder), barrier(folder)) == (before, None)


class NoDelete(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem that lets nobody remove a file."""

    cachable = False

    def rm_file(self, path: str) -> None:  # noqa: ARG002
        raise ForeignError("AccessDenied")


def test_what_a_filesystem_cannot_do_is_said_before_the_barrier(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path, content in snapshot(make(tmp_path / "c", SHAPE)).items():
        memory.pipe_file(f"/nodelete/{path}", content)
    plan = plan_rewind(
        RewindRequest("memory://nodelete", ToBatch(2), assume_stopped=True, remedy="none")
    )
    before = set(memory.find("/nodelete/offsets"))
    there = WritableFolder("memory://nodelete", NoDelete(), "/nodelete")
    with pytest.raises(StorageError, match=r"tmp/probe-\w+ cannot be removed: AccessDenied. Make"):
        apply_rewind(plan, assume_stopped=True, folder=there)
    assert set(memory.find("/nodelete/offsets")) == before
    memory.rm("/nodelete", recursive=True)


class Offline(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem that does not answer."""

    cachable = False

    def info(self, path: str, **_: Any) -> Any:
        raise ForeignError(path)


def test_a_filesystem_that_does_not_answer_has_not_said_that_a_file_is_gone() -> None:
    assert not Offline().exists("/c/metadata"), "fsspec takes any error for that"
    with pytest.raises(CheckpointError, match=r"memory://c/metadata cannot be read"):
        WritableFolder("memory://c", Offline(), "/c").exists("metadata")


def backups_of(folder: Path) -> list[Path]:
    place = folder / ".ebbtide/backups"
    return list(place.iterdir()) if place.exists() else []


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", SHAPE)
    rewind(folder, batch=3)
    ours = ["offsets/.5.4711.tmp", ".metadata.1.tmp", ".ebbtide/.change.json.7.tmp"]
    ours += [".ebbtide/tmp/5.0c"]
    for path in ours:
        (folder / path).write_text("half")
    assert read_checkpoint(str(folder)).unknown == ()
    rewind(folder)
    assert [path for path in ours if (folder / path).exists()] == []
    assert (folder / "offsets/.5.6f1c.tmp").exists(), "Spark's own"


def test_a_second_rewind_to_the_same_batch_does_not_hide_the_first(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", SHAPE)
    before = snapshot(folder)
    rewind(folder)
    with pytest.raises(CheckpointError, match="is at batch 2 already: nothing would leave it"):
        rewind(folder)
    undo(folder)
    assert snapshot(folder) == before


def test_a_clock_that_was_set_back_does_not_hide_the_newest_backup(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", SHAPE)
    first = rewind(folder, batch=4)
    middle = snapshot(folder)
    ahead = first.id.replace(first.id[:4], "2999", 1)
    place = (folder / first.place).rename(folder / ".ebbtide/backups" / ahead)
    note = json.loads((place / "backup.json").read_text())
    (place / "backup.json").write_text(json.dumps(note | {"id": ahead}))
    assert rewind(folder).id > ahead
    undo(folder)
    assert snapshot(folder) == middle


def test_what_is_left_of_a_half_removed_backup_is_pruned(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", SHAPE)
    gone, kept = rewind(folder, batch=4), rewind(folder)
    (folder / gone.place / "backup.json").unlink()
    assert prune_backups(str(folder), keep=1) == []
    assert [path.name for path in backups_of(folder)] == [kept.id]


def with_sink(tmp_path: Path) -> Path:
    folder = make(tmp_path / "c", SHAPE)
    write_files(tmp_path / "out", range(5))
    sink = {"kind": "files", "name": "out", "path": str(tmp_path / "out")}
    opened = open_writable(str(folder))
    write_note(opened, "pipeline.json", {"sink": sink, "location": opened.address})
    return folder


def test_a_sink_that_cannot_be_changed_for_good_can_be_left(inside: Cli, tmp_path: Path) -> None:
    folder = with_sink(tmp_path)
    before = snapshot(folder)

    def refuse(what: str, path: str) -> None:
        if what == "move" and path.startswith("_spark_metadata"):
            raise ForeignError("AccessDenied")

    with pytest.raises(CheckpointError, match=r"AccessDenied.* Or leave the .*undo .* --leave-sin"):
        rewind(folder, disturbed(folder, before=refuse))
    assert barrier(folder)
    undone = inside("undo", folder, "--leave-sink", "--yes", "--assume-stopped")
    assert (undone.returncode, snapshot(folder)) == (0, before), undone.stderr
    assert barrier(folder) is None
    assert backups_of(folder) == []


def test_a_lost_journal_is_not_taken_for_an_earlier_rewind(inside: Cli, tmp_path: Path) -> None:
    """The barrier names its backup, of which nothing was written yet."""
    folder = make(tmp_path / "c", SHAPE)
    first = rewind(folder, batch=4)
    old = {path: path.read_bytes() for path in (folder / first.place).rglob("*") if path.is_file()}
    before, cuts = snapshot(folder), 0
    while barrier(folder) is None:
        assert cut(folder, cuts, partial(change_there, folder))
        cuts += 1
    (folder / ".ebbtide/change.json").unlink()
    (folder / ".ebbtide/audit.jsonl").unlink()
    for place in set(backups_of(folder)) - {folder / first.place}:
        shutil.rmtree(place)
    again = inside("rewind", folder, "--to-batch", "4", "--assume-stopped", "--sink", "none")
    assert again.returncode == 1
    finish_interrupted(str(folder), "rewind", lambda _journal: True)
    assert (snapshot(folder), barrier(folder)) == (before, None)
    assert all(path.read_bytes() == content for path, content in old.items())


def test_an_undo_of_an_interrupted_rewind_goes_no_further(tmp_path: Path) -> None:
    """Nothing had moved yet: it is reverted, and the rewind before it stays."""
    folder = make(tmp_path / "c", SHAPE)
    rewind(folder, batch=4)
    before, cuts = snapshot(folder), 0
    while barrier(folder) is None:
        assert cut(folder, cuts, partial(change_there, folder))
        cuts += 1
    with pytest.raises(CheckpointError, match="had moved nothing yet, and is reverted"):
        undo(folder)
    assert (snapshot(folder), barrier(folder)) == (before, None)
    undo(folder)
    assert snapshot(folder) != before


def test_an_undo_without_effect_is_refused(tmp_path: Path) -> None:
    """Its empty backup would hide the one that takes the rewind back."""
    folder = make(tmp_path / "c", SHAPE)
    before = snapshot(folder)
    rewind(folder)
    redo = undo(folder)
    rewind(folder)
    with pytest.raises(CheckpointError, match=f"Backup {redo.id} changes nothing"):
        undo_rewind(str(folder), redo.id, assume_stopped=True)
    undo(folder)
    assert snapshot(folder) == before
