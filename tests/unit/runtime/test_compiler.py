"""Our Java classes become a jar, once, whole and the same each time."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile, is_zipfile

import psutil
import pytest

from ebbtide.errors import SetupError
from ebbtide.runtime import cluster, compiler, java
from ebbtide.runtime.versions import ROWS

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))
    java.own_jar_path.cache_clear()
    yield tmp_path
    java.own_jar_path.cache_clear()


def test_the_jar_is_compiled_once() -> None:
    with ThreadPoolExecutor(2) as pool:  # two commands at once
        jar, same = pool.map(lambda _: compiler.own_jar(), range(2))
    assert jar == same
    names = ["JsonRecords$Cursor.class", "JsonRecords.class"]
    assert ZipFile(jar).namelist() == [f"ebbtide/{name}" for name in names]
    assert [path.name for path in jar.parent.iterdir()] == [jar.name]
    written = jar.stat().st_mtime_ns
    assert compiler.own_jar().stat().st_mtime_ns == written


def test_another_spark_has_a_jar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = java.own_jar_path()
    monkeypatch.setattr(java, "spark_row", lambda: ROWS["3.5"])
    java.own_jar_path.cache_clear()
    assert java.own_jar_path() != ours


def test_the_compiling_jvm_ends_and_heeds_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they make a JVM print would come before the port of its gateway."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xlog:gc")
    before = set(psutil.Process().children())
    compiler.own_jar()
    assert set(psutil.Process().children()) == before


def test_half_a_jar_is_compiled_again() -> None:
    jar = java.own_jar_path()
    jar.parent.mkdir(parents=True)
    jar.touch()
    assert is_zipfile(compiler.own_jar())
    assert jar.stat().st_mode & 0o777 == 0o644


def test_without_a_jar_spark_decodes_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_jar: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(compiler, "_compile", fail)
    monkeypatch.setattr(java, "jars", lambda _set: [])
    assert cluster.connector_jars({}, []) == []
    assert "Spark decodes all records itself" in caplog.text
    assert "cannot be compiled: [Errno 28] No space left on device." in caplog.text


def test_a_spark_without_a_compiler_is_named(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "spark_jars", lambda _name: [])
    with pytest.raises(SetupError, match=r"has no Janino or no Py4J.*SPARK_HOME"):
        compiler.own_jar()
    assert not list(empty_cache.rglob("*.jar"))


def test_a_java_that_does_not_start_is_named(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_that_fails = java.Java(Path("/bin/false"), 17, "PATH")
    monkeypatch.setattr(compiler, "find_java", lambda: java_that_fails)
    with pytest.raises(SetupError, match=r"cannot be compiled: /bin/false starts no JVM\."):
        compiler.own_jar()
    assert not list(empty_cache.rglob("*.*"))
