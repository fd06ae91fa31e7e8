"""`ebbtide plan` as it is typed: what it shows, how it exits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.config import Settings
from tests.conftest import Cli
from tests.trees import Shape
from tests.unit.advice.places import make_archive, make_checkpoint, rows_of

SINCE = "1970-01-01T00:00:01.005"
STATEFUL = Shape(layout="rocksdb", batches=10, operator_metadata="v1")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


def test_both_options_are_shown_with_their_commands(settings: Settings, inside: Cli) -> None:
    folder = make_checkpoint(settings, STATEFUL)
    make_archive(settings, rows_of(range(10)))
    answer = inside("plan", "visits-counter", "--since", SINCE, "--home", settings.home)
    assert answer.returncode == 0, answer.stderr
    assert "read as processing time" in answer.stderr
    assert "wrong since 1970-01-01T00:00:01.005Z, read as" in answer.stderr
    assert "5 batches, 15 records" in answer.stdout
    assert "Recommended: rewind. Only a rewind repairs the state." in answer.stdout
    assert f"     ebbtide rewind {folder} --to-batch 5" in answer.stdout
    assert "     ebbtide reprocess visits-counter --event-time-start" in answer.stdout
    prose = [line for line in answer.stdout.splitlines() if "ebbtide " not in line]
    assert max(map(len, prose)) <= 80


def test_json_carries_it_for_scripts(settings: Settings, inside: Cli) -> None:
    make_checkpoint(settings, Shape(batches=10))
    make_archive(settings, rows_of(range(10)))
    answer = inside(
        *("plan", "visits-counter", "--since", "1970-01-01T00:15", "--event-time"),
        *("--home", settings.home, "-o", "json"),
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["clock"] == "event time"
    assert (found["first_batch"], found["recommended"]) == (5, "reprocess")
    assert found["event_time_end"] == "1970-01-01T00:19:01.000Z"


def test_a_time_is_read_in_the_zone(settings: Settings, inside: Cli) -> None:
    make_checkpoint(settings, Shape(batches=10))
    answer = inside(
        *("plan", "visits-counter", "--since", "1970-01-01T01:00:01.005"),
        *("--home", settings.home, "--timezone", "Europe/Warsaw"),
    )
    assert answer.returncode == 0, answer.stderr
    assert "01:00:01 Europe/Warsaw = 1970-01-01T00:00:01.005Z" in answer.stderr
    assert "First batch to replay: 5" in answer.stderr


def test_no_possible_option_exits_with_one_and_says_why(settings: Settings, inside: Cli) -> None:
    answer = inside("plan", "visits-counter", "--since", SINCE, "--home", settings.home)
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    flat = " ".join(answer.stdout.split())
    assert "Recommended: none." in flat
    assert "is not a checkpoint" in flat
    assert "There is no archive of pipeline visits-counter" in flat


@pytest.mark.parametrize(
    ("since", "code", "said"),
    [
        ("yesterday", 2, "'yesterday' is not a time"),
        ("1970-01-02", 1, "No batch was planned at or after 1970-01-02T00:00:00.000Z"),
    ],
)
def test_bad_input_is_one_clear_line(
    settings: Settings, inside: Cli, since: str, code: int, said: str
) -> None:
    make_checkpoint(settings, Shape(batches=10))
    answer = inside("plan", "visits-counter", "--since", since, "--home", settings.home)
    assert answer.returncode == code
    assert said in answer.stderr
    assert answer.stdout == ""
