"""Build, open and close Spark sessions; no other module does."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

import ebbtide
from ebbtide.config import Settings, make_folder
from ebbtide.errors import EbbtideError, MissingExtraError, UsageError, first_line
from ebbtide.pipeline import Pipeline
from ebbtide.runtime import java as jvm

try:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.cloudpickle import register_pickle_by_value
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
except ImportError:
    raise MissingExtraError.for_extra("spark", "Running a pipeline") from None


_END_SECONDS = 120
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def build_session(
    app: str,
    settings: Settings,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    wanted: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session for one application: `conf` (the user's) > `wanted` (the pipeline's) > defaults.

    Under spark-submit the JVM is already running, and its master is kept.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        master = master or os.environ.get("MASTER") or "local[*]"
        if not re.match(r"local\b|spark://|yarn\b|k8s://", master):
            raise UsageError(
                f"{master!r} is not a Spark master.",
                "Use local[*], spark://host:port, yarn or k8s://…",
            )
    local = master is not None and re.fullmatch(r"local(\[.*\])?", master) is not None
    chosen = {**_defaults(settings, local=local), **(wanted or {}), **(conf or {})}
    # the time zone of Python workers, in which they print a row's times
    chosen.setdefault("spark.executorEnv.TZ", chosen["spark.sql.session.timeZone"])
    if not local:
        # a cluster's workers need no Ebbtide
        register_pickle_by_value(ebbtide)  # type: ignore[no-untyped-call]
    if not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        log = make_folder(settings.logs, "--home") / f"{app}.log"
        chosen |= _jvm_settings(chosen, log, local=local)
    logging.getLogger().addFilter(_not_from_py4j)
    builder = SparkSession.builder.appName(app)
    if master:
        builder = builder.master(master)
    builder = builder.config(map={**chosen})
    try:
        with nullcontext() if submitted else _java_home(jvm.spark_java_home()), _no_orphan():
            return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        java = getattr(error, "java_exception", None)
        cause = first_line(java.toString() if java else str(error))
        raise EbbtideError(
            f"Spark does not start at {master}: {cause}.",
            "Check --master and --conf, or type: ebbtide doctor",
        ) from None


@contextmanager
def open_session(app: str, settings: Settings, **options: Any) -> Iterator[SparkSession]:
    """A session that is closed at the end; the options are those of `build_session`."""
    spark = build_session(app, settings, **options)
    try:
        yield spark
    finally:
        close_session(spark)


@contextmanager
def open_pipeline_session(
    pipeline: Pipeline,
    settings: Settings,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A pipeline's session; raises one line if its JVM fails or dies."""
    options = {"master": master, "conf": conf, "wanted": pipeline.conf}
    with open_session(pipeline.name, settings, **options) as spark:
        try:
            yield spark
        except (Py4JError, ConnectionError) as error:
            java = getattr(error, "java_exception", None)
            cause = f"failed: {first_line(java.toString())}" if java else "died"
            log = settings.logs / f"{pipeline.name}.log"
            raise EbbtideError(f"Spark's JVM {cause}.", f"See {log}, then start again.") from None


@contextmanager
def _no_orphan() -> Iterator[None]:
    """End the JVM of an interrupted start, which pyspark would leave running."""
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if "pyspark-shell" in child.cmdline():
                        child.kill()
        raise


def _not_from_py4j(record: logging.LogRecord) -> bool:
    """Drop the tracebacks that py4j logs when the JVM dies; we raise one line instead."""
    return Path(record.pathname).parent.name != "py4j"


@contextmanager
def _java_home(home: Path) -> Iterator[None]:
    """Set JAVA_HOME for Spark's launcher only."""
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(home)
    try:
        yield
    finally:
        os.environ.pop("JAVA_HOME")
        if before is not None:
            os.environ["JAVA_HOME"] = before


def parse_conf(pairs: list[str]) -> dict[str, str]:
    """`--conf` values as Spark users write them.

    >>> parse_conf(["spark.sql.shuffle.partitions=4"])
    {'spark.sql.shuffle.partitions': '4'}
    """
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"--conf {pair} has no value.", "Write it as --conf name=value.")
    return dict(pair.split("=", 1) for pair in pairs)


def _defaults(settings: Settings, *, local: bool) -> dict[str, str]:
    defaults = {
        "spark.sql.session.timeZone": settings.timezone,
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # with the default of 50, each small commit would run 50 tasks
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.warehouse.dir": str((settings.home / "tables").absolute()),
    }
    if local:
        defaults |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        }
    return defaults


def _jvm_settings(chosen: Mapping[str, str], log: Path, *, local: bool) -> dict[str, str]:
    """What must be set when the JVM starts: our jars, and a file for its log.

    A cluster's executors must be sent the jars; a local JVM starts faster with them on its path.
    """
    name, separator = ("spark.driver.extraClassPath", ":") if local else ("spark.jars", ",")
    ours = [str(jar) for jar in jvm.jars("spark")]
    theirs = [jar for jar in chosen.get(name, "").split(separator) if jar]
    options = [
        f"-Dlog4j2.configurationFile={jvm.LOG_SETTINGS}",
        f"-Debbtide.log={log.absolute()}",
        *(jvm.archive_options("spark") if local else []),
    ]
    more = chosen.get("spark.driver.extraJavaOptions", "")
    return {
        name: separator.join(ours + theirs),
        "spark.driver.extraJavaOptions": f"{shlex.join(options)} {more}".strip(),
    }


def close_session(spark: SparkSession) -> None:
    """Stop a session and wait until its JVM has ended, so that it does not outlive us."""
    gateway = SparkContext._gateway
    with suppress(Py4JError, ConnectionError):  # the JVM may be gone already
        spark.stop()
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
        process.stdin.close()
    process.wait(_END_SECONDS)
    SparkContext._gateway = SparkContext._jvm = None
