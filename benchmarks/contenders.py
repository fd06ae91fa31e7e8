"""The commands of the contenders that several works share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.contest import Command, Contender, Turn
from benchmarks.environments import PEERS, flink_command, python_of
from ebbtide.runtime import java

OURS, PLAIN_SPARK = "Ebbtide", "plain Spark"
FLINK_NOTE = (
    "one JVM of the machine's JDK, parallelism 2, RocksDB, incremental checkpoints every 10 s"
)


def ours(command: str, pipeline: str, batch: int, name: str = OURS) -> Contender:
    """`ebbtide run` or `archive` of a pipeline in peers/pipelines.py, with all that is on."""

    def build(turn: Turn) -> Command:
        program = Path(sys.executable).with_name("ebbtide")
        return [
            *(program, command, f"{PEERS / 'pipelines.py'}:{pipeline}", "--available-now"),
            *("--max-offsets-per-trigger", str(batch)),
            *("--bootstrap-servers", turn.servers, "--home", turn.folder),
        ]

    return Contender(name, build, env=_topics)


def _topics(turn: Turn) -> Mapping[str, str]:
    # the installed package, not the folder of the benchmark, is what a user runs
    return {"BENCH_TOPIC": turn.topic, "BENCH_OUT": turn.out}


def plain_spark(work: str, batch: int, name: str = PLAIN_SPARK, note: str = "") -> Contender:
    """A script for the same pyspark, jars and Java."""

    def build(turn: Turn) -> Command:
        jars = ":".join(map(str, java.jars("spark")))
        return [sys.executable, PEERS / "plain_spark.py", work, *turn.places, jars, str(batch)]

    # its workers would take the python3 of the PATH
    env = {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java.spark_java_home())}
    return Contender(name, build, note, env=lambda _turn: env)


def flink(program: str, name: str, note: str = FLINK_NOTE) -> Contender:
    """A program of peers/flink."""

    def build(turn: Turn) -> Command:
        return [*flink_command(program), *turn.places]

    return Contender(name, build, note)


def in_python(environment: str, program: str, *words: str, name: str, note: str = "") -> Contender:
    """A program of peers, run by the Python of an environment of its own."""

    def build(turn: Turn) -> Command:
        return [python_of(environment), PEERS / program, *words, *turn.places]

    return Contender(name, build, note)
