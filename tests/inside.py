"""What tests of checkpoints without a JVM share: files in memory, the command line in-process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main

from tests.conftest import Cli

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where thousands of small files cost little; None is the system's usual place."""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, gone after the test."""
    with tempfile.TemporaryDirectory(
        prefix="ebbtide-",
        dir=MEMORY,
        ignore_cleanup_errors=True,  # a thread may still write
    ) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests cut no real power, so a write need not reach the disk before the next step."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)


_commands = cache(typer.main.get_command)
"""Typer builds the whole tree of commands at each call, which takes longer than most commands."""


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`ebbtide` inside this process: what a user sees, without the start of a Python each time."""
    from ebbtide.cli import main

    monkeypatch.setattr(typer.main, "get_command", _commands)

    def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        words = ["ebbtide", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", words)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    return run
