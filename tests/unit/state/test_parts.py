"""Which state can be read is known before Spark starts, and what cannot is refused in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebbtide.checkpoint import read_checkpoint
from ebbtide.errors import CheckpointError, EbbtideError, UsageError
from ebbtide.state.parts import StatePart, find_part, prefers_feed, require_state
from tests.conftest import Cli
from tests.trees import JOIN_STORES, LAYOUTS, Shape, make, snapshot

VARIABLES = {"total": "ValueState", "seen": "ListState", "pages": "MapState"}


def variables(folder: Path, names: list[str], time: str = "EventTime") -> Path:
    """A checkpoint of transformWithState, as far as names and notes go."""
    place = make(folder, Shape("rocksdb", batches=4, operator_metadata="v2"))
    series = place / "state/0/_metadata/v2"
    kept = [{"stateName": n, "stateVariableType": VARIABLES[n]} for n in names]
    kept.append({"stateName": "$eventTimers_keyToTimestamp", "stateVariableType": "TimerState"})
    for note in series.glob("[0-9]*"):
        found = json.loads(note.read_text().split("\n", 1)[1])
        found["operatorInfo"]["operatorName"] = "transformWithStateInPandasExec"
        found["operatorPropertiesJson"] = json.dumps({"timeMode": time, "stateVariables": kept})
        note.write_text(f"v2\n{json.dumps(found)}")
    return place


@pytest.mark.parametrize(
    ("shape", "asked", "part"),
    [
        (Shape("hdfs"), {}, StatePart(0)),
        (Shape("hdfs", operators=2), {"operator": 1}, StatePart(1)),
        (Shape("hdfs", stores=JOIN_STORES), {"side": "left"}, StatePart(0, side="left", many=True)),
        (
            Shape("v2", stores=JOIN_STORES),
            {"store": "right-keyToNumValues"},
            StatePart(0, store="right-keyToNumValues"),
        ),
    ],
)
def test_what_can_be_meant_need_not_be_named(
    shape: Shape, asked: dict[str, Any], part: StatePart, tmp_path: Path
) -> None:
    assert find_part(read_checkpoint(str(make(tmp_path / "c", shape))), **asked) == part


def test_variables_are_those_of_the_code(tmp_path: Path) -> None:
    one = read_checkpoint(str(variables(tmp_path / "one", ["total"])))
    assert find_part(one) == StatePart(0, variable="total")
    assert find_part(one, timers=True) == StatePart(0, timers=True, many=True)
    all_ = read_checkpoint(str(variables(tmp_path / "all", list(VARIABLES), "NoTime")))
    assert find_part(all_, variable="seen") == StatePart(0, variable="seen", many=True)
    assert find_part(all_, variable="pages") == StatePart(0, variable="pages")
    for asked, said in (
        ({}, "in 3 parts. Name one: --variable pages, --variable seen, --variable total."),
        ({"variable": "x"}, "has no variable 'x'. Name one: --variable pages"),
        ({"timers": True}, "has no timers. Name one: --variable pages"),
        ({"side": "left"}, "has no side 'left'. Name one: --variable pages"),
    ):
        with pytest.raises(UsageError, match=said):
            find_part(all_, **asked)


@pytest.mark.parametrize(
    ("shape", "flags", "said", "code"),
    [
        (Shape(), [], "keeps no state", 1),
        (Shape("hdfs", operators=2), [], "Name one with --operator: 0 (unnamed), 1", 2),
        (Shape("hdfs"), ["--operator", "4"], "no operator 4 with state. Name one", 2),
        (Shape("hdfs"), ["--side", "left"], "no side 'left'. Leave it out.", 2),
        (Shape("hdfs"), ["--store", "x"], "no store 'x'. Leave it out.", 2),
        (Shape("hdfs"), ["--timers"], "no timers. Leave it out.", 2),
        (
            Shape("hdfs", stores=JOIN_STORES),
            [],
            "in 2 parts. Name one: --side left, --side right, --store left-",
            2,
        ),
        (
            Shape("hdfs", stores=JOIN_STORES),
            ["--store", "x"],
            "no store 'x'. Name one: --side left, --side right, --store left-",
            2,
        ),
        (Shape("hdfs", stores=JOIN_STORES), ["--side", "left", "--timers"], "Name one.", 2),
        (Shape("hdfs"), ["--batch", "9"], "Batch 9 has no commit", 1),
        (Shape("hdfs", committed=6), ["--batch", "6"], "Committed batches: 0 to 5", 1),
        (Shape("hdfs", committed=0), [], "No batch of", 1),
    ],
)
def test_what_cannot_be_read_is_refused_before_spark_starts(
    shape: Shape, flags: list[str], said: str, code: int, tmp_path: Path, inside: Cli
) -> None:
    place = make(tmp_path / "c", shape)
    before = snapshot(place)
    answer = inside("state", "show", place, *flags)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert said in answer.stderr
    assert "Starting Spark" not in answer.stderr
    assert snapshot(place) == before


def test_purged_or_damaged_state_is_refused_with_what_can_be_read(
    tmp_path: Path, inside: Cli
) -> None:
    place = make(tmp_path / "c", Shape("hdfs", batches=8, first=4))
    (place / "state/0/1/6.delta").unlink()
    (place / "state/0/1/7.delta").unlink()
    (place / "state/0/1/7.snapshot").unlink()
    answer = inside("state", "show", place, "--batch", "5")
    assert (
        "operator 0 partition 1: version 6 is missing. It can be read after batch 4, 9 to 11."
        in (answer.stderr)
    )
    answer = inside("state", "diff", place, "--from", "4", "--to", "6")
    assert "The state after batch 6 of" in answer.stderr
    answer = inside("state", "diff", place, "--from", "7", "--to", "4")
    assert "Batch 7 (--from) is not before batch 4 (--to). Name an earlier batch." in answer.stderr


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "none"])
def test_changes_are_preferred_where_they_are_there_and_smaller(
    layout: str, tmp_path: Path
) -> None:
    found = read_checkpoint(str(make(tmp_path / "c", Shape(layout, batches=8))))
    part = find_part(found)
    assert require_state(found, part) == 7
    has_changes = layout in ("hdfs", "changelog", "v2")
    assert prefers_feed(found, part, 6, 7) == has_changes
    if layout == "hdfs":
        # seven changes are more than a snapshot and the last
        assert not prefers_feed(found, part, 0, 7)


def test_an_interrupted_rewind_is_finished_first(tmp_path: Path) -> None:
    place = make(tmp_path / "c", Shape("hdfs"))
    (place / "offsets/7").write_text("ebbtide: A rewind was interrupted.")
    found = read_checkpoint(str(place))
    with pytest.raises(CheckpointError, match="barrier of a rewind"):
        require_state(found, find_part(found))


def test_a_note_that_is_not_whole_is_named(tmp_path: Path) -> None:
    place = variables(tmp_path / "c", ["total"])
    checkpoint = read_checkpoint(str(place))
    for note in (place / "state/0/_metadata/v2").glob("[0-9]*"):
        note.write_text("v2\n{}")
    with pytest.raises(EbbtideError, match="does not list the variables"):
        find_part(checkpoint)


def test_a_path_that_sparks_reader_does_not_find(tmp_path: Path, inside: Cli) -> None:
    place = make(tmp_path / "100 % mine", Shape("hdfs"))
    answer = inside("state", "show", place)
    assert f"ln -s '{place}' ./checkpoint" in answer.stderr
    assert answer.returncode == 1
