"""A session that the user has opened in this process stays theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import ebbtide
from ebbtide.config import Settings

home = Path(sys.argv[1])
pipeline = ebbtide.Pipeline(
    "copy",
    source=ebbtide.Files(str(home / "in"), "json", schema="at TIMESTAMP"),
    event_time="at",
    transform=lambda rows: rows,
    sink=ebbtide.Files(str(home / "out"), "json"),
)
run = lambda: ebbtide.run(pipeline, settings=Settings(home=home / "home"), available_now=True)
theirs = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    run()
except ebbtide.EbbtideError as error:
    print(error)
print(theirs.range(3).count(), (home / "home").exists())
theirs.stop()
print(run().rows)
"""


def test_a_run_waits_until_the_users_session_is_stopped(tmp_path: Path) -> None:
    """Its JVM, which outlives it, has none of our jars."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.json").write_text('{"at": "2025-09-04T07:00:00"}\n')
    program = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    answer = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    assert answer.returncode == 0, answer.stderr
    refused, *rest = answer.stdout.splitlines()
    assert refused == (
        "This process has a Spark session already. "
        "Stop it first with spark.stop(), or run Ebbtide in a process of its own."
    )
    assert rest == ["3 False", "1"]
