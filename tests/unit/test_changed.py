"""Which tests `make check` runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import changed


def test_a_clone_without_the_commit_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has nothing to compare with; without a path, pytest would run all tests."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / ".gitignore").write_text("")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "-m", "First"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    changed.main()
    assert capsys.readouterr().out == "tests/unit/test_house.py\n"
