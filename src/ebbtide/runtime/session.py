"""Build, open and close Spark sessions; no other module does."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import psutil

from ebbtide.config import Settings, make_folder
from ebbtide.errors import EbbtideError, UsageError, explain_import, first_line
from ebbtide.pipeline import Pipeline
from ebbtide.runtime import cluster, gateway, profiles, versions
from ebbtide.runtime import java as jvm
from ebbtide.runtime.worker_modules import send_modules

try:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
except ImportError as error:
    raise explain_import(error, "Running a pipeline") from None


_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # with the default of 50, each small commit would run 50 tasks
    "spark.databricks.delta.snapshotPartitions": "2",
}
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_LESS_COMPILING = (
    *("-XX:Tier4InvocationThreshold=50000", "-XX:Tier4MinInvocationThreshold=6000"),
    *("-XX:Tier4CompileThreshold=150000", "-XX:Tier4BackEdgeThreshold=400000"),
)
"""Ten times Java's defaults: its second compiler leaves alone what only the start runs often."""
_ONE_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""With one compiler, Java reserves only 48 MB for its code, which some queries fill."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_FEW = 1_500_000
_COLLECTOR = "-XX:+UseParallelGC"
"""On one machine it takes less CPU time than Java's default, G1."""
_CHOICE_OF_COLLECTOR = re.compile(r"-XX:[+]Use\w+GC\b")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def build_session(
    app: str,
    settings: Settings,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    wanted: Mapping[str, str] | None = None,
    transform: Callable[..., Any] | None = None,
    locations: Iterable[str] = (),
    start_jvm: Callable[[Mapping[str, str]], None] | None = None,
) -> SparkSession:
    """A session for one application, in whose settings the first of these that has one decides.

    `conf` (the user's), `wanted` (the pipeline's), spark-submit or spark-defaults.conf, ours. Under
    spark-submit the JVM is already running, and its master is kept. The workers of a cluster are
    sent the modules of `transform`. `locations` are the paths and URLs that the session must reach.
    `start_jvm` connects pyspark to a JVM with such settings, by default to one of our own.
    """
    gateway.require_no_session()
    conf, wanted, outside = conf or {}, wanted or {}, cluster.outer_settings()
    submitted, master = cluster.is_submitted(), cluster.find_master(master, conf, wanted)
    local = cluster.is_local(master)
    ours = _defaults(settings, local=local)
    chosen = {**ours, **outside, "spark.app.name": app, **wanted, **conf}
    # the time zone of Python workers, in which they print a row's times
    chosen.setdefault("spark.executorEnv.TZ", chosen["spark.sql.session.timeZone"])
    if not local:
        send_modules(transform)
    environment: dict[str, str] = {}
    if not submitted:
        log = make_folder(settings.logs, "--home") / f"{app}.log"
        chosen |= _jvm_settings(chosen, log, cluster.connector_jars(chosen, locations), local=local)
        environment = _environment(chosen, local=local)
    chosen[cluster.MASTER] = master
    logging.getLogger().addFilter(_not_from_py4j)
    try:
        with _set_environment(environment), _no_orphan():
            if not submitted:
                gateway.end_unused_jvm()
                (start_jvm or start_own_jvm)(chosen)
            spark = SparkSession.builder.config(map={**chosen}).getOrCreate()
            gateway.note_ours(spark.sparkContext)
            return spark
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
    locations: Collection[str] = (),
) -> Iterator[SparkSession]:
    """A pipeline's session; raises one line if its JVM fails or dies."""
    with open_safe_session(
        pipeline.name,
        settings,
        master=master,
        conf=conf,
        wanted=profiles.session_settings(pipeline),
        transform=pipeline.transform,
        locations=locations,
    ) as spark:
        if cluster.is_on_this_machine(locations):
            _write_files_directly(spark)
        yield spark


def compile_less(pipeline: Pipeline, waiting: int | None) -> Pipeline:
    """The pipeline with a flag for Java if so few records are waiting that the run soon ends.

    Java's second compiler takes 2 to 6 s of CPU time, which pays off after millions of records.
    """
    if waiting is None or waiting > _FEW or cluster.is_submitted():
        return pipeline
    settings = {**cluster.outer_settings(), **pipeline.conf}
    flags = f"{_ONE_COMPILER} {settings.get(_JAVA_OPTIONS, '')}".strip()
    return replace(pipeline, conf={**pipeline.conf, _JAVA_OPTIONS: flags})


def _write_files_directly(spark: SparkSession) -> None:
    """Have Spark write a local checkpoint without starting processes (docs/adr/029).

    By default it asks the programs `readlink` and `chmod` about each file of a batch, about forty
    times. Its other file manager replaces a file as safely, on a local disk.
    """
    if spark.conf.get(_FILE_MANAGER, "") == "":
        loader = spark._jsparkSession.getClass().getClassLoader()
        for package in ("streaming.checkpointing", "streaming"):  # of Spark 4.1, and older ones
            name = f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
            with suppress(Py4JError):
                loader.loadClass(name)
                spark.conf.set(_FILE_MANAGER, name)
                return


@contextmanager
def open_safe_session(app: str, settings: Settings, **options: Any) -> Iterator[SparkSession]:
    """A session as by `open_session`; raises one line if its JVM fails or dies."""
    with open_session(app, settings, **options) as spark:
        try:
            yield spark
        except (Py4JError, ConnectionError) as error:
            java = getattr(error, "java_exception", None)
            # of a call that it does not have, it says so in the message; if it is gone, nothing
            said = java.toString() if java else str(error).partition("Trace:\n")[2]
            cause = f"failed: {first_line(said)}" if said else "died"
            log = settings.logs / f"{app}.log"
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


