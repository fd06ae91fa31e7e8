"""The examples of a command's help run as they are written."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from ebbtide.cli.commands import EPILOGS
from ebbtide.notes import write_note
from ebbtide.storage import open_writable
from tests.conftest import Cli
from tests.trees import Shape, make

HOME = ".ebbtide/checkpoints"
LIGHT = {"backups", "fork", "history", "inspect", "jobs", "offsets", "rewind", "verify"}
OTHERS = ("--rebuild", "--sink restore", "/data/", "s3a://", "--by-duration", "--plot")
"""They need a broker, a table, or a place that is not here."""


def examples() -> list[str]:
    texts = [text.replace(" \\\n", " ") for text in EPILOGS.values()]
    lines = [line for text in texts for line in re.findall(r"^ +\$ (ebbtide .*)", text, re.M)]
    return [re.sub(r" +", " ", line) for line in lines]


def test_no_example_has_a_place_to_fill_in() -> None:
    assert [
        line for line in examples() if re.search(r"\b(CKPT|TARGET|NAME|DIR|FILE)\b", line)
    ] == []


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in examples()
        if line.split()[1] in LIGHT and not any(other in line for other in OTHERS)
    ],
)
def test_an_example_runs(
    inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("visits-counter", "visits-windows-counter"):
        place = make(tmp_path / HOME / name, Shape("rocksdb"))
        sink = {"kind": "kafka", "name": "topic counts"}
        owner = {"pipeline": name, "sink": sink, "location": str(place)}
        write_note(open_writable(str(place)), "pipeline.json", owner)
    for path in (tmp_path / HOME).rglob("*"):
        os.utime(path, (0, 0))
    words = shlex.split(line.partition(" > ")[0])[1:]
    answer = inside(*words, *["--yes"] * ("--prune" in words))
    assert answer.returncode == 0, answer.stderr
