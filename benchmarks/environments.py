"""Make the environments of the peers, once, in the cache folder of Ebbtide."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from benchmarks.measure import ContenderError
from ebbtide.errors import EbbtideError
from ebbtide.runtime import java

PEERS = Path(__file__).parent / "peers"
_JARS, _JARS_LOCK = PEERS / "jars.xml", PEERS / "jars.lock"
_OPENED = ("lang", "net", "io", "nio", "text", "time", "util", "util.concurrent")
"""The packages that Flink's own start scripts open to it."""


def python_of(name: str) -> Path:
    """The Python of a peer; makes its virtual environment the first time (`peers/NAME.txt`)."""
    requirements = PEERS / f"{name}.txt"
    folder = _folder(name, f"{sys.version}\n{requirements.read_text('utf-8')}")
    python = folder / "bin" / "python"
    with FileLock(f"{folder}.lock"):
        if not (folder / "ready").exists():
            print(f"  installing {name} (once) …", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", folder])
            pip: list[str | Path] = [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ]
            # the requirements name each package that is needed
            _run([*pip, "--require-hashes", "--no-deps", "-r", requirements])
            (folder / "ready").touch()
    return python


def java_home() -> str:
    """A JAVA_HOME for the peers: the Java that Ebbtide itself uses."""
    return str(java.find_java().executable.resolve().parent.parent)


def find_jdk() -> Path:
    """The programs of the JDK in JAVA_HOME or on the PATH, which compiles and runs Flink.

    Ebbtide's own Java has no compiler, and is newer than those that Flink names.
    """
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin" if home else None)
    if javac is None:
        raise ContenderError("a JDK is needed to compile the program for Flink: there is no javac")
    return Path(javac).resolve().parent


def flink_command(program: str) -> list[str]:
    """How to run one of `peers/flink/*.java`, compiled the first time."""
    found = list(python_of("flink").parents[1].glob("lib/*/site-packages/pyflink/lib"))
    if not found:
        raise ContenderError("apache-flink-libraries has no folder lib")
    jars = f"{found[0]}/*:{_flink_connector().parent}/*"
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
    classes = _compile(sorted((PEERS / "flink").glob("*.java")), jars)
    return [
        str(find_jdk() / "java"),
        # as for Spark, whose driver has 1 GB by default; RocksDB's memory comes on top of both
        *("-Xmx1g", *opened, "-cp", f"{classes}:{jars}", program),
    ]


def _compile(sources: Sequence[Path], jars: str) -> Path:
    jdk = find_jdk()
    text = "".join(source.read_text("utf-8") for source in sources)
    folder = _folder("flink-classes", f"{jdk} {jars} {text}")
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            _run([jdk / "javac", "-nowarn", "-d", f"{made}/classes", "-cp", jars, *sources])
            Path(made, "classes").rename(folder)
    return folder


def _flink_connector() -> Path:
    """The jar of jars.lock, resolved by name and version as Ebbtide's own jars are."""
    (jar,) = java.read_lock(_JARS_LOCK.read_text("utf-8"))
    folder = _folder("flink-jars", repr(jar))
    if not (folder / jar.name).exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            try:
                java.run_ivy(Path(made), [jar.set], 1, None, _JARS)
            except EbbtideError as error:
                raise ContenderError(str(error)) from None
            resolved = Path(made, jar.set, jar.name)
            if hashlib.sha256(resolved.read_bytes()).hexdigest() != jar.sha256:
                raise ContenderError(f"{jar.name} has another checksum than in jars.lock")
            shutil.rmtree(folder, ignore_errors=True)
            resolved.parent.rename(folder)
    return folder / jar.name


def _folder(name: str, key: str) -> Path:
    peers = java.cache_folder() / "peers"
    peers.mkdir(parents=True, exist_ok=True)
    return peers / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _run(command: Sequence[str | Path]) -> None:
    answer = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "PIP_NO_INPUT": "1"},
    )
    if answer.returncode:
        lines = [line for line in answer.stdout.splitlines() if line.strip()]
        raise ContenderError(f"not installed: {lines[-1] if lines else 'no output'}")


def write_lock() -> None:
    """Resolve peers/jars.xml and write its checksum to peers/jars.lock (`make lock`)."""
    with tempfile.TemporaryDirectory() as folder:
        java.run_ivy(Path(folder), ["*"], 1, None, _JARS)
        rows = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_size} "
            f"{path.parent.name}/{path.name}"
            for path in sorted(Path(folder).rglob("*.jar"))
        ]
    _JARS_LOCK.write_text("# Written by `make lock` from jars.xml.\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    write_lock()
