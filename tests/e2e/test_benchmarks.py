"""The benchmarks run and print ratios; how large those are is for a person to judge."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import QUICK_JAVA, together


def short_run(name: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--quick"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **QUICK_JAVA},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"\d\.\d+ × ", answer.stdout)


def test_a_short_run_of_each() -> None:
    together(
        lambda: short_run("checkpoint"),
        lambda: short_run("generator"),
        lambda: short_run("clean-stream"),
        lambda: short_run("history"),
        lambda: short_run("attach"),
        lambda: short_run("page"),
    )
