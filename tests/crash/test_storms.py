"""Several rewinds and undos at once, some of them stopped or killed."""

from __future__ import annotations

import os
import subprocess
import sys


def test_eight_at_once_change_a_checkpoint_once_or_say_why_not() -> None:
    storms = os.environ.get("EBBTIDE_STORMS", "3")
    command = [sys.executable, "-m", "tests.storms", storms]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
