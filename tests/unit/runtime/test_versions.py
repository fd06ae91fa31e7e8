"""What the installed Spark cannot do is refused by name, with the version that can."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from ebbtide.errors import SetupError, UsageError
from ebbtide.pipeline import Console, Kafka, Pipeline
from ebbtide.runtime import failures, versions

PIPELINE = Pipeline(
    "visits",
    source=Kafka("visits", schema="event_time TIMESTAMP"),
    event_time="event_time",
    transform=lambda rows: rows,
    sink=Console(),
)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Pretend that another pyspark is installed."""

    def install(version: str) -> None:
        (tmp_path / "version.py").write_text(f'__version__: str = "{version}"\n')
        monkeypatch.setattr(versions, "pyspark_home", lambda: tmp_path)

    return install


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A SPARK_HOME without any jars yet."""
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    return tmp_path / "spark"


def test_the_state_reader_needs_spark_4(pretend: Callable[[str], None]) -> None:
    versions.require(versions.STATE_READER_V2)
    pretend("4.0.5")
    versions.require(versions.STATE_READER)
    with pytest.raises(SetupError, match=r"format version 2 needs Spark 4\.1 or newer"):
        versions.require(versions.STATE_READER_V2)
    pretend("3.5.9")
    with pytest.raises(SetupError, match=r"needs Spark 4\.0 or newer, and this is pyspark 3\.5\.9"):
        versions.require(versions.STATE_READER)


def test_a_spark_home_of_another_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyspark would start it, and fail with "'JavaPackage' object is not callable"."""
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "spark-core_2.13-4.2.7.jar"
    jar.touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert versions.spark_row().minor == "4.2"
    jar.rename(jar.with_name("spark-core_2.12-3.5.9.jar"))
    with pytest.raises(
        SetupError, match=r"SPARK_HOME is Spark 3\.5\.9, .* pyspark is 4\.2.*'pyspark==3\.5\.9'"
    ):
        versions.spark_row()


@pytest.mark.parametrize(
    ("jar", "version"),
    [
        ("spark-core_2.13-4.2.0-amzn-0.jar", "4.2.0"),
        ("spark-core_2.13-4.2.0-SNAPSHOT.jar", "4.2.0"),
        ("spark-core_2.12-3.5.4.3.3.7190.0-91.jar", "3.5.4"),
    ],
)
def test_a_vendors_or_a_development_spark_has_the_version_in_its_name(
    jar: str, version: str, pretend: Callable[[str], None], home: Path
) -> None:
    (home / "jars" / jar).touch()
    pretend("4.1.4")
    with pytest.raises(SetupError, match=rf"SPARK_HOME is Spark {version}, .*'pyspark=={version}'"):
        versions.spark_row()
    pretend(version)
    assert versions.spark_row().minor == version[:3]


@pytest.mark.parametrize(
    ("jar", "version"),
    [
        ("hadoop-client-api-3.5.0-amzn-2.jar", "3.5.0"),
        ("hadoop-client-api-3.1.1.7.3.1.0-197.jar", "3.1.1"),
        ("hadoop-client-api-dev.jar", "?"),
    ],
)
def test_a_vendors_hadoop_has_the_version_in_its_name(jar: str, version: str, home: Path) -> None:
    (home / "jars" / jar).touch()
    assert versions.hadoop_version() == version


def test_a_jar_without_a_version_refuses_nothing(home: Path) -> None:
    (home / "jars" / "spark-core_internal.jar").touch()
    assert versions.spark_row().minor == "4.2"


def test_a_spark_home_without_spark_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "none"))
    refused = pytest.raises(
        SetupError, match=r"SPARK_HOME is '.*/none', which has no Spark\. Unset SPARK_HOME, or set"
    )
    with refused:
        versions.spark_row()
    # a build from source has its jars elsewhere
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    jars = tmp_path / "assembly" / "target" / "scala-2.13" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core_2.13-4.2.1-SNAPSHOT.jar").touch()
    assert versions.spark_row().minor == "4.2"
    # under spark-submit, Spark runs already
    monkeypatch.setenv("SPARK_HOME", "/dev/null")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert versions.spark_row().minor == "4.2"


@pytest.mark.parametrize("jars", ["jars", "python/pyspark/spark-distribution/jars"])
def test_the_spark_that_contains_pyspark_is_found(
    jars: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with PYTHONPATH=spark/python, without SPARK_HOME."""
    package = tmp_path / "python" / "pyspark"
    package.mkdir(parents=True)
    (tmp_path / jars).mkdir(parents=True)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(versions, "pyspark_home", lambda: package)
    assert versions.spark_home() == (tmp_path / jars).parent


def test_what_pyspark_itself_lacks_is_named(tmp_path: Path) -> None:
    """As of Spark 3.5 on Python 3.12: pyspark is installed, so the extra would not help."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("import gone_since_3_12")
    program = (
        "import importlib\n"
        "for name in ('runtime.cluster', 'runtime.session', 'testing'):\n"
        "    try:\n"
        "        importlib.import_module(f'ebbtide.{name}')\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    line = (
        "SetupError pyspark cannot be imported: No module named 'gone_since_3_12'. "
        "Install that, or type: ebbtide doctor"
    )
    assert answer.stdout.splitlines() == [line] * 3, answer.stderr


def test_an_operator_of_a_newer_spark_is_named(pretend: Callable[[str], None]) -> None:
    pretend("3.5.9")
    with pytest.raises(SetupError, match=r"transformWithState needs Spark 4\.1 or newer"):
        with failures.plain_errors(PIPELINE):
            raise AttributeError("no attribute", name="transformWithState")
    # a mistake of the user's keeps its traceback
    with pytest.raises(AttributeError):
        with failures.plain_errors(PIPELINE):
            raise AttributeError("no attribute", name="groupby_")


def test_a_spark_without_a_kafka_connector_is_named(pretend: Callable[[str], None]) -> None:
    pretend("4.3.0")
    with pytest.raises(
        UsageError, match=r"no Kafka connector .* Spark 4\.3 yet.*'pyspark==4\.2\.\*'"
    ):
        with failures.plain_errors(PIPELINE):
            raise PySparkException("Failed to find data source: kafka.")
