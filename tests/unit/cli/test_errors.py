"""Wrong input: what failed, what was expected, and what to type next; never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.trees import Shape, make


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a checkpoint `all/c`, a file, and files that are no plans."""
    make(tmp_path / "all" / "c", Shape("v2"))
    (tmp_path / "file").write_text("a line")
    (tmp_path / "plan.json").write_text('{"first_batch": 1}')
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "job.py").write_text("def build(spark): ...\ndef connect(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("inspect file", 1, "file is not a checkpoint: it is a file. Name the folder that"),
        ("inspect nowhere", 1, "nowhere is not a checkpoint: there is no such folder. Name"),
        ("inspect all/c/offsets", 1, "offsets is not a checkpoint: it is a part of one. Name /"),
        ("inspect /", 1, "Error: / is not a checkpoint: it has no file 'metadata'. Name the"),
        ("verify all", 1, "Name the folder that holds metadata, offsets and commits, such as"),
        ("inspect", 2, "Missing argument 'CKPT'"),
        ("inspekt all/c", 2, "No such command 'inspekt'. Did you mean 'inspect'?"),
        ("inspect all/c -o xml", 2, "'xml' is not one of 'table', 'json'."),
        ("inspect foo://bar", 2, "Protocol not known: foo. Use a path, or a URL such as"),
        ("history all/c --last 0", 2, "0 is out of range. It must be at least 1."),
        ("rewind all/c", 2, "No target is given. Give one of --to-batch"),
        ("rewind all/c --to-batch x", 2, "'--to-batch': It takes a whole number, such as 5."),
        ("rewind all/c --to-batch 3 --to-earliest", 2, "2 targets are given"),
        ("rewind all/c --to-datetime noon --sink none", 2, "Write it as 2026-01-05T10:00:00"),
        ("rewind all/c --by-duration 2h --sink none", 2, "Write it as PT2H, PT30M, P1D"),
        ("rewind all/c --to-offsets {1 --sink none", 2, "names no offsets. Write them as"),
        ("rewind all/c --to-batch 99 --sink none", 1, "Its batches: 0 to 6. Try --to-batch 6."),
        ("apply plan.json", 2, "plan.json: This is not a plan that this version"),
        ("apply text.json", 2, "text.json is not JSON. Make one: ebbtide rewind CKPT TARGET"),
        ("apply all", 2, "all cannot be read: it is a folder. Make one:"),
        ("fork all/c new", 2, "Add --at-batch N or --offsets-only."),
        ("run orders", 2, "There is no job 'orders'. Ready jobs: visits-windows-counter"),
        ("run visits-conter", 2, "no job 'visits-conter'. Did you mean visits-counter? Ready"),
        ("check all/c visits-conter", 2, "Did you mean visits-counter? Ready jobs: visits-w"),
        ("check all/c job.py:bild", 2, "no Pipeline named 'bild'. It has: build, connect."),
        ("retry last", 2, "None was begun there: see --home."),
        ("replay visits-counter", 1, "visits-counter is not a checkpoint"),
        ("consume visits", 1, "not running. Type: ebbtide broker start"),
    ],
)
def test_an_error_says_what_to_do(
    inside: Cli, place: Path, command: str, code: int, said: str
) -> None:
    refused = inside(*command.split())
    assert said in refused.stderr
    assert refused.returncode == code
    assert "Traceback" not in refused.stderr
    assert "Planning the query with Spark" not in refused.stderr
    assert "Started the embedded broker" not in refused.stderr
    assert refused.stdout == ""
    assert not (place / "home" / "broker").exists()
