"""One cluster for all tests: Spark, a secured Kafka and S3, and both ways to start a job there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ebbtide.config import Settings, load_settings
from ebbtide.local import free_port
from ebbtide.runtime import java, submit
from ebbtide.systems import harness
from tests.conftest import SHORT_LIVED, Cli
from tests.e2e.conftest import _delete_topics
from tests.servers import s3
from tests.servers.kafka import SecuredKafka, secured_kafka
from tests.servers.spark import SparkCluster, spark_cluster
from tests.servers.store import Store

EVERYTHING = os.environ.get("EBBTIDE_CLUSTER") == "all"
"""Whether this is `make cluster-test`; otherwise a short version of it."""
MASTER, SUBMIT = "--master", "spark-submit"
_WITH_SPARK = ("run", "archive", "reprocess", "retry", "replay")


@dataclass(frozen=True)
class Ground:
    """What the tests run on."""

    spark: SparkCluster
    kafka: SecuredKafka
    s3: Store
    conf: Path
    """The folder with the settings of every application, as administrators provide it."""

    @property
    def environment(self) -> dict[str, str]:
        """What users set in their shell."""
        return {
            **self.s3.environment,
            # spark-submit looks for its Spark with the first python3
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "EBBTIDE_KAFKA_CONFIG": str(self.kafka.clients["scram"]),
            "SPARK_CONF_DIR": str(self.conf),
            "JAVA_TOOL_OPTIONS": SHORT_LIVED,
        }

    def command(self, way: str, verb: str, *arguments: str) -> list[str]:
        """`ebbtide …`, on the cluster if it starts Spark."""
        words = [verb, *arguments]
        if verb not in _WITH_SPARK:
            return [sys.executable, "-m", "ebbtide", *words]
        if way == MASTER:
            where = ("--master", self.spark.url, "--archive-env", str(self.spark.environment))
            return [sys.executable, "-m", "ebbtide", *words, *where]
        log = self.spark.folder / f"submit-{free_port()}.log"
        quiet = f"-Dlog4j2.configurationFile={java.LOG_SETTINGS} -Debbtide.log={log}"
        spark_submit = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
        assert spark_submit is not None
        return [
            *(spark_submit, "--master", self.spark.url, "--driver-java-options", quiet),
            *("--conf", f"spark.pyspark.driver.python={self._driver_python()}"),
            *(*submit.submit_words(s3a=True), *words),
        ]

    def _driver_python(self) -> Path:
        """Spark adds the driver's stderr to its stdout; here it goes to spark-submit's stderr."""
        script = self.conf / "driver-python"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@" 2>>/proc/$PPID/fd/2\n')
        script.chmod(0o755)
        return script


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("cluster")
    executors, brokers = (2, 3) if EVERYTHING else (1, 1)
    with ExitStack() as servers, ThreadPoolExecutor() as pool:
        started = [
            pool.submit(servers.enter_context, server)
            for server in (
                spark_cluster(folder / "spark", executors),
                secured_kafka(folder / "kafka", brokers),
                s3.serve(),
            )
        ]
        spark: Any
        kafka: Any
        store: Any
        spark, kafka, store = (future.result() for future in started)
        conf = folder / "conf"
        conf.mkdir()
        settings = {**spark.settings, **store.spark}
        lines = (f"{name} {value}\n" for name, value in settings.items())
        (conf / "spark-defaults.conf").write_text("".join(lines))
        yield Ground(spark, kafka, store, conf)


@pytest.fixture(params=[MASTER, SUBMIT] if EVERYTHING else [MASTER])
def way(request: pytest.FixtureRequest) -> str:
    """How jobs are started."""
    return str(request.param)


@pytest.fixture
def home(
    ground: Ground, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    """A home in a bucket of its own, in which demos run their jobs on the cluster."""
    monkeypatch.chdir(tmp_path)  # for the logs
    for name, value in ground.environment.items():
        monkeypatch.setenv(name, value)
    url = ground.s3.new_root().replace("s3://", "s3a://")
    settings = replace(load_settings(home=f"{url}/home"), home=tmp_path)
    monkeypatch.setattr(harness, "_command", lambda _, *words: ground.command(way, *words))
    monkeypatch.setattr(harness.Job, "stop", _stop)
    monkeypatch.setattr(harness, "_WAIT_SECONDS", 300)
    monkeypatch.setattr(harness, "_COMMAND_SECONDS", 600)
    monkeypatch.setattr(harness, "open_stage", lambda *_: nullcontext(settings))
    yield settings
    _delete_topics(settings.kafka)


def _stop(job: harness.Job) -> int:
    """Ask for a stop: the driver's Python, which spark-submit has started as its child."""
    family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    driver = next(each for each in family if "python" in each.name())
    driver.send_signal(signal.SIGTERM)
    return job.wait()


@pytest.fixture
def ebbtide(ground: Ground, way: str, home: Settings) -> Cli:  # noqa: ARG001 - its environment
    """Run `ebbtide` as a user does, on the cluster if it starts Spark."""

    def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = ground.command(way, *words)
        return subprocess.run(
            command, capture_output=True, text=True, timeout=400, check=False, cwd=cwd
        )

    return run
