"""Settings in, a SparkSession out: the only place that builds one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ebbtide import jvm
from ebbtide.config import Settings, make_folder
from ebbtide.errors import EbbtideError, MissingExtraError, UsageError

try:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession
except ImportError:
    raise MissingExtraError.for_extra("spark", "Running a pipeline") from None

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

    Under spark-submit the JVM is there already and its master stays.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        master = master or os.environ.get("MASTER") or "local[*]"
    local = master is not None and master.startswith("local")
    chosen = {
        **_defaults(settings),
        **(_local_defaults() if local else {}),
        **(wanted or {}),
        **(conf or {}),
    }
    if not submitted:
        os.environ["JAVA_HOME"] = str(jvm.spark_java_home())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen |= _jvm_settings(chosen, make_folder(settings.logs, "--home") / f"{app}.log")
    builder = SparkSession.builder.appName(app)
    if master:
        builder = builder.master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise EbbtideError(
            f"Spark does not start: {str(error).splitlines()[0]}.", "Type: ebbtide doctor"
        ) from None


def parse_conf(pairs: list[str]) -> dict[str, str]:
    """`--conf` values as Spark users write them.

    >>> parse_conf(["spark.sql.shuffle.partitions=4"])
    {'spark.sql.shuffle.partitions': '4'}
    """
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"--conf {pair} has no value.", "Write it as --conf name=value.")
    return dict(pair.split("=", 1) for pair in pairs)


def _defaults(settings: Settings) -> dict[str, str]:
    return {
        "spark.sql.session.timeZone": settings.timezone,
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # 50 by default: each small commit would pay for 50 tasks
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.warehouse.dir": str((settings.home / "tables").absolute()),
    }


def _local_defaults() -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }


def _jvm_settings(chosen: Mapping[str, str], log: Path) -> dict[str, str]:
    """What only the start of the JVM can set: our jars, and its own words into a file."""
    ours = [str(jar) for jar in jvm.jars("spark")]
    theirs = [jar for jar in chosen.get("spark.jars", "").split(",") if jar]
    options = (
        f'-Dlog4j2.configurationFile="{jvm.LOG_SETTINGS}" -Debbtide.log="{log.absolute()}" '
        f"{chosen.get('spark.driver.extraJavaOptions', '')}"
    )
    return {
        "spark.jars": ",".join(ours + theirs),
        "spark.driver.extraJavaOptions": options.strip(),
    }
