"""What goes wrong is said in one line that names the next step; never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.config import Settings
from ebbtide.local.broker import free_port
from tests.conftest import Cli
from tests.e2e.conftest import QUICK_START, together

PIPELINES = """
from dataclasses import replace
from ebbtide import Kafka
from ebbtide.systems.stream_reprocessor.pipeline import pipeline as counter

misspelt = replace(counter, source=Kafka("visits", schema="event_time TIMESTMP"))
"""
JOB = "visits-windows-counter"


def one_line(stderr: str) -> str:
    """The error line: the last one, with nothing like a traceback before it."""
    assert "Traceback" not in stderr
    assert "Exception" not in stderr
    lines = [line for line in stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, stderr
    return lines[0]


def test_unknown_job(inside: Cli, tmp_path: Path) -> None:
    answer = inside("run", "visit-counter", "--home", tmp_path)
    assert answer.returncode == 2
    assert (
        "no job 'visit-counter'. Did you mean visits-counter? Ready jobs: visits-windows"
        in one_line(answer.stderr)
    )


def test_unknown_demo_and_wrong_flags(inside: Cli, tmp_path: Path) -> None:
    assert inside("demo", "nothing").returncode == 2
    assert inside("run", JOB, "--colour").returncode == 2
    conf = inside("run", JOB, "--conf", "spark.x", "--home", tmp_path)
    assert (conf.returncode, "--conf name=value" in one_line(conf.stderr)) == (2, True)
    zone = inside("run", JOB, "--timezone", "Mars/Base", "--home", tmp_path)
    assert (zone.returncode, "no time zone 'Mars/Base'" in one_line(zone.stderr)) == (2, True)


def test_unreachable_broker(cli: Cli, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    flags = ("--home", tmp_path, "--bootstrap-servers", address)

    def refused(*command: str) -> None:
        answer = cli(*command, *flags, stdin="{}\n", timeout=60)
        assert answer.returncode == 1
        assert f"No Kafka broker answers at {address}" in one_line(answer.stderr)

    together(
        lambda: refused("run", JOB),
        lambda: refused("produce", "visits"),
        lambda: refused("consume", "visits"),
    )


def test_no_write_permission(inside: Cli, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = inside("run", JOB, "--home", tmp_path / "file" / "home")
    assert answer.returncode == 1
    assert "Choose another folder with --home" in one_line(answer.stderr)
    servers = settings.kafka.address
    answer = inside(
        *("run", JOB, "--home", tmp_path, "--bootstrap-servers", servers),
        *("--checkpoint", tmp_path / "file" / "c"),
    )
    assert answer.returncode == 1
    assert "Choose another folder with --checkpoint" in one_line(answer.stderr)


def test_checkpoint_of_another_query(inside: Cli, settings: Settings, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "other"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"7b3c"}')
    entry = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"clicks":{"0":3}}'
    (checkpoint / "offsets" / "0").write_text(entry)
    answer = inside(
        *("run", JOB, "--home", tmp_path, "--checkpoint", checkpoint),
        *("--bootstrap-servers", settings.kafka.address),
    )
    assert answer.returncode == 1
    assert "of a query that reads topic clicks, not of visits-windows-counter" in one_line(
        answer.stderr
    )


@pytest.mark.usefixtures("one_jvm")
@pytest.mark.parametrize(
    ("flag", "value", "code", "says"),
    [
        ("--trigger", "soon", 2, "does not run as a stream"),
        ("--master", "mars", 2, "'mars' is not a Spark master"),
    ],
)
def test_wrong_wishes(
    inside: Cli, settings: Settings, tmp_path: Path, flag: str, value: str, code: int, says: str
) -> None:
    servers = settings.kafka.address
    answer = inside("run", JOB, "--home", tmp_path, "--bootstrap-servers", servers, flag, value)
    assert answer.returncode == code
    assert says in one_line(answer.stderr)


def test_wrong_schema(cli: Cli, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    answer = cli(
        *("run", f"{tmp_path}/pipelines.py:misspelt", "--home", tmp_path, *QUICK_START),
        *("--bootstrap-servers", settings.kafka.address),
    )
    assert answer.returncode == 2
    assert "does not parse" in one_line(answer.stderr)
    assert "TIMESTMP" in one_line(answer.stderr)
