"""`ebbtide check` as a process, on a checkpoint that Spark wrote."""

from __future__ import annotations

import json
from pathlib import Path

from tests.compat.kept import FIXTURES, unpack
from tests.conftest import Cli

_JOB = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()  # as scripts do when they are imported


def build(spark):
    return spark.readStream.format("rate").load()


if __name__ == "__main__":
    build(spark).writeStream.start().awaitTermination()
"""


def test_the_first_deploy_has_no_checkpoint_yet(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(_JOB, "utf-8")
    words = ("check", "absent", "job.py:build", "-o", "json")
    answer = cli(*words, cwd=tmp_path)
    assert answer.returncode == 1
    answer = cli(*words, "--allow-missing", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["parts"][0]["part"] == "checkpoint"
    assert "There is no checkpoint at absent yet. Spark " in answer.stderr
    assert not (tmp_path / "absent").exists()


def test_a_function_that_stops_the_session(cli: Cli, tmp_path: Path) -> None:
    unpack(FIXTURES / "4.2.0" / "hdfs-windowed.tar.gz", tmp_path / "checkpoint")
    job = "def build(spark):\n    rows = spark.readStream.format('rate').load()\n"
    (tmp_path / "job.py").write_text(f"{job}    spark.stop()\n    return rows\n", "utf-8")
    answer = cli("check", "checkpoint", "job.py:build", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.splitlines()[-1].startswith("Error: build(spark) stops the session.")
    assert "Traceback" not in answer.stderr


def test_another_query_exits_1_and_says_why(cli: Cli, tmp_path: Path) -> None:
    unpack(FIXTURES / "4.2.0" / "hdfs-windowed.tar.gz", tmp_path / "checkpoint")
    (tmp_path / "job.py").write_text(_JOB, "utf-8")
    before = sorted((tmp_path / "checkpoint").rglob("*"))
    answer = cli("check", "checkpoint", "job.py:build", "-o", "json", cwd=tmp_path)
    assert answer.returncode == 1, answer.stderr
    report = json.loads(answer.stdout)
    assert not report["can_go_on"]
    assert (report["parts"][0]["part"], report["parts"][0]["verdict"]) == ("source 0", "breaks")
    assert "The query cannot go on with batch " in answer.stderr
    assert sorted((tmp_path / "checkpoint").rglob("*")) == before
