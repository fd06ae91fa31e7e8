"""What a power cut may take back on a disk: names until a sync, and no content of a whole file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.errors import StorageError
from ebbtide.storage import WritableFolder, open_writable


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files and folders that were synced, as they were called then."""
    paths: list[str] = []

    def fsync(file: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{file}").readlink()))

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def no_links(*_: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def move(folder: WritableFolder) -> None:
    folder.move("state/1", "backups/taken/state/1")


def remove(folder: WritableFolder) -> None:
    folder.remove("state/1")


def link(folder: WritableFolder) -> None:
    folder.link("state/1", "backups/kept/state/1")


def write(folder: WritableFolder) -> None:
    folder.write("offsets/5", "barrier")


def create(folder: WritableFolder) -> None:
    assert folder.create("leases/1", "mine")


def remove_tree(folder: WritableFolder) -> None:
    folder.remove_tree("state")


@pytest.mark.parametrize(
    ("change", "folders"),
    [
        (move, {"state", "backups/taken/state", "backups/taken", "backups", ""}),
        (remove, {"state"}),
        (link, {"backups/kept/state", "backups/kept", "backups", ""}),
        (write, {"offsets", ""}),
        (create, {"leases", ""}),
        (remove_tree, {""}),
    ],
)
def test_a_sync_keeps_every_name_that_came_or_went(
    change: Callable[[WritableFolder], None], folders: set[str], tmp_path: Path, synced: list[str]
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/1").write_text("state")
    folder = open_writable(str(tmp_path))
    change(folder)
    synced.clear()
    folder.sync()
    assert {f"{tmp_path}/{name}".rstrip("/") for name in folders} <= set(synced)
    synced.clear()
    folder.sync()
    assert synced == []


def test_a_folder_that_has_gone_needs_no_sync(tmp_path: Path, synced: list[str]) -> None:
    folder = open_writable(str(tmp_path))
    folder.write("a/b", "")
    folder.remove_tree("a")
    synced.clear()
    folder.sync()
    assert str(tmp_path) in synced
    assert f"{tmp_path}/a" not in synced


def test_a_filesystem_that_syncs_no_folders_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_writable(str(tmp_path))
    folder.write("a", "")
    number = errno.EINVAL

    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    folder.sync()
    folder.unsynced.add(str(tmp_path))
    number = errno.EIO
    with pytest.raises(StorageError, match="cannot be written: Input/output error"):
        folder.sync()


def test_a_copy_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    """Where links do not work, a backup holds copies: one was empty after a power cut."""
    (tmp_path / "state").write_text("state")
    monkeypatch.setattr(os, "link", no_links)
    open_writable(str(tmp_path)).link("state", "kept")
    assert (tmp_path / "kept").read_text() == "state"
    assert any(path.startswith(f"{tmp_path}/.ebbtide/tmp/kept.") for path in synced)


def test_a_copy_from_another_filesystem_is_on_the_disk(tmp_path: Path, synced: list[str]) -> None:
    other = open_writable("memory://test-sync/c")
    other.write("state", "state")
    open_writable(str(tmp_path)).link("state", "kept", of=other)
    assert (tmp_path / "kept").read_text() == "state"
    assert any(path.startswith(f"{tmp_path}/.ebbtide/tmp/kept.") for path in synced)


def test_a_lease_that_could_not_be_written_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk without links, half of it stayed, and every command called it damaged."""
    monkeypatch.setattr(os, "link", no_links)
    folder, calls = open_writable(str(tmp_path)), list[int]()

    def fsync(file: int) -> None:
        calls.append(file)
        if len(calls) == 2:  # the first is that of the temporary file
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match=r"leases/1\.json cannot be created: No space left"):
        folder.create("leases/1.json", "{}")
    assert not (tmp_path / "leases/1.json").exists()
    assert folder.create("leases/1.json", "{}")


def test_a_folder_that_does_not_keep_what_was_written_is_said_before_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a FileNotFoundError, with a traceback."""
    move = WritableFolder.move

    def lose(folder: WritableFolder, source: str, target: str) -> None:
        (tmp_path / source).unlink()
        move(folder, source, target)

    monkeypatch.setattr(WritableFolder, "move", lose)
    with pytest.raises(StorageError, match=r"\.ebbtide/tmp does not keep what was just written"):
        open_writable(str(tmp_path)).probe()
