"""Do what a new user does: clone into an empty folder, with empty caches and no Java; type make.

`python -m scripts.fresh_clone` runs the demo and all tests; with `--compare OLD NEW` it times the
first demo of two revisions, one after the other.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
JAVA = {"java", "javac", "jar", "jshell", "mvn"}
FIRST_LINE = re.compile(r"Stream reprocessor +─")
"""The line with which the demo begins."""


@dataclass(frozen=True)
class FreshClone:
    """A clone of a revision, and the environment of a machine on which nothing is installed."""

    folder: Path
    environ: dict[str, str]

    def make(self, target: str) -> None:
        """Type `make` as a person does, and fail with it."""
        subprocess.run(["make", target], cwd=self.folder, env=self.environ, check=True)

    def time_demo(self) -> DemoTimes:
        """Run `make demo` through a pipe."""
        began, first = time.monotonic(), None
        with subprocess.Popen(
            ["make", "demo"],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as run:
            assert run.stdout is not None
            for line in run.stdout:
                print(f"{time.monotonic() - began:6.1f} s  {line}", end="", flush=True)
                if first is None and FIRST_LINE.search(line):
                    first = time.monotonic() - began
        if run.returncode or first is None:
            raise SystemExit(f"make demo ended with {run.returncode}.")
        packages = len(list(self.folder.glob(".venv/lib/python*/site-packages/*.dist-info")))
        return DemoTimes(first, time.monotonic() - began, packages)


@dataclass(frozen=True)
class DemoTimes:
    """How long the first demo took, and what it installed."""

    first_line_seconds: float
    end_seconds: float
    packages: int

    def compare(self, old: DemoTimes) -> str:
        """The figures, in brackets their ratios to those of another revision.

        >>> DemoTimes(60, 100, 40).compare(DemoTimes(120, 200, 80))
        'first line 60 s (0.50), end 100 s (0.50), 40 packages'
        """
        first = self.first_line_seconds / old.first_line_seconds
        end = self.end_seconds / old.end_seconds
        return (
            f"first line {self.first_line_seconds:.0f} s ({first:.2f}), "
            f"end {self.end_seconds:.0f} s ({end:.2f}), {self.packages} packages"
        )


@contextmanager
def clone(revision: str = "HEAD") -> Iterator[FreshClone]:
    """Clone a revision, with a PATH that has all programs but Java's."""
    with TemporaryDirectory() as name:
        work = Path(name)
        programs = work / "bin"
        programs.mkdir()
        for folder in filter(os.path.isdir, os.environ["PATH"].split(os.pathsep)):
            for program in Path(folder).iterdir():
                link = programs / program.name
                if program.name not in JAVA and not link.exists():
                    link.symlink_to(program)
        if shutil.which("java", path=str(programs)):
            raise SystemExit("Java is still on the PATH.")
        project = work / "ebbtide"
        subprocess.run(["git", "clone", "--quiet", ROOT, project], check=True)
        subprocess.run(["git", "checkout", "--quiet", revision], cwd=project, check=True)
        hidden = {"JAVA_HOME", "PYSPARK_PYTHON", "SPARK_HOME", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS"}
        environ = {key: value for key, value in os.environ.items() if key not in hidden}
        cache = str(work / "cache")
        empty = dict.fromkeys(("EBBTIDE_CACHE", "XDG_CACHE_HOME", "UV_CACHE_DIR"), cache)
        environ |= {"PATH": str(programs), "TMPDIR": name, "PIP_NO_CACHE_DIR": "1", **empty}
        yield FreshClone(project, environ)


def compare(old: str, new: str) -> None:
    """Time the first demo of two revisions, one after the other."""
    taken = []
    for revision in (old, new):
        print(f"— {revision} —", flush=True)
        with clone(revision) as there:
            taken.append(there.time_demo())
    for revision, times in zip((old, new), taken, strict=True):
        print(f"{revision}: {times.compare(taken[0])}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="two revisions")
    chosen = parser.parse_args().compare
    if chosen:
        compare(*chosen)
        return
    with clone() as there:
        there.make("demo")
        there.make("test")
    print("Fresh clone: demo and test passed without Java on the PATH and with empty caches.")


if __name__ == "__main__":
    main()
