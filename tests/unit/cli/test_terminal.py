"""What a person sees in a terminal of 80 columns."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from ebbtide.cli.output import progress_bar
from ebbtide.cli.tables import lay_out
from ebbtide.formatting import display_width, wrap
from tests.conftest import Cli
from tests.terminal import COLUMNS, type_in
from tests.trees import Shape, make

OPTION = '.option("checkpointLocation",'
LONG = "the-checkpoints-of-a-team/with-another-long-folder/orders-by-customer-and-by-day"


def see(folder: Path, *commands: str) -> list[list[str]]:
    """The lines that each command shows; what a bar has drawn over is not there any more."""
    environ = {"EBBTIDE_HOME": str(folder / "home")}
    typed = [f"{quote(sys.executable)} -m ebbtide {command}" for command in commands]
    shown = type_in(typed, folder, environ)
    return [[line.rsplit("\r")[-1] for line in one.plain.split("\n")][:-1] for one in shown]


def old(folder: Path) -> Path:
    """A checkpoint that was written long ago, so its query counts as stopped."""
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    return folder


def test_one_empty_line_stands_between_the_parts_of_a_rewind(tmp_path: Path) -> None:
    old(make(tmp_path / "c", Shape("v2")))
    rewind = "rewind c --shift-by -1 --sink none"
    plan, done = see(tmp_path, rewind, f"{rewind} --execute")
    for lines in (plan, done):
        assert "" not in (lines[0], lines[-1])
        assert not re.search(r"\n{3}", "\n".join(lines)), lines
    parts = "\n".join(done).split("\n\n")
    assert [part.split()[0] for part in parts] == ["Rewind", "Rewinding", "Done:"]  # the question
    assert " ".join(done).count(f"Rewind {tmp_path}/c") == 1
    assert [part.split("\n")[0].split()[0] for part in "\n".join(plan).split("\n\n")] == [
        *("Rewind", "topic", "goes", "check", "Nothing")
    ]
    assert "1 batch runs again" in " ".join(plan)


def test_no_word_is_broken(tmp_path: Path) -> None:
    old(make(tmp_path / LONG, Shape("v2", operators=2)))
    rewind = f"rewind {LONG} --to-batch 5 --sink none"
    commands = [
        *(f"inspect {LONG}", f"history {LONG}", rewind, f"{rewind} --execute"),
        *(f"fork {LONG} {LONG}-2 --at-batch 3", f"sinks {LONG} --search ."),
    ]
    shown = see(tmp_path, *commands)
    for command, lines in zip(commands, shown, strict=True):
        for line in lines:
            if len(line) > COLUMNS:
                words = line.split()
                assert len(words) == 1 or words[0] in ("ebbtide", OPTION) or "? [y/N]:" in line, (
                    command
                )
    assert f"ebbtide rewind {LONG} --to-batch 0" in shown[0]


def test_a_path_in_a_table_gets_a_line_of_its_own(inside: Cli, tmp_path: Path) -> None:
    folder = old(make(tmp_path / "c", Shape("v2")))
    for file in folder.glob("state/0/0/7_*"):
        file.write_bytes(b"cut")
    shown = inside("verify", folder, COLUMNS="50")
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) > 50, "a path is longer"
    (path,) = [line.strip() for line in lines if len(line) > 50]
    assert re.fullmatch(r"state/0/0/7_[\w-]+\.\w+", path)


def test_a_long_message_stays_one_line_in_a_pipe(inside: Cli, tmp_path: Path) -> None:
    refused = inside("inspect", tmp_path / LONG, COLUMNS="80")
    assert refused.stderr.count("\n") == 1


def test_doctor_prints_its_commands_below_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebbtide.cli.doctor import Finding, _show

    monkeypatch.setenv("COLUMNS", "80")
    fix = f"pip install --editable '/{LONG}[spark]' 'pyspark==4.2.*'"
    _show([Finding("Spark", False, f"no pyspark in /{LONG}", fix), Finding("home", True, "here")])
    lines = capsys.readouterr().out.splitlines()
    assert f"  {fix}" in lines
    assert any(line.strip() == f"/{LONG}" for line in lines)


def test_wide_characters_break_no_line(tmp_path: Path) -> None:
    """Of the path of a checkpoint, and in the rows of a table."""
    old(make(tmp_path / "訪問-注文" / "チェックポイント", Shape("v2")))
    (lines,) = see(tmp_path, "rewind 訪問-注文/チェックポイント --to-batch 5 --sink none")
    assert all(display_width(line) <= COLUMNS or " " not in line.strip() for line in lines), lines
    rows = [("✍️ 訪問", "a"), ("e\u0301te\u0301", "b"), ("plain", "c")]
    table = lay_out(("page", "x"), rows, COLUMNS)
    assert {display_width(line) for line in table[2:]} == {11}


def test_a_no_break_space_ends_no_line() -> None:
    assert wrap("10\u00a0000 records are in visits, 20\u00a0000 in clicks", 33) == [
        "10\u00a0000 records are in visits,",
        "20\u00a0000 in clicks",
    ]


def test_spaces_at_the_end_of_a_text_take_no_time() -> None:
    """A value of a user's record may have as many as it likes."""
    began = time.process_time()
    assert wrap("visits" + " " * 30_000, 40) == ["visits"]
    assert time.process_time() - began < 1


def test_a_bar_is_not_full_before_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full one stops its clock, and after the last file Spark may restore a table."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("Rewinding") as advance:
        advance(4, 4)
    shown = capsys.readouterr().err
    assert "99%" in shown
    assert "100%" not in shown
    with progress_bar("Reading", "records") as advance:
        advance(1_000, 1_000)
    assert " 1,000 records" in capsys.readouterr().err


def test_no_answer_changes_nothing(tmp_path: Path) -> None:
    old(make(tmp_path / "c", Shape("v2")))
    rewind = f"{quote(sys.executable)} -m ebbtide rewind c --shift-by -1 --sink none --execute"
    with pytest.raises(AssertionError, match=r"\[y/N\]: [^E]*Nothing has changed\.\s*$"):
        type_in([rewind], tmp_path, {}, answer="\x04")
    assert (tmp_path / "c/commits/6").exists()


def test_a_broker_that_does_not_run_is_told(inside: Cli, tmp_path: Path) -> None:
    shown = inside("broker", "status", "--home", tmp_path / "home")
    assert shown.returncode == 1
    assert re.search(r"running +no\n", shown.stdout)


def test_a_history_across_midnight_keeps_its_times_in_their_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first table of the README's tour: late records are of the day before."""
    from ebbtide.cli.history import _show

    monkeypatch.setenv("COLUMNS", "80")
    run: dict[str, Any] = {
        "id": 2,
        "started": "2026-11-19T21:57:49.000Z",
        "planned": None,
        "rows": 5_000,
        "broken": 10,
        "late": {"records": 2, "exact": True},
        "event_times": ["2023-12-31T22:08:19.000Z", "2024-01-01T07:40:17.000Z"],
        "watermark": "2024-01-01T05:07:37.000Z",
        "durations": {"triggerExecution": 2_400},
        "output": {"rows": 30},
    }
    _show([run], set())
    first, second = capsys.readouterr().out.rstrip("\n").split("\n")[-2:]
    assert first.split()[5:8] == ["12-31", "22:08:19", "05:07:37"]
    assert second.split() == ["01-01", "07:40:17"]
    assert first.index("12-31") == second.index("01-01")
