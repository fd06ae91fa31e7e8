"""Where `ebbtide state` reads the state with a cluster, as far as it needs no JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import MagicMock

import pytest

from ebbtide.checkpoint import read_checkpoint
from ebbtide.errors import SetupError
from ebbtide.runtime import cluster, session
from ebbtide.state import reading
from ebbtide.state.parts import StatePart
from tests.conftest import Cli
from tests.trees import Shape, make

CLUSTER = "spark://127.0.0.1:1"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of the sessions that were asked for; none is opened."""
    asked: list[dict[str, Any]] = []

    def refuse(_app: str, _settings: object, **options: Any) -> NoReturn:
        asked.append(options)
        raise SetupError("No session in this test.")

    monkeypatch.setattr(session, "open_session", refuse)
    monkeypatch.setattr("ebbtide.cli.state.ensure_jars", lambda *_sets: None)
    return asked


def test_a_checkpoint_that_is_mounted_on_all_machines(
    inside: Cli, tmp_path: Path, sessions: list[dict[str, Any]]
) -> None:
    place = make(tmp_path / "c", Shape("hdfs"))
    where = ("--master", CLUSTER, "--home", f"file://{tmp_path}/home")
    answer = inside("state", "show", place, *where)
    assert f"The checkpoint, {place}, is on this machine only" in answer.stderr
    answer = inside("state", "show", f"file://{place}", *where)
    assert "No session in this test." in answer.stderr
    assert [one["locations"] for one in sessions] == [[f"file://{place}"]]


def test_spark_is_told_that_it_is_mounted(tmp_path: Path) -> None:
    """A bare path would be one of the default filesystem of the cluster, such as HDFS."""
    place = make(tmp_path / "c", Shape("hdfs"))
    checkpoint, spark = read_checkpoint(f"file://{place}"), MagicMock()
    for master, location in ((CLUSTER, f"file://{place}"), ("local[2]", str(place))):
        spark.sparkContext.master = master
        reading._load(spark, checkpoint, StatePart(0), 1, {})
        load = spark.newSession().read.format().options().load
        load.assert_called_with(location)


def test_spark_submit_has_brought_the_jars(
    inside: Cli, tmp_path: Path, sessions: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_sets: str) -> None:
        raise AssertionError

    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(cluster, "outer_settings", lambda: {"spark.master": "local[2]"})
    monkeypatch.setattr("ebbtide.cli.state.ensure_jars", download)
    answer = inside("state", "show", make(tmp_path / "c", Shape("hdfs")), "--home", tmp_path)
    assert "No session in this test." in answer.stderr
    assert len(sessions) == 1
