"""What `scripts/versions` tests beside the systems: what a Spark cannot do is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.runtime import versions
from ebbtide.runtime.versions import NEEDS, STATE_READER, SparkVersion
from tests.compat.kept import FIXTURES, unpack
from tests.conftest import Cli

_JOB = """
from ebbtide import Console, Kafka, Pipeline

pipeline = Pipeline(
    "newer",
    source=Kafka("visits", schema="visit_id INT, event_time TIMESTAMP"),
    event_time="event_time",
    transform=lambda rows: rows.groupBy("visit_id").{operator}(),
    sink=Console(),
)
"""


def lacks(what: str) -> bool:
    return versions.spark_version() < SparkVersion.parse(NEEDS[what])


def test_the_doctor_finds_nothing_wrong(cli: Cli, tmp_path: Path) -> None:
    answer = cli("doctor", "--home", tmp_path, COLUMNS="200")
    assert answer.returncode == 0, answer.stdout
    assert f"pyspark {versions.spark_version()}" in answer.stdout


@pytest.mark.parametrize("operator", ["transformWithStateInPandas", "transformWithState"])
def test_an_operator_of_a_newer_spark_is_refused(cli: Cli, tmp_path: Path, operator: str) -> None:
    job = tmp_path / "job.py"
    job.write_text(_JOB.format(operator=operator), "utf-8")
    answer = cli("run", f"{job}:pipeline", "--available-now", "--home", tmp_path / "home")
    cli("broker", "stop", "--home", tmp_path / "home")
    assert answer.returncode != 0
    refusal = f"{operator} needs Spark {NEEDS[operator]} or newer, and this is pyspark"
    assert (refusal in answer.stderr) == lacks(operator), answer.stderr


def test_state_is_shown_or_refused(cli: Cli, tmp_path: Path) -> None:
    version = str(versions.spark_version())
    kept = FIXTURES / version / "changelog-aggregation.tar.gz"
    checkpoint = unpack(kept, tmp_path / "checkpoint")
    answer = cli("state", "show", checkpoint, "--home", tmp_path / "home")
    if lacks(STATE_READER):
        assert answer.returncode == 1
        assert "(ebbtide state) needs Spark 4.0 or newer, and this is pyspark" in answer.stderr
    else:
        assert answer.returncode == 0, answer.stderr
