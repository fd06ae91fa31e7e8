"""Executors in JVMs of their own have our jar, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]
_PROGRAM = """
import sys
from pathlib import Path

from ebbtide.config import Settings
from ebbtide.runtime.session import open_session
from tests import json_records
from tests.decoding import compare

settings = Settings(home=Path(sys.argv[1]))
with open_session("decoder", settings, master="local-cluster[1,2,1024]") as spark:
    print(compare(spark, list(json_records.records(5, 2_000)), label="on executors"))
"""


def test_executors_decode_with_our_class(tmp_path: Path) -> None:
    """`compare` fails if there is no reader, and if it reads anything else than Spark does."""
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "home")],
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 500
