"""`ebbtide archive --status`: how far it is, without a JVM, also while Kafka is down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.config import Settings
from tests.conftest import Cli
from tests.unit.archive.tables import append, checkpoint, create, plan_batches

STATUS = ("archive", "tests.unit.archive.tables:PIPELINE", "--status", "--home")


@pytest.fixture
def home(settings: Settings) -> Path:
    create(settings)
    append(settings, 0, (0, 0, "07:00"), (0, 1, None), (1, 0, "09:00"))
    plan_batches(checkpoint(settings), [{0: 2, 1: 1}], committed=1)
    return settings.home


def test_the_table(inside: Cli, home: Path) -> None:
    answer = inside(*STATUS, home)
    assert answer.returncode == 0, answer.stderr
    rows = {line.split("  ")[0].strip(): line.split() for line in answer.stdout.splitlines()}
    assert rows["0"] == ["0", "2", "-", "-"]
    assert rows["records"][-1] == "3"
    assert rows["without event time"][-1] == "1"
    assert rows["running"][-1] == "no"
    assert rows["behind"][-1] == "unknown"
    assert "2025-09-04T07:00:00.000Z to 2025-09-04T09:00:00.000Z" in answer.stdout
    assert "The embedded broker is not running" in answer.stderr


def test_json(inside: Cli, home: Path) -> None:
    answer = inside(*STATUS, home, "-o", "json")
    found = json.loads(answer.stdout)
    assert found["pipeline"] == "visits-counter"
    assert (found["version"], found["records"], found["unreadable"], found["files"]) == (1, 3, 1, 3)
    assert (found["running"], found["behind"]) == (False, None)
    assert [part["archived"] for part in found["partitions"]] == [2, 1]


def test_no_archive_yet(inside: Cli, tmp_path: Path) -> None:
    answer = inside(*STATUS, tmp_path)
    assert answer.returncode == 1
    assert "Type: ebbtide archive visits-counter" in answer.stderr


def test_flags_of_a_run_are_refused(inside: Cli, tmp_path: Path) -> None:
    answer = inside(*STATUS, tmp_path, "--available-now")
    assert answer.returncode == 2
    assert "--status starts nothing" in answer.stderr
