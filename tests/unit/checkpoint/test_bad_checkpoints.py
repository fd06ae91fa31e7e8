"""Wrong input to `inspect`, `verify`, `rewind` and `undo`: one clear line, and nothing changed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ebbtide.checkpoint import read_checkpoint
from ebbtide.checkpoint.verification import verify_checkpoint
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.processes import whoami
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder, open_writable
from tests.conftest import Cli
from tests.trees import LAYOUTS, Shape, make, snapshot


def damage(folder: Path, path: str, content: str | None) -> None:
    (folder / path).unlink() if content is None else (folder / path).write_text(content)


@pytest.mark.parametrize(
    ("path", "content", "says"),
    [
        ("metadata", None, "has offsets or commits but no file 'metadata'"),
        ("metadata", '{"id"', "holds no query id"),
        ("offsets/4", 'v1\n{"batchWater', "offsets/4 is not a log file"),
        ("offsets/4", "", "offsets/4 is not a log file"),
        ("commits/2", "v7\n{}", "commits/2 is not a log file"),
    ],
)
def test_broken_logs_are_named(path: str, content: str | None, says: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    damage(folder, path, content)
    before = snapshot(folder)
    with pytest.raises(CheckpointError, match=says):
        plan_rewind(RewindRequest(str(folder), ToBatch(3)))
    assert snapshot(folder) == before


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    whole = make(tmp_path / "whole", Shape("v2"))
    for place, problem in (
        (tmp_path / "missing", "there is no such folder"),
        (tmp_path / "empty", "it has no file 'metadata'"),
        (whole / "state/0", rf"it is a part of one\. Name {whole}\."),
    ):
        with pytest.raises(CheckpointError, match=f"is not a checkpoint: {problem}"):
            read_checkpoint(str(place))
    (tmp_path / "empty/metadata").write_text('{"id":"1"}')
    with pytest.raises(CheckpointError, match="has no batch yet"):
        plan_rewind(RewindRequest(str(tmp_path / "empty"), ToBatch(0)))


def test_targets_on_the_command_line(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    before = snapshot(folder)
    two = inside("rewind", folder, "--to-batch", "3", "--to-earliest", "--execute")
    assert (two.returncode, "2 targets are given" in two.stderr) == (2, True)
    none = inside("rewind", folder, "--execute")
    assert (none.returncode, "No target is given. Give one of --to-batch" in none.stderr) == (
        2,
        True,
    )
    future = inside("rewind", folder, "--to-batch", "99", "--execute", "--yes")
    assert future.returncode == 1
    assert "Batch 99 has not been planned yet" in future.stderr
    assert "Try --to-batch 6" in future.stderr
    assert "Traceback" not in two.stderr + none.stderr + future.stderr
    assert snapshot(folder) == before


def _note(name: str, text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        file = folder / ".ebbtide" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


@pytest.mark.parametrize(
    ("command", "prepare"),
    [
        ("inspect {c}/metadata", None),
        ("inspect nonsense://c", None),
        ("inspect {c}", lambda c: ((c / "metadata").unlink(), (c / "metadata").mkdir())),
        ("inspect {c}", lambda c: (c / "offsets/9").mkdir()),
        ("inspect {c}", lambda c: (c / "offsets/6").write_text('v1\n{"batchWatermarkMs":null}')),
        ("undo {c} --yes", _note("backups/junk", "")),
        ("undo {c} --yes", _note("backups/b/backup.json", '{"id":')),
        ("undo {c} --yes", _note("change.json", "{}")),
        ("rewind {c} --to-batch 3", _note("change.json", "[]")),
        ("rewind {c} --to-batch 3", _note("lease.json", "{}")),
        ("undo {c} --yes", _note("timeline.json", "[]")),
        ("rewind {c} --to-batch 3 --assume-stopped --save-plan {c}/none/p.json", None),
        ("rewind {c} --to-batch 3 --assume-stopped --save-plan {c}", None),
        ("rewind {c} --by-duration PT99999999999999H", None),
        ("rewind {c} --to-datetime 9999-12-31T23:59:59-14:00", None),
        ("rewind {c} --shift-by 0", None),
        ("rewind {c} --to-batch -1", None),
        ("backups {c} --prune --older-than PT9999999999999999999H", None),
        ("backups {c} --prune --keep 0", None),
        ("backups {c} --keep 3", None),
        ("verify {c} --min-batches-to-retain -5", None),
        ("apply {c}/metadata --yes", None),
        ("apply {c}/none --yes", None),
        ("apply {c} --yes", None),
    ],
)
def test_odd_input_is_one_clear_line(
    command: str, prepare: Callable[[Path], object] | None, inside: Cli, tmp_path: Path
) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", batches=7))
    if prepare is not None:
        prepare(folder)
    before = snapshot(folder)
    answer = inside(*command.format(c=folder).split())
    assert answer.returncode in (1, 2), answer.stdout
    assert "Traceback" not in answer.stderr
    assert answer.stderr.strip()
    assert snapshot(folder) == before


def test_a_huge_time_is_shown_as_it_stands(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape())
    entry = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":99999999999999999,"conf":{}}\n-'
    (folder / "offsets/6").write_text(entry)
    assert "99999999999999999" in inside("inspect", folder, "-o", "json").stdout


def test_paths_with_spaces_and_from_elsewhere(
    inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "my c", Shape("hdfs"))
    monkeypatch.chdir(tmp_path)
    rewind = ("rewind", "my c/", "--to-batch", "3", "--assume-stopped", "--sink", "none")
    plan = inside(*rewind)
    assert (
        "ebbtide rewind 'my c/' --to-batch 3 --sink none --assume-stopped --execute" in plan.stderr
    )
    saved = inside(*rewind, "--save-plan", "p.json")
    assert "To do it: ebbtide apply p.json --assume-stopped\n" in saved.stderr
    assert saved.stderr.count("To do it: ") == 1
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert inside("apply", "../p.json", "--yes", "--assume-stopped").returncode == 0
    url = f"file://{tmp_path}/my c"
    assert inside("undo", url, "--yes", "--assume-stopped", "--home", "x").returncode == 0


class FullDisk(WritableFolder):
    """No room for one more name."""

    def changing(self, what: str, path: str) -> None:
        if what == "link" and not path.startswith(".ebbtide/tmp/probe-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("layout", ["hdfs", "rocksdb", "v2"])
def test_a_full_disk_while_backing_up_leaves_everything(layout: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape(layout))
    before = snapshot(folder)
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(3), assume_stopped=True, remedy="none"))
    opened = open_writable(str(folder))
    full = FullDisk(opened.url, opened.filesystem, opened.root)
    with pytest.raises(CheckpointError, match=r"cannot be backed up: No space left on device"):
        apply_rewind(plan, assume_stopped=True, folder=full)
    assert snapshot(folder) == before
    assert list((folder / ".ebbtide/backups").iterdir()) == []
    apply_rewind(plan, assume_stopped=True)


@dataclass(frozen=True)
class FillsUp(WritableFolder):
    """A disk with room for so many writes."""

    left: list[int] = field(default_factory=list)

    def changing(self, what: str, path: str) -> None:
        del path
        if what in ("write", "create", "link"):
            if not self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.left.pop()


@pytest.mark.parametrize("room", range(0, 24, 3))
def test_a_disk_that_fills_up_at_any_time_is_one_clear_line(room: int, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", partitions=1, batches=4))
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(2), assume_stopped=True, remedy="none"))
    opened = open_writable(str(folder))
    full = FillsUp(opened.url, opened.filesystem, opened.root, left=[0] * room)
    with pytest.raises(CheckpointError, match=r"No space left on device|was interrupted"):
        apply_rewind(plan, assume_stopped=True, folder=full)
    apply_rewind(plan, assume_stopped=True)
    assert read_checkpoint(str(folder)).logs.batches[-1].id == 2


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert whoami().startswith("uid-")


def test_no_permission_is_said_before_anything_moves(tmp_path: Path) -> None:
    """In a process of its own that is not root, which may write anywhere."""
    folder = make(tmp_path / "c", Shape("hdfs"))
    before = snapshot(folder)
    tmp_path.chmod(0o755)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)

    def attempt() -> str:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        else:
            (folder / "state/0/1").chmod(0o555)
        plan = plan_rewind(
            RewindRequest(str(folder), ToBatch(3), assume_stopped=True, remedy="none")
        )
        try:
            apply_rewind(plan, assume_stopped=True)
        except EbbtideError as error:
            return str(error)
        return "done"

    assert "no permission to write to" in _in_a_child(attempt)
    assert snapshot(folder) == before


def _in_a_child(function: Any) -> str:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writer, function().encode())
        except BaseException as error:  # the parent reads it
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        return said.read()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "none"])
def test_verify_finds_every_damaged_file(layout: str, tmp_path: Path) -> None:
    """Each file of the state, once cut short and once gone: some batch is broken, and named."""
    folder = make(tmp_path / "c", Shape(layout, batches=4, partitions=1, spark_checksums=True))
    assert not verify_checkpoint(str(folder)).broken
    files = [
        path
        for path in (folder / "state").rglob("*")
        if path.is_file() and not path.name.endswith(".crc") and path.parent.name != "_metadata"
    ]
    assert len(files) >= 4
    for file in files:
        # a snapshot makes the change of its own version needless, and if it is not there at
        # all, the changes do
        stem = file.name.split(".")[0]
        beside = {path.suffix for path in file.parent.glob(f"{stem}.*")}
        change = file.suffix in (".delta", ".changelog")
        needless = {".snapshot", ".zip"} & beside if change else {".delta", ".changelog"} & beside
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        assert bool(verify_checkpoint(str(folder)).broken) != (change and bool(needless)), file
        file.unlink()
        assert bool(verify_checkpoint(str(folder)).broken) != bool(needless), file
        file.write_bytes(whole)
    assert not verify_checkpoint(str(folder)).broken


def test_verify_on_the_command_line(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    good = inside("verify", folder)
    assert good.returncode == 0, good.stderr
    assert "7 of 7 batches can run again" in good.stderr
    (folder / "state/0/1/3.delta").write_bytes(b"other")
    bad = inside("verify", folder)
    assert bad.returncode == 1
    assert "Batch 3 of" in bad.stderr
    assert "does not match its checksum .3.delta.crc" in bad.stderr
    assert max(map(len, bad.stdout.splitlines())) <= 80


def test_what_spark_cleaned_up_is_just_gone(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", first=50, batches=8))
    for version in (50, 51):
        for path in (folder / "state").rglob(f"*{version}.*"):
            path.unlink()
    for partition in (0, 1):
        shutil.copy(
            folder / f"state/0/{partition}/53.snapshot", folder / f"state/0/{partition}/52.snapshot"
        )
        (folder / f"state/0/{partition}/.52.snapshot.crc").unlink(missing_ok=True)
    report = verify_checkpoint(str(folder))
    verdicts = {proof.batch: proof.verdict for proof in report.proofs}
    assert (verdicts[50], verdicts[51], verdicts[52]) == ("gone", "gone", "good")
    assert not report.broken


def test_unknown_files_are_named(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs"))
    (folder / "state/0/1/3.parquet").touch()
    (folder / "NOTES.txt").touch()
    assert read_checkpoint(str(folder)).unknown == ("NOTES.txt", "state/0/1/3.parquet")
    assert "Not written by Spark 3.5 to 4.3: NOTES.txt" in inside("inspect", folder).stderr
