"""`scripts/versions`: the five systems on each Spark that runs them, by the tests of our own."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from ebbtide.errors import EbbtideError
from ebbtide.runtime import java as jvm
from tests.compat.environments import clean_environ, make_environment

VERSIONS = ("3.5.9", "4.0.5", "4.1.4", "4.2.1")
"""The newest patch of each minor version that has a Kafka connector and Delta."""
_REPOSITORY = Path(__file__).parent.parent.parent
_TESTS = (
    *("tests/compat/test_version.py", "tests/e2e/walks"),
    # it needs a browser, and no Spark
    *("--ignore", "tests/e2e/walks/test_page.py"),
)


def say(line: str) -> None:
    """One line of progress."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def check_version(version: str, cache: Path, log: Path) -> bool:
    """Whether every system gives its output on a version; pytest's own words go to a log."""
    python = make_environment(version, cache, say)
    environ = clean_environ(python, _REPOSITORY)
    environ["PYTHONPATH"] += f":{_REPOSITORY / 'src'}"
    environ["PATH"] = f"{python.parent}:{environ['PATH']}"
    tests = [str(python), "-m", "pytest", *_TESTS, "-p", "no:cacheprovider"]
    with log.open("w", encoding="utf-8") as words:
        for command in ([str(python), "-m", "ebbtide", "doctor", "--fix"], tests):
            done = subprocess.run(
                command, cwd=_REPOSITORY, env=environ, stdout=words, stderr=words, check=False
            )
    last = log.read_text("utf-8").strip().splitlines()[-1].strip("= ")
    say(f"{version}  {last}" + (f"; see {log}" if done.returncode else ""))
    return done.returncode == 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/versions", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(VERSIONS)}")
    parser.add_argument("--cache", type=Path, help="for the environments, about 1 GB each")
    given = parser.parse_args()
    cache = (given.cache or jvm.cache_folder() / "compat").absolute()
    logs = Path(tempfile.mkdtemp(prefix="ebbtide-versions-"))
    failed = []
    for version in given.versions or VERSIONS:
        try:
            good = check_version(version, cache, logs / f"{version}.log")
        except EbbtideError as error:
            say(f"{version}  {error}")
            good = False
        failed += [] if good else [version]
    if not failed:
        say("Every system gave its output on every version.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
