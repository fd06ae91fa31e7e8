"""A Spark Connect server of the installed pyspark, as a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide.local.broker import free_port
from ebbtide.runtime.java import spark_java_home
from ebbtide.runtime.versions import pyspark_home
from tests.conftest import SHORT_LIVED
from tests.servers import keeper

_HOST = "127.0.0.1"
_START_SECONDS = 240
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def spark_connect(folder: Path) -> Iterator[str]:
    """The address of a running server, whose log and files are in a folder."""
    port = free_port()
    settings = {
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": _HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "700m",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    words = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    submit = [
        str(pyspark_home() / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        "--class",
        _SERVER,
    ]
    own = {
        "SPARK_HOME": str(pyspark_home()),
        "JAVA_HOME": str(spark_java_home()),
        "JAVA_TOOL_OPTIONS": SHORT_LIVED,
        "SPARK_LOCAL_IP": _HOST,
        "PYSPARK_PYTHON": sys.executable,
    }
    with (folder / "connect.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, keeper.__file__, *submit, *words, "spark-internal"],
            cwd=folder,
            env={**os.environ, **own},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(process, port, folder)
        yield f"sc://{_HOST}:{port}"
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _answers(port):
        log = (folder / "connect.log").read_text()
        assert process.poll() is None, log[-4000:]
        assert time.monotonic() < deadline, log[-4000:]
        time.sleep(0.1)


def _answers(port: int) -> bool:
    try:
        socket.create_connection((_HOST, port), 1).close()
    except OSError:
        return False
    return True
