"""The ready jobs as a person meets them: listed at 80 columns, refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.errors import UsageError
from ebbtide.systems import READY, find_code
from tests.conftest import Cli

WINDOW = ("--event-time-start", "2024-10-06T10:00", "--event-time-end", "2024-10-06T10:05")


def test_jobs_fit_the_terminal(inside: Cli) -> None:
    lines = inside("jobs", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    # a line each, no name cut
    assert [line.split()[0] for line in lines if line.strip()][2:] == list(READY)
    assert any(line.split()[1:] == ["visits", "foreachBatch", "append"] for line in lines)


def test_jobs_as_json(inside: Cli) -> None:
    found = {job["name"]: job for job in json.loads(inside("jobs", "-o", "json").stdout)}
    assert found["browser-stats-stateless"] == {
        "name": "browser-stats-stateless",
        "source": "topic visits",
        "sink": "topic browser-stats-stateless",
        "watermark": None,
        "output_mode": "append",
        "scope": "batch",
    }


def test_every_demo_is_named(inside: Cli) -> None:
    from ebbtide.systems import DEMOS

    said = inside("demo", "--help", COLUMNS="80").stdout
    assert all(name in said for name in DEMOS)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (
            "browser-stats-stateless",
            "it says something of each batch, and no range knows where those began and ended",
        ),
        (
            "visits-micro-batch",
            "it hands its batches to a function of its own, and a range has none",
        ),
    ],
)
def test_what_has_no_range_is_not_reprocessed(
    inside: Cli, tmp_path: Path, job: str, why: str
) -> None:
    answer = inside("reprocess", job, *WINDOW, "--home", tmp_path)
    assert answer.returncode == 2
    assert answer.stderr == (
        f"Error: Pipeline {job} cannot be run over a range: {why}. "
        "Rewind it instead: ebbtide rewind --help\n"
    )
    # before anything is made or started
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "code", ["def build(spark): ...", "async def build(spark): ...", "build = lambda spark: None"]
)
def test_a_function_is_not_imported_before_there_is_a_session(tmp_path: Path, code: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{code}\nraise RuntimeError('imported')\n")
    load = find_code(f"{script}:build")
    assert callable(load)
    with pytest.raises(UsageError, match="imported"):
        load()
