"""Run somebody's program, and attach to every Spark session that it starts."""

from __future__ import annotations

import argparse
import logging
import os
import runpy
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.attaching.attachment import attach, reported
from ebbtide.errors import EbbtideError
from ebbtide.runtime import java

_log = logging.getLogger("ebbtide.attach")
_USAGE = "python -m ebbtide.attach [--metrics-port N] [--metrics-host HOST] job.py [ARGUMENT ...]"


def run_program(arguments: list[str]) -> None:
    """Run a program as `python job.py` does, with one line added: `ebbtide.attach(spark)`."""
    parser = argparse.ArgumentParser(
        "ebbtide.attach",
        usage=_USAGE,
        description="Run a PySpark program, and keep the history, the lease and the metrics of "
        "its streaming queries.",
        epilog="With spark-submit: spark-submit $(python -m ebbtide.attach --path) job.py",
    )
    parser.add_argument("--metrics-port", type=int, help="serve Prometheus metrics on this port")
    parser.add_argument("--metrics-host", help="address of the metrics (default: 127.0.0.1)")
    parser.add_argument("--path", action="store_true", help="print the file for spark-submit")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.path:
        sys.stdout.write(f"{Path(__file__).parents[1] / 'attach.py'}\n")
        return
    if not given.program or not Path(given.program[0]).is_file():
        what = f"There is no file {given.program[0]}" if given.program else "Name a program"
        parser.error(f"{what}. Example: python -m ebbtide.attach job.py")
    _find_java()
    attach_to_sessions(metrics_port=given.metrics_port, metrics_host=given.metrics_host)
    script = given.program[0]
    sys.argv = given.program
    sys.path[0] = str(Path(script).resolve().parent)  # as Python itself does
    runpy.run_path(script, run_name="__main__")


def _find_java() -> None:
    """Where Spark would find no Java, name the one that Ebbtide uses."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        with suppress(EbbtideError, OSError):  # Spark says that it finds none
            os.environ["JAVA_HOME"] = str(java.spark_java_home())


def attach_to_sessions(**flags: Any) -> None:
    """Attach to each session that this process gets from now on."""
    for name in ("getOrCreate", "create"):  # the second is for Spark Connect
        setattr(SparkSession.Builder, name, _attaching(getattr(SparkSession.Builder, name), flags))


def _attaching(
    create: Callable[..., SparkSession], flags: dict[str, Any]
) -> Callable[..., SparkSession]:
    @wraps(create)
    def create_and_attach(builder: SparkSession.Builder) -> SparkSession:
        session = create(builder)
        with reported(_log.warning, "The queries of this program are not followed"):
            attach(session, **flags)
        return session

    return create_and_attach
