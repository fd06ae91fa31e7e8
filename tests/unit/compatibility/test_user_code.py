"""What a user's code may not do while it is checked; no session is needed to see it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ebbtide.compatibility.checking import call_build
from ebbtide.errors import UsageError
from ebbtide.systems import find_query


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
