"""Which Spark is installed, what each version runs with, and what needs which version."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ebbtide.errors import TESTED_SPARK, MissingExtraError, SetupError

if TYPE_CHECKING:
    from importlib.abc import ResourceLoader

TESTED = TESTED_SPARK
"""The minor version of our own environment."""
INSTALL = f"pip install 'pyspark=={TESTED}.*'"
GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
"""The variable that spark-submit sets when it has started the JVM."""
_JAR_FOLDERS = ("jars", "assembly/target/scala-*/jars")
"""Where a Spark has its jars: a release, and a build from source."""


@dataclass(frozen=True, order=True)
class SparkVersion:
    """A version of Spark; versions compare as numbers.

    >>> SparkVersion.parse("4.10.0") > SparkVersion.parse("4.2.1")
    True
    >>> SparkVersion.parse("4.2.1.dev0").minor
    '4.2'
    """

    numbers: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> SparkVersion:
        """The version that a text begins with."""
        match = re.match(r"\d+(\.\d+)+", text)
        if match is None:
            raise SetupError(f"{text!r} is not a version of Spark.", "Write it as 4.2.0.")
        return cls(tuple(map(int, match[0].split("."))))

    @property
    def minor(self) -> str:
        """Its first two numbers: what jars, Java and Python depend on."""
        return ".".join(map(str, self.numbers[:2]))

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers))


@dataclass(frozen=True)
class SparkRow:
    """What one minor version of Spark runs with (docs/production/spark-versions.md)."""

    minor: str
    python: tuple[str, str]
    """The oldest and the newest that Ebbtide and this Spark both run on."""
    java: tuple[int, ...]
    scala: str
    imports_distutils: bool = False
    """Python has none from 3.12 on; setuptools brings it."""

    def runs_on(self, python: str) -> bool:
        """Whether this Spark runs on a version of Python.

        >>> ROWS["4.3"].runs_on("3.10.13"), ROWS["4.3"].runs_on("3.11.7")
        (False, True)
        """
        versions = (*self.python, python)
        oldest, newest, this = (tuple(map(int, text.split(".")[:2])) for text in versions)
        return oldest <= this <= newest


ROWS = {
    row.minor: row
    for row in (
        SparkRow("3.5", ("3.10", "3.11"), (17,), "2.12", imports_distutils=True),
        SparkRow("4.0", ("3.10", "3.13"), (17, 21), "2.13"),
        SparkRow("4.1", ("3.10", "3.13"), (17, 21), "2.13"),
        SparkRow("4.2", ("3.10", "3.13"), (17, 21, 25), "2.13"),
        SparkRow("4.3", ("3.11", "3.13"), (17, 21), "2.13"),
    )
}
"""The versions that Ebbtide runs on, oldest first. Their jars are in jars.xml."""


REAL_TIME = "4.2"
"""The version with which real-time mode is tried."""
STATE_READER = "Spark's state reader (ebbtide state)"
STATE_READER_V2 = "Spark's state reader for checkpoint format version 2"
NEEDS = {
    STATE_READER: "4.0",
    STATE_READER_V2: "4.1",
    # what a transform may call
    "transformWithStateInPandas": "4.0",
    "transformWithState": "4.1",
}
"""What needs which version of Spark; everything else works from the oldest one on."""


def require(what: str) -> None:
    """Refuse what the installed Spark cannot do."""
    version, since = spark_version(), NEEDS[what]
    if version < SparkVersion.parse(since):
        raise SetupError(
            f"{what} needs Spark {since} or newer, and this is pyspark {version}.",
            f"Type: {INSTALL}",
        )


def _find_pyspark() -> ModuleSpec:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtraError.for_extra("spark", "The JVM side (Spark, Kafka broker)")
    return spec


def pyspark_home() -> Path:
    """The folder of the installed pyspark, found without importing it.

    Under spark-submit, pyspark is in a zip file of the Spark that runs.
    """
    folder = Path(str(_find_pyspark().origin)).parent
    return folder if folder.is_dir() else Path(os.environ.get("SPARK_HOME", folder))


def spark_home() -> Path:
    """The folder of the Spark that pyspark starts; pyspark looks in the same places.

    These are SPARK_HOME, what pip downloaded for PYSPARK_HADOOP_VERSION, pyspark itself, and the
    Spark that contains pyspark in its folder `python`.
    """
    package = pyspark_home()
    named = Path(os.environ.get("SPARK_HOME") or package)
    homes = (named, package / "spark-distribution", package, package.parent.parent)
    return next(filter(_has_jars, homes), package)


def _has_jars(home: Path) -> bool:
    return any(path.is_dir() for folder in _JAR_FOLDERS for path in home.glob(folder))


def spark_jars(name: str = "*.jar") -> list[Path]:
    """The jars of the Spark that pyspark starts, all or those with names of this pattern."""
    home = spark_home()
    return [jar for folder in _JAR_FOLDERS for jar in home.glob(f"{folder}/{name}")]


def _jar_version(name: str) -> str | None:
    """The version of a jar, without what a vendor adds: 4.2.0 of `spark-core_2.13-4.2.0-amzn-0`."""
    versions = (re.search(r"-(\d+\.\d+\.\d+)", jar.name) for jar in spark_jars(name))
    return next((version[1] for version in versions if version), None)


def _read_packed(name: str) -> str:
    """A file of a pyspark that is in a zip file."""
    spec = _find_pyspark()
    loader = cast("ResourceLoader", spec.loader)
    return loader.get_data(str(Path(str(spec.origin)).with_name(name))).decode()


def spark_version() -> SparkVersion:
    """The version of the installed pyspark, which may also be that of a SPARK_HOME."""
    file = pyspark_home() / "version.py"
    text = file.read_text("utf-8") if file.is_file() else _read_packed("version.py")
    found = re.search(r"__version__[^=]*=\s*['\"]([^'\"]+)", text)
    return SparkVersion.parse(found[1] if found else "")


def hadoop_version() -> str:
    """The version of the Hadoop client that the installed pyspark has."""
    return _jar_version("hadoop-client-api-*.jar") or "?"


def _check_spark_home(version: SparkVersion) -> None:
    """Refuse a SPARK_HOME without Spark, or of another version: pyspark could not talk to it."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        return
    # spark-submit has started Spark already, from wherever that is
    if not _has_jars(Path(home)) and GATEWAY_PORT not in os.environ:
        raise SetupError(
            f"SPARK_HOME is {home!r}, which has no Spark.",
            f"Unset SPARK_HOME, or set it to the folder of a Spark {version.minor}",
        )
    started = _jar_version("spark-core_*.jar")
    if started and SparkVersion.parse(started).minor != version.minor:
        raise SetupError(
            f"SPARK_HOME is Spark {started}, and the installed pyspark is {version}.",
            f"Type: pip install 'pyspark=={started}', or unset SPARK_HOME",
        )


def spark_row() -> SparkRow:
    """What the installed Spark runs with; refuses one that Ebbtide does not run on."""
    version = spark_version()
    if version.minor not in ROWS:
        oldest, *_, newest = ROWS
        raise SetupError(
            f"Ebbtide runs on Spark {oldest} to {newest}, and this is pyspark {version}.",
            f"Type: {INSTALL}",
        )
    _check_spark_home(version)
    return ROWS[version.minor]
