"""Our Java classes become a jar, once, whole and the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import pytest

from ebbtide.errors import SetupError
from ebbtide.runtime import compiler, java
from ebbtide.runtime.versions import ROWS

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))
    java.own_jar_path.cache_clear()
    yield tmp_path
    java.own_jar_path.cache_clear()


def test_the_jar_is_compiled_once_and_the_same_each_time() -> None:
    with ThreadPoolExecutor(2) as pool:  # two commands at once
        jar, same = pool.map(lambda _: compiler.own_jar(), range(2))
    assert jar == same
    names = ["JsonRecords$Cursor.class", "JsonRecords.class"]
    assert ZipFile(jar).namelist() == [f"ebbtide/{name}" for name in names]
    assert [path.name for path in jar.parent.iterdir()] == [jar.name]
    first, written = jar.read_bytes(), jar.stat().st_mtime_ns
    assert compiler.own_jar().stat().st_mtime_ns == written
    jar.unlink()
    assert compiler.own_jar().read_bytes() == first


def test_another_spark_has_a_jar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = java.own_jar_path()
    monkeypatch.setattr(java, "spark_row", lambda: ROWS["3.5"])
    java.own_jar_path.cache_clear()
    assert java.own_jar_path() != ours


def test_a_spark_without_a_compiler_is_named(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "spark_jars", lambda _name: [])
    with pytest.raises(SetupError, match=r"has no Janino or no Py4J.*SPARK_HOME"):
        compiler.own_jar()
    assert not list(empty_cache.rglob("*.jar"))
