"""What `scripts/versions` tests beside the systems: what a Spark cannot do is refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide.checkpoint import Owner, read_checkpoint
from ebbtide.config import Settings
from ebbtide.history import kept_entries
from ebbtide.runtime import versions
from ebbtide.runtime.session import open_session
from ebbtide.runtime.versions import NEEDS, STATE_READER, SparkVersion
from tests import json_records
from tests.compat.kept import FIXTURES, unpack
from tests.conftest import Cli
from tests.decoding import compare

_JOB = """
from ebbtide import Console, Kafka, Pipeline

pipeline = Pipeline(
    "newer",
    source=Kafka("visits", schema="visit_id INT, event_time TIMESTAMP"),
    event_time="event_time",
    transform=lambda rows: rows.groupBy("visit_id").{operator}(),
    sink=Console(),
)
"""

_PLAIN = """
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import ebbtide

folder = Path(__file__).parent


def build(spark):
    rows = spark.readStream.schema("at TIMESTAMP").option("maxFilesPerTrigger", 1)
    rows = rows.json(f"{folder}/in").withWatermark("at", "1 minute")
    counts = ebbtide.observe(rows.groupBy(F.window("at", "1 minute")).count())
    return counts.writeStream.format("parquet").option("path", f"{folder}/out")


if __name__ == "__main__":
    conf = {"spark.sql.shuffle.partitions": 2, "spark.sql.session.timeZone": "UTC"}
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    ebbtide.attach(spark)
    writer = build(spark).option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
"""


def lacks(what: str) -> bool:
    return versions.spark_version() < SparkVersion.parse(NEEDS[what])


def test_the_doctor_finds_nothing_wrong(cli: Cli, tmp_path: Path) -> None:
    answer = cli("doctor", "--home", tmp_path, COLUMNS="200")
    assert answer.returncode == 0, answer.stdout
    assert f"pyspark {versions.spark_version()}" in answer.stdout


@pytest.mark.parametrize("operator", ["transformWithStateInPandas", "transformWithState"])
def test_an_operator_of_a_newer_spark_is_refused(cli: Cli, tmp_path: Path, operator: str) -> None:
    job = tmp_path / "job.py"
    job.write_text(_JOB.format(operator=operator), "utf-8")
    answer = cli("run", f"{job}:pipeline", "--available-now", "--home", tmp_path / "home")
    cli("broker", "stop", "--home", tmp_path / "home")
    assert answer.returncode != 0
    refusal = f"{operator} needs Spark {NEEDS[operator]} or newer, and this is pyspark"
    assert (refusal in answer.stderr) == lacks(operator), answer.stderr


def test_the_decoder_reads_records_as_this_spark_does(tmp_path: Path) -> None:
    records = list(json_records.records(3, 10_000))
    with open_session("decoder", Settings(home=tmp_path), master="local[2]") as spark:
        assert compare(spark, records, label=spark.version) > 5_000


def test_state_is_shown_or_refused(cli: Cli, tmp_path: Path) -> None:
    version = str(versions.spark_version())
    kept = FIXTURES / version / "changelog-aggregation.tar.gz"
    checkpoint = unpack(kept, tmp_path / "checkpoint")
    answer = cli("state", "show", checkpoint, "--home", tmp_path / "home")
    if lacks(STATE_READER):
        assert answer.returncode == 1
        assert "(ebbtide state) needs Spark 4.0 or newer, and this is pyspark" in answer.stderr
    else:
        assert answer.returncode == 0, answer.stderr


def test_a_plain_query_is_followed_and_replayed(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        file = tmp_path / "in" / f"{number}.json"
        file.write_text(f'{{"at":"2025-09-04T07:0{number}:00Z"}}')
        os.utime(file, (1_756_969_200 + number,) * 2)
    job = tmp_path / "job.py"
    job.write_text(_PLAIN)
    command = [sys.executable, str(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    checkpoint = read_checkpoint(str(tmp_path / "checkpoint"))
    entries = kept_entries(checkpoint)
    assert entries[1].event_times == ("2025-09-04T07:01:00.000000Z", "2025-09-04T07:01:00.000999Z")
    written = sum(entry.output.rows for entry in entries.values() if entry.output)
    assert list(entries) == [batch.id for batch in checkpoint.logs.batches if batch.committed]
    # Spark 3.5 does not tell what a batch without records writes
    assert written == 2 - lacks("transformWithStateInPandas"), "the watermark has passed them"
    owner = Owner.read(checkpoint.folder)
    sink = owner.sink_of(checkpoint.folder)
    assert sink is not None
    assert (sink["path"], entries[0].output_mode) == (str(tmp_path / "out"), "append")
    # new code beside it: a window counts twice
    fixed = tmp_path / "fixed.py"
    fixed.write_text(_PLAIN.replace(".count()", '.agg((F.count("*") * 2).alias("count"))'))
    where = ("--checkpoint", checkpoint.location, "--home", tmp_path / "home", "-o", "json")
    for code, verdicts in ((job, {"identical"}), (fixed, {"identical", "differs"})):
        words = ("replay", f"{code}:build", *where, "--to-scratch", "--from-batch", "1")
        answer = cli(*words)
        assert answer.returncode == (code == fixed), answer.stderr
        replayed = json.loads(answer.stdout)["verdicts"]
        assert {verdict["verdict"] for verdict in replayed} == verdicts
        assert sum(verdict["new_rows"] for verdict in replayed) == 2
