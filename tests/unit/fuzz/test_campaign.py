"""The campaign of `make fuzz` in short: every target, one seed, and faults that it must find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz import campaign, edits, engines, faults
from tests.fuzz.target import Target
from tests.fuzz.targets import all_targets
from tests.fuzz.watch import Watch

SEED = 20260105
TARGETS = all_targets()


def cases_of(target: Target) -> int:
    """A few thousand of all together; a slow target has few."""
    return 2 * target.share if target.share < 10 else 60


@pytest.mark.parametrize("name", TARGETS)
def test_no_damage_is_a_traceback_a_hang_or_a_bomb(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # a target of the command line goes elsewhere
    for variable in ("EBBTIDE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    watch = Watch(TARGETS[name])
    with watch.limits():
        engines.draw(watch, cases_of(watch.target), SEED, most_seeds=20)
    found = "\n".join(
        f"{each.key}: {each.data[:500]!r}\n{each.trace}" for each in watch.failures.values()
    )
    assert not watch.failures, found


# what stops a case may come while Python ignores what is raised, and comes again
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    fault = faults.FAULTS[name]
    watch = Watch(TARGETS[fault.target], seconds=0.1)
    with faults.planted(name), watch.limits():
        for seed in range(20):
            engines.roll(watch, 500, seed)
            if any(key.startswith(fault.shows) for key in watch.failures):
                return
    pytest.fail(f"{name} was not found in {watch.cases} cases: {list(watch.failures)}")


def test_a_failure_is_kept_in_its_shortest_form_and_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "FOLDER", tmp_path)
    watch = Watch(TARGETS["offsets"])
    with faults.planted("key"), watch.limits():
        watch.run(b'v1\n{"batchTimestampMs":1756969200000,"conf":{"some.key":"a value"}}\n-\n-')
        watch.minimize()
    (failure,) = watch.failures.values()
    assert failure.data.startswith(b"v1\n{")
    assert len(failure.data) < 30
    kept = {"key": failure.key, "trace": failure.trace, "data": ""}
    file = campaign._keep("offsets", kept)
    file.write_bytes(failure.data)
    with faults.planted("key"):
        assert campaign.main(["--replay", str(file)]) == 1
    assert "KeyError: 'batchWatermarkMs'" in capsys.readouterr().out
    assert campaign.main(["--replay", str(file)]) == 0
    assert "offsets: no failure" in capsys.readouterr().out


def test_the_campaign_keeps_what_it_finds_and_prints_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "FOLDER", tmp_path)
    assert campaign.main(["--plant", "key", "--cases", "300", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert "The planted fault 'key' was found." in out
    assert "offsets KeyError in checkpoint/log_files.py:parse_offsets" in out
    kept = [file.read_text() for file in (tmp_path / "offsets").glob("*.txt")]
    assert any("KeyError: 'batchWatermarkMs'" in text for text in kept)
    table = [line.split() for line in out.splitlines()]
    assert table[0][:3] == ["target", "cases", "seconds"]
    assert [line[0] for line in table[1:3]] == ["offsets", "all"]
    assert int(table[1][1].replace(",", "")) >= 300


def test_the_same_numbers_are_the_same_damage() -> None:
    value = json.dumps({"visits": {"0": 5}, "text": '{"a":1}', "list": [1, 2]}).encode()
    for way in range(64):
        edit = edits.Edit(way, 40_000, 12_345)
        assert edits.apply(value, [edit], [value], 10**5) == edits.apply(
            value, [edit], [value], 10**5
        )
    assert (
        edits.apply(value, [edits.Edit(0, 0, 1)], [value], 50)
        == value[:0] + edits.apply(value, [edits.Edit(0, 0, 1)], [value], 10**6)[:50]
    )
