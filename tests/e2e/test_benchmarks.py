"""The benchmarks run and print ratios; how large those are is for a person to judge."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["checkpoint", "generator", "clean-stream"])
def test_a_short_run(name: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--quick"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"\d\.\d\d × ", answer.stdout)
