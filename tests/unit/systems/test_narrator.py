"""What a demo tells fits a terminal of 80 columns, and its commands can be copied."""

from __future__ import annotations

import pytest

from ebbtide.systems.harness import Narrator

PATH = f"/home/somebody/{'with-a-long-name/' * 4}.ebbtide/demos/stream-reprocessor"


def test_no_path_and_no_command_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrator = Narrator(to_stderr=False)
    command = f"$ ebbtide rewind {PATH} --to-batch 5 --execute"
    narrator.tell(f"The checkpoint of this demo is in {PATH} and stays there.\n{command}")
    narrator.check(f"everything is in {PATH} as expected")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines.count(PATH) == 2
    assert command in lines
    assert all(len(line) <= 80 for line in lines if PATH not in line)
