"""What a user's code may not do while it is checked; no session is needed to see it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ebbtide.compatibility.checking import call_build
from ebbtide.errors import UsageError
from ebbtide.systems import find_query, require_reference


@pytest.mark.parametrize("code", [0, 1])
def test_a_module_that_ends_the_program(tmp_path: Path, code: int) -> None:
    job = tmp_path / "ending_job.py"
    job.write_text(f"import sys\nsys.exit({code})\nbuild = None\n", "utf-8")
    with pytest.raises(UsageError, match=r"ending_job\.py ends the program when it is imported\."):
        find_query(f"{job}:build")


def test_a_function_that_ends_the_program() -> None:
    def build(_spark: Any) -> Any:
        sys.exit(0)

    with pytest.raises(UsageError, match=r"^build ends the program\."):
        call_build(None, build)  # type: ignore[arg-type]


def test_what_a_function_prints_is_no_part_of_the_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def build(_spark: Any) -> Any:
        print("rows:", 3)  # noqa: T201

    with pytest.raises(UsageError, match=r"^build\(spark\) returns None"):
        call_build(None, build)  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "rows: 3\n")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def zähle(spark): ...\n".encode(), "zähle"),
        ("# coding: latin-1\ndef zähle(spark): ...\n".encode("latin-1"), "zähle"),
        (b"from os.path import*\n", "join"),
        (b"for n in 'ab':\n    locals()[f'build_{n}'] = print\n", "build_a"),
        (b"import sys\nsys.modules[__name__].__dict__.update({'bu' 'ild': print})\n", "build"),
        (b"eval('(bui' + 'ld := print)')\n", "build"),
    ],
)
def test_a_name_that_a_file_may_define_is_not_refused(
    tmp_path: Path, source: bytes, name: str
) -> None:
    job = tmp_path / "dynamic_job.py"
    job.write_bytes(source)
    require_reference(f"{job}:{name}")


@pytest.mark.parametrize(
    ("source", "listed"),
    [
        ("visits = Pipeline(name='visits')", "It has: visits."),
        ("visits: ebbtide.Pipeline = ebbtide.Pipeline()", "It has: visits."),
        ("async def go(spark): ...\ncount = lambda spark: 1\nx = make()", "It has: go, count, x."),
        ("x = 3", "It has neither."),
    ],
)
def test_a_refused_name_is_told_from_those_that_are_there(
    tmp_path: Path, source: str, listed: str
) -> None:
    job = tmp_path / "job.py"
    job.write_text(source, "utf-8")
    with pytest.raises(UsageError) as refused:
        require_reference(f"{job}:build")
    assert str(refused.value).endswith(f"named 'build'. {listed}")
