"""What a session is started with, seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys, psutil
from pathlib import Path
from ebbtide.config import Settings
from ebbtide.runtime.session import open_session

secret = {"spark.hadoop.fs.azure.account.key.lake": "c2VjcmV0-of-lake"}
odd = {"spark.odd": "a\\\\b=c\\nd"}


def command_line(process):
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # it has ended: a zombie has no command line
        return []


options = {"master": "local-cluster[1,1,1024]", "wanted": odd, "conf": secret}
with open_session("tests", Settings(home=Path(sys.argv[1])), **options) as spark:
    assert spark.range(10).count() == 10  # on an executor, a process of its own
    shown = list(filter(None, map(command_line, psutil.Process().children(recursive=True))))
    print(len(shown) > 1, "c2VjcmV0-of-lake" in str(shown), os.listdir(os.environ["TMPDIR"]))
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    print(hadoop.get("fs.azure.account.key.lake"), spark.conf.get("spark.odd").encode())
    names = "spark.sql.session.timeZone", "spark.sql.shuffle.partitions", "spark.executorEnv.TZ"
    print(*map(spark.conf.get, names), spark.sparkContext.appName)
"""


def test_no_process_list_shows_a_setting_and_the_users_defaults_win(tmp_path: Path) -> None:
    """pyspark would put every setting on the command line, and ours over spark-defaults.conf."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.session.timeZone Europe/Warsaw\nspark.sql.shuffle.partitions=3\nspark.app.name x"
    )
    places = {"SPARK_CONF_DIR": str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "home")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **places},
    )
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("True False")
    assert ".conf" not in lines[0]
    assert lines[1] == r"c2VjcmV0-of-lake b'a\\b=c\nd'"
    assert lines[2] == "Europe/Warsaw 3 Europe/Warsaw tests"
