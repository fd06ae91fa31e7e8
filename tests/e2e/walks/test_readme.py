"""The commands of the README, in order, exactly as written, in a terminal of 80 columns."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.local.broker import stop_broker
from tests.e2e.conftest import QUICK_JAVA
from tests.terminal import COLUMNS, Shown, draw, type_in
from tests.trees import Shape, make

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text("utf-8")
PICTURE = ROOT / "docs" / "images" / "rewind.svg"
REASON = re.compile(r"(null|empty) value|not (valid UTF-8|a JSON object)|field|no event time")
"""Which of the broken records is read first depends on the partitions of the dead letters."""


def lines(heading: str) -> list[str]:
    """The commands under a heading."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    fenced = re.findall(r"^```\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return [line for block in fenced for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder beside the virtual environment of a clone."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def by_start(shown: list[Shown], start: str) -> str:
    (found,) = [each.plain for each in shown if each.command.startswith(start)]
    return found


def assert_tables_fit(shown: Shown) -> None:
    """A command to copy may be longer."""
    for line in re.sub(r"Picked up JAVA_TOOL_OPTIONS.*", "", shown.plain).splitlines():
        assert len(line) <= COLUMNS or "  " not in line.strip(), shown.command


def test_the_tour(folder: Path) -> None:
    environ = {**QUICK_JAVA, "XDG_STATE_HOME": str(folder)}
    try:
        shown = type_in(lines("Five minutes"), folder, environ)
    finally:
        stop_broker(folder / ".ebbtide" / "broker")
    for each in shown:
        assert "Traceback" not in each.plain
        if not re.match(r"ebbtide (consume|run|archive)", each.command):  # these show data
            assert_tables_fit(each)
    counted, again = (e.plain for e in shown if e.command.startswith("ebbtide run visits-windows"))
    assert [int(n) for n in re.findall(r"^Batch: (\d+)$", counted, re.MULTILINE)] == [0, 1, 2, 3, 4]
    assert [int(n) for n in re.findall(r"^Batch: (\d+)$", again, re.MULTILINE)] == [2, 3, 4]
    (letter,) = by_start(shown, "ebbtide consume").strip().splitlines()
    assert REASON.match(json.loads(letter)["headers"]["ebbtide-reason"])
    assert re.search(r"added +changed +removed.*[1-9]", by_start(shown, "ebbtide state"), re.DOTALL)
    plan, done = (e.plain for e in shown if e.command.startswith("ebbtide rewind"))
    assert "3 batches run again" in plan
    assert "starts again with batch 2" in done
    assert "Batches 1 to 4: 4 identical." in by_start(shown, "ebbtide replay")
    assert "Recommended: rewind." in by_start(shown, "ebbtide plan")
    assert re.search(r"changed +count \d+ → \d+", by_start(shown, "ebbtide reprocess"))


def test_your_own_job(folder: Path) -> None:
    """On the checkpoint of another job, of which nothing is known."""
    checkpoint = make(folder / "orders", Shape(layout="rocksdb"))
    for path in checkpoint.rglob("*"):
        os.utime(path, (0, 0))  # long ago, so the query counts as stopped
    before = {path.name for path in (checkpoint / "commits").iterdir()}
    typed = [line.replace("/data/checkpoints/orders", "orders") for line in lines("Your own job")]
    shown = type_in(typed, folder, {"XDG_STATE_HOME": str(folder)})
    assert [each.command.split()[1] for each in shown] == [
        *("inspect", "sinks", "rewind", "rewind", "undo")
    ]
    for each in shown:
        assert_tables_fit(each)
    assert {path.name for path in (checkpoint / "commits").iterdir()} == before
    if os.environ.get("EBBTIDE_SHOTS"):
        away = [
            replace(each, output=each.output.replace(str(folder), "/data/checkpoints"))
            for each in shown
            if "sinks" not in each.command
        ]
        draw(away, PICTURE, "ebbtide")


def test_the_picture_is_there() -> None:
    assert PICTURE.stat().st_size > 10_000
    assert "url(http" not in PICTURE.read_text("utf-8")  # it loads nothing