def start_own_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM with settings that no process list shows: in a file that only we can read.

    pyspark itself would put each of them, passwords too, on the command line.
    """
    with NamedTemporaryFile("w", encoding="utf-8", prefix="ebbtide-", suffix=".conf") as file:
        # Spark reads this file instead of its spark-defaults.conf, whose settings are in `conf`
        file.write(to_properties(conf))
        file.flush()
        words = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        words = f"--properties-file {shlex.quote(file.name)} {words}"
        with _set_environment({"PYSPARK_SUBMIT_ARGS": words}):
            SparkContext._ensure_initialized()


def attach_jvm(port: int, secret: str) -> None:
    """Connect pyspark to a JVM that another process keeps, as it does under spark-submit."""
    with _set_environment({versions.GATEWAY_PORT: str(port), "PYSPARK_GATEWAY_SECRET": secret}):
        SparkContext._ensure_initialized()


def detach_jvm() -> None:
    """Leave a JVM that `attach_jvm` has connected to, once its session is closed."""
    gateway.leave_jvm()


def to_properties(conf: Mapping[str, str]) -> str:
    r"""Settings as Java reads them from a file.

    >>> to_properties({"spark.app.name": "a\\b"})
    'spark.app.name=a\\\\b\n'
    """
    escapes = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})
    return "".join(f"{name}={value.translate(escapes)}\n" for name, value in conf.items())


def _environment(conf: Mapping[str, str], *, local: bool) -> dict[str, str]:
    """What Spark's launcher takes from the environment; the user's own Pythons stay."""
    defaults = {
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if local else {}),
    }
    missing = {name: value for name, value in defaults.items() if name not in os.environ}
    python = cluster.worker_python(conf, local=local)
    return {**missing, "PYSPARK_PYTHON": python, "JAVA_HOME": str(jvm.spark_java_home())}


@contextmanager
def _set_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for Spark's launcher only: the next session may have another master."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def parse_conf(pairs: list[str]) -> dict[str, str]:
    """`--conf` values as Spark users write them.

    >>> parse_conf(["spark.sql.shuffle.partitions=4"])
    {'spark.sql.shuffle.partitions': '4'}
    """
    for pair in pairs:
        if "=" not in pair:
            name = pair.split(" ")[0]  # the rest may be a secret
            raise UsageError(f"--conf {name} has no value.", "Write it as --conf name=value.")
    return dict(pair.split("=", 1) for pair in pairs)


def _defaults(settings: Settings, *, local: bool) -> dict[str, str]:
    defaults = {
        "spark.sql.session.timeZone": settings.timezone,
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.ui.showConsoleProgress": "false",
        # Spark's own, and what else in a Kafka connection is secret: its plans and logs hide it
        "spark.redaction.regex": (
            "(?i)secret|password|passphrase|token|access[.]?key|jaas|keystore[.]key|user[.]info"
            "|account[.]key|[.]sas[.]|private[.]key|encryption[.]key"
        ),
        **(_DELTA if "Delta" in jvm.connectors() else {}),
    }
    if local:
        defaults |= {
            "spark.sql.warehouse.dir": str((settings.home / "tables").absolute()),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.python.daemon.module": "ebbtide.runtime.worker_daemon",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        }
    return defaults


def _jvm_settings(
    chosen: Mapping[str, str], log: Path, jars: Iterable[Path], *, local: bool
) -> dict[str, str]:
    """What must be set when the JVM starts: our jars, and a file for its log.

    A cluster's executors must be sent the jars; a local JVM starts faster with them on its path.
    """
    name, separator = ("spark.driver.extraClassPath", ":") if local else ("spark.jars", ",")
    ours = [str(jar) for jar in jars]
    theirs = [jar for jar in chosen.get(name, "").split(separator) if jar]
    options = [
        f"-Dlog4j2.configurationFile={jvm.LOG_SETTINGS}",
        f"-Debbtide.log={log.absolute()}",
        *(jvm.archive_options("spark") if local else []),
    ]
    more = chosen.get(_JAVA_OPTIONS, "")
    options += _java_flags(chosen) if local else []
    return {
        name: separator.join(ours + theirs),
        _JAVA_OPTIONS: f"{shlex.join(options)} {more}".strip(),
    }


def _java_flags(chosen: Mapping[str, str]) -> list[str]:
    """How a local JVM compiles and collects; Java refuses a second collector besides the user's."""
    names = (_JAVA_OPTIONS, "spark.driver.defaultJavaOptions")
    theirs = [chosen.get(name, "") for name in names]
    theirs += [os.environ.get(name, "") for name in (*jvm.JAVA_VARIABLES, "SPARK_SUBMIT_OPTS")]
    has_collector = any(map(_CHOICE_OF_COLLECTOR.search, theirs))
    return [*_LESS_COMPILING, *([] if has_collector else [_COLLECTOR])]


def close_session(spark: SparkSession) -> None:
    """Stop a session and wait until its JVM has ended, so that it does not outlive us."""
    with suppress(Py4JError, ConnectionError):  # the JVM may be gone already
        spark.stop()
    gateway.end_jvm()
