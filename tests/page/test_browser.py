"""Without a browser there is one clear line, and no test is passed over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import NO_BROWSER, VARIABLE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command", [["-m", "tests.browser"], ["-m", "pytest", "-q", "tests/page/test_speed.py"]]
)
def test_no_browser(command: list[str]) -> None:
    answer = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, VARIABLE: str(ROOT / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert NO_BROWSER in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr
