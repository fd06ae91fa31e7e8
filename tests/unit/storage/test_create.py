"""A file is created by exactly one of several, and is seen whole or not at all."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow.fs import LocalFileSystem  # type: ignore[import-untyped]

from ebbtide.storage import WritableFolder, open_writable


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> WritableFolder:
    memory = f"memory://{uuid4().hex}"
    return open_writable(memory if request.param == "memory" else str(tmp_path / "c"))


def test_what_is_there_is_not_created_again(folder: WritableFolder) -> None:
    assert (folder.create("notes/a", "1"), folder.create("notes/a", "2")) == (True, False)
    assert folder.creates_exclusively
    assert (folder.read("notes/a"), folder.names(".ebbtide/tmp")) == ("1", [])


def test_exactly_one_of_several_creates_it(folder: WritableFolder) -> None:
    with ThreadPoolExecutor(8) as pool:
        for turn in range(50):
            texts = [f"{turn}.{n}" * 1000 for n in range(8)]
            created = list(pool.map(lambda text, turn=turn: folder.create(f"{turn}", text), texts))
            assert created.count(True) == 1
            assert folder.read(f"{turn}") == texts[created.index(True)]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_a_disk_without_links_creates_it_all_the_same(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    folder = open_writable(str(tmp_path))
    assert (folder.create("a", "1"), folder.create("a", "2"), folder.read("a")) == (
        True,
        False,
        "1",
    )
    assert folder.names(".ebbtide/tmp") == []


def test_an_unknown_filesystem_says_that_it_cannot_be_sure(tmp_path: Path) -> None:
    folder = WritableFolder(str(tmp_path), ArrowFSWrapper(LocalFileSystem()), str(tmp_path))
    assert not folder.creates_exclusively
    assert (folder.create("a", "1"), folder.create("a", "2"), folder.read("a")) == (
        True,
        False,
        "1",
    )
