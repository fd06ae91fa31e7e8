"""The replay command without Spark: its flags, and what it shows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.cli import replay
from ebbtide.config import Settings
from ebbtide.connectors import streams
from ebbtide.errors import EbbtideError
from ebbtide.replaying import pipelines, run
from ebbtide.replaying.recorded_batches import Recorded
from ebbtide.replaying.run import ReplayOptions, ReplayResult
from ebbtide.replaying.verdicts import ReplayVerdict
from ebbtide.rewind.holders import CHANGE, RUN
from ebbtide.rewind.lease import LeaseLostError, hold_lease
from ebbtide.storage import WritableFolder, open_writable
from tests.conftest import Cli
from tests.leases import Clock, on_another_host
from tests.trees import Shape, make
from tests.unit.test_pipeline import PIPELINE


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
    replay._log_next(result, "p.py:p", is_function=True)
    said = capsys.readouterr().err
    assert "Batches 5 to 9: 1 identical, 2 different, 1 not compared." in said
    assert "To go on: ebbtide replay p.py:p --checkpoint 'my ckpt'" in said


@pytest.mark.parametrize("checked", [False, True], ids=["before the check", "after it"])
def test_a_replay_that_was_taken_over_plans_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    folder, clock = open_writable(str(tmp_path / "c")), Clock(monkeypatch)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=None))
    settings = Settings(home=tmp_path / "home")
    query: Any = SimpleNamespace(app="replay", open=lambda *_: None)
    monkeypatch.setattr(run._Replay, "_run", lambda _: None)
    with hold_lease(folder, RUN) as claimed:
        recorded = Recorded({5: "v1"}, {})
        replaying = run._Replay(spark, query, recorded, claimed, ReplayOptions(), settings)
        if checked:
            monkeypatch.setattr(claimed, "check", lambda: None)
            clock.stalled = 120
        with on_another_host(), hold_lease(folder, CHANGE):
            with pytest.raises(LeaseLostError, match="was taken over"):
                replaying.next(5)
    assert "offsets" not in folder.names()


def test_where_a_store_cannot_tell_a_replay_to_scratch_is_told(
    inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = make(tmp_path / "c", Shape("hdfs"))
    started: list[ReplayOptions] = []

    def start(_pipeline: object, settings: Settings, options: ReplayOptions, **_: Any) -> None:
        started.append(options)
        pipelines.replay_pipeline(PIPELINE, settings, options)

    def open_session(*_: object) -> None:
        raise EbbtideError("Spark would start now.")

    monkeypatch.setattr("ebbtide.replaying.replay_pipeline", start)
    monkeypatch.setattr(replay, "prepare_run", lambda settings, *_, **__: settings)
    monkeypatch.setattr(pipelines._Beside, "prepare", lambda _: None)
    monkeypatch.setattr("ebbtide.runtime.session.open_pipeline_session", open_session)
    monkeypatch.setattr(WritableFolder, "creates_exclusively", False)
    words = ("replay", "visits-counter", "--to-scratch", "--from-batch", "3", "--checkpoint", where)
    home = ("--home", tmp_path / "home")
    refused = inside(*words, *home)
    assert (refused.returncode, "then add --assume-stopped" in refused.stderr) == (1, True)
    assert "Spark would start now" in inside(*words, *home, "--assume-stopped").stderr
    assert [options.assume_stopped for options in started] == [False, True]


def test_a_function_is_found_without_importing_it(
    inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may want a session when it is imported, and must not get one from anybody else."""
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text("1 / 0\n\ndef build(spark):\n    return spark\n")
    Path("bad.py").write_text("def build(:\n")
    for words, says in {
        ("job.py:build",): "A function has no checkpoint of its own. Add --checkpoint CKPT.",
        ("job.py:other", "--checkpoint", "c"): "job.py has no function and no Pipeline",
        ("job.py:spark", "--checkpoint", "c"): "job.py cannot be imported: ZeroDivisionError",
        ("job.py",): "job.py names no function and no pipeline. Write it as job.py:build",
        ("none.py:build",): "There is no file none.py.",
        ("bad.py:build",): "bad.py is not Python",
        ("job.py:build", "--checkpoint", "c"): "c is not a checkpoint",
    }.items():
        answer = inside("replay", *words, "--home", tmp_path / "home")
        assert answer.returncode in (1, 2), words
        assert says in answer.stderr, words
        assert "Traceback" not in answer.stderr


def test_delta_in_the_name_of_a_folder() -> None:
    read = streams.recognize_read("FileSource[/lake/delta/in]", {"path": "/lake/delta/in"})
    assert (read.kind, read.names) == ("files", ("/lake/delta/in",))
