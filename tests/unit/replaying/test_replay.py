"""The replay command without Spark: its flags, and what it shows."""

from __future__ import annotations

import pytest

from ebbtide.cli import replay
from ebbtide.replaying.run import ReplayResult
from ebbtide.replaying.verdicts import ReplayVerdict
from tests.conftest import Cli


@pytest.mark.parametrize("flags", [("--from-batch", "3"), ("--to-batch", "3"), ("--scratch", "x")])
def test_flags_of_a_replay_to_scratch(inside: Cli, flags: tuple[str, str]) -> None:
    answer = inside("replay", "visits-windows-counter", *flags)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "Add --to-scratch." in answer.stderr


def test_what_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = '{"page":"' + "x" * 90 + '"}'
    verdicts = (
        ReplayVerdict(5, "identical", 1_000, 1_000),
        ReplayVerdict(6, "differs", 4, 3, added=1, removed=2, new=('{"n":[1]}',), old=(long,)),
        ReplayVerdict(
            7, "differs", 4, 3, reason="the differing rows cannot be shown: " + "why " * 12
        ),
        ReplayVerdict(8, "not compared", None, 3, reason="the history has no first run of it"),
    )
    result = ReplayResult("p", "my ckpt", 5, 9, verdicts)
    replay._show(result)
    shown = capsys.readouterr().out.splitlines()
    at = shown.index("batch 6")
    # rows are not cut: they can be copied
    assert shown[at:] == [
        "batch 6",
        f"- {long}",
        '+ {"n":[1]}',
        "  and 1 more: --rows N, or --all-rows",
    ]
    assert max(map(len, shown[:at])) <= 80
    assert any("1 new, 2 gone" in line for line in shown)
    replay._log_next(result, "p.py:p")
    said = capsys.readouterr().err
    assert "Batches 5 to 9: 1 identical, 2 different, 1 not compared." in said
    assert "To go on: ebbtide replay p.py:p --checkpoint 'my ckpt'" in said
