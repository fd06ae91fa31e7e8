"""What differs on a cluster: every path is a URL, and the workers have their own Python."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from ebbtide.config import Settings, SparkFlags
from ebbtide.connectors import connector_of
from ebbtide.errors import BrokerError, EbbtideError, SetupError, UsageError, explain_import
from ebbtide.hadoop import spark_defaults, use_spark_settings
from ebbtide.locations import with_slashes
from ebbtide.pipeline import Pipeline
from ebbtide.runtime import compiler, gateway, java, versions
from ebbtide.storage import Folder

try:
    from pyspark import SparkConf, SparkContext
except ImportError as error:
    raise explain_import(error, "Running a pipeline") from None

_log = logging.getLogger("ebbtide.decoder")

MASTER, PYTHON, _ARCHIVES = "spark.master", "spark.pyspark.python", "spark.archives"
_ENVIRONMENT = "environment"
"""The folder in which Spark unpacks the environment for its workers."""
_S3 = ("s3", "s3a", "s3n")
_JARS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_HADOOP_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
Flags = TypeVar("Flags", bound=SparkFlags)


def is_submitted() -> bool:
    """Whether spark-submit started this process, so that the JVM is already running."""
    return versions.GATEWAY_PORT in os.environ


def find_master(master: str | None, *confs: Mapping[str, str]) -> str:
    """The Spark master: the one of spark-submit, else the first that is named.

    The order is `master` itself, the settings, spark-defaults.conf, MASTER, this machine.
    """
    outside = outer_settings()
    if is_submitted():
        return outside[MASTER]
    variable = {MASTER: os.environ.get("MASTER", "")}
    named = (conf[MASTER] for conf in (*confs, outside, variable) if conf.get(MASTER))
    master = master or next(named, "local[*]")
    if not re.match(r"local\b|spark://|yarn\b|k8s://", master):
        raise UsageError(
            f"{master!r} is not a Spark master.",
            "Set --master, spark.master or MASTER to local[*], spark://host:port, yarn or k8s://…",
        )
    return master


def outer_settings() -> dict[str, str]:
    """What Spark has without us: from spark-submit if it started us, else spark-defaults.conf."""
    if is_submitted():
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    return spark_defaults({"SPARK_HOME": str(versions.spark_home()), **os.environ})


def share_settings(*confs: Mapping[str, str]) -> None:
    """Reach every store as Spark will: with its settings for Hadoop, those of spark-submit too."""
    for conf in (outer_settings() if is_submitted() else {}, *confs):
        use_spark_settings(conf)


def check_start(pipeline: Pipeline, flags: Flags, locations: Mapping[str, str]) -> Flags:
    """Refuse what cannot run, before anything is started or written; returns resolved flags."""
    share_settings(pipeline.conf, flags.conf)
    require_shared(find_master(flags.master, flags.conf, pipeline.conf), locations)
    return check_spark(pipeline, flags)


def check_spark(pipeline: Pipeline, flags: Flags) -> Flags:
    """Refuse a Spark that cannot run a pipeline, wherever its data is; returns resolved flags."""
    gateway.require_no_session()
    require_connectors(pipeline, flags.conf)
    return resolve(flags, pipeline.conf)


def resolve(flags: Flags, wanted: Mapping[str, str] | None = None) -> Flags:
    """The same flags with a master, and with --archive-env as settings.

    `wanted` are the settings of the pipeline.
    """
    wanted = wanted or {}
    master, conf = find_master(flags.master, flags.conf, wanted), dict(flags.conf)
    _require_hadoop(master)
    if flags.archive_env is not None:
        given = {**outer_settings(), **wanted, **conf}
        conf |= ship_environment(Path(flags.archive_env), given, master)
    return replace(flags, master=master, conf=conf, archive_env=None)


def _require_hadoop(master: str) -> None:
    """Refuse YARN without its configuration, which Spark takes from the environment only."""
    if not re.match(r"yarn\b", master) or is_submitted():
        return
    # Spark's launcher runs this script, which may set the variable
    folder = os.environ.get("SPARK_CONF_DIR") or versions.spark_home() / "conf"
    if Path(folder, "spark-env.sh").exists() or any(map(os.environ.get, _HADOOP_FOLDERS)):
        return
    raise UsageError(
        "Spark finds YARN by Hadoop's configuration, and HADOOP_CONF_DIR is not set.",
        "Set it to the folder with yarn-site.xml: export HADOOP_CONF_DIR=/etc/hadoop/conf",
    )


def require_connectors(pipeline: Pipeline, conf: Mapping[str, str]) -> None:
    """Refuse what there is no connector for with this Spark, unless the user brings it."""
    if is_submitted():
        return
    given = {**outer_settings(), **pipeline.conf, **conf}
    words = [given.get(name, "") for name in _JARS]
    words += [jar.name for jar in java.locked_jars("spark")]
    words += [jar.name for jar in versions.spark_jars()]
    for connector in (connector_of(end.kind) for end in pipeline.endpoints):
        if not any(connector.jar in word for word in words):
            raise SetupError(
                f"{connector.label} needs the jar {connector.jar}, and Ebbtide has none for Spark "
                f"{versions.spark_row().minor} yet.",
                f"Type: {versions.INSTALL}. If you have the jar, add --conf spark.jars=FILE",
            )


def is_local(master: str) -> bool:
    """Whether a master is this machine alone.

    >>> is_local("local[*]"), is_local("spark://host:7077"), is_local("local-cluster[2,1,1024]")
    (True, False, False)
    """
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def is_on_this_machine(locations: Collection[str]) -> bool:
    """Whether these are paths of this machine, and there are some.

    >>> is_on_this_machine(["/data/a", "file:///data/b"]), is_on_this_machine(["s3a://lake/a"])
    (True, False)
    """
    words = [with_slashes(location) for location in locations]
    return bool(words) and all("://" not in w or w.startswith("file://") for w in words)


def find_locations(pipeline: Pipeline, settings: Settings, **others: str) -> dict[str, str]:
    """The paths and URLs that a pipeline reads and writes, by what lies there, and others."""
    ends = {
        "source": connector_of(pipeline.source).source.location(pipeline.source, settings),
        "sink": connector_of(pipeline.sink).sink.location(pipeline.sink, settings),
    }
    if pipeline.source.has_broken_records:
        letters = pipeline.dead_letter_sink
        ends["dead letters"] = connector_of(letters).sink.location(letters, settings)
    return {**others, **{what: location for what, location in ends.items() if location}}


def require_shared(master: str | None, locations: Mapping[str, str]) -> None:
    """Refuse a local path with a cluster: it is another folder on each of its machines.

    A `file:` URL is taken: it says that the folder is mounted on all of them.
    """
    master = find_master(master)
    if is_local(master):
        return
    for what, location in locations.items():
        if "://" not in with_slashes(location):
            raise UsageError(
                f"The {what}, {location}, is on this machine only, and Spark runs at {master}.",
                "Name a URL that every machine of the cluster reaches, such as --home "
                "s3a://bucket/folder. A folder that is mounted on all of them is file:///mnt/…",
            )


def spark_location(folder: Folder, master: str | None) -> str:
    """How Spark is told a folder: on a cluster, a bare path is one of its default filesystem.

    >>> from ebbtide.storage import open_folder
    >>> spark_location(open_folder("file:///mnt/c"), "spark://host:7077")
    'file:///mnt/c'
    """
    bare = folder.local and not is_local(find_master(master))
    return f"file://{folder.url}" if bare else folder.url


def require_broker_of_cluster(master: str | None, settings: Settings) -> None:
    """Refuse the embedded broker with a cluster: it listens on this machine only."""
    if not settings.names_kafka and not is_local(found := find_master(master)):
        raise BrokerError(
            f"No Kafka is named, and Spark runs at {found}, which does not reach the embedded "
            "broker of this machine.",
            "Add --bootstrap-servers HOST:PORT or --kafka-config FILE.",
        )


def ship_environment(file: Path, given: Mapping[str, str], master: str) -> dict[str, str]:
    """The settings that send a packed Python environment to the workers, besides those `given`."""
    if is_submitted():
        raise UsageError(
            "spark-submit has started Spark already, so --archive-env comes too late.",
            f"Give it to spark-submit: --archives {file}#{_ENVIRONMENT} --conf "
            f"{PYTHON}=./{_ENVIRONMENT}/bin/python",
        )
    if not file.is_file():
        raise UsageError(
            f"There is no file {file}.", "Make it: pip install venv-pack; venv-pack -o env.tar.gz"
        )
    if is_local(master):
        raise UsageError(
            f"--archive-env is for the workers of a cluster, and Spark runs at {master}.",
            "Leave it out, or add --master.",
        )
    archives = [f"{file.absolute()}#{_ENVIRONMENT}", given.get(_ARCHIVES)]
    return {
        _ARCHIVES: ",".join(filter(None, archives)),
        PYTHON: f"./{_ENVIRONMENT}/bin/python",
    }


def worker_python(conf: Mapping[str, str], *, local: bool) -> str:
    """The Python of the workers: the one named, else this one on this machine, `python3` on others.

    A setting is preferred to the variable, as in Spark: our Docker image has the variable, too.
    """
    default = sys.executable if local else "python3"
    return conf.get(PYTHON) or os.environ.get("PYSPARK_PYTHON") or default


def connector_jars(conf: Mapping[str, str], locations: Iterable[str]) -> list[Path]:
    """The jars to bring: ours, those of Kafka and Delta, and of S3 if a path is there."""
    given = ",".join(conf.get(name, "") for name in _JARS)
    uses_s3 = any(urlsplit(location).scheme in _S3 for location in locations)
    more = java.s3a_jars() if uses_s3 and "hadoop-aws" not in given else []
    return [*_own_jars(), *java.jars("spark"), *more]


def _own_jars() -> list[Path]:
    """The jar with our decoder; none, and a line that says so, if it cannot be had."""
    try:
        return [compiler.own_jar()]
    except EbbtideError as error:
        _log.warning("Spark decodes all records itself, which costs more. %s", error)
        return []
