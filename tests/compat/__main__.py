"""`scripts/compat`: checkpoints of each Spark, written, rewound and started again by that Spark."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from filelock import FileLock

from ebbtide.errors import EbbtideError
from ebbtide.runtime import java as jvm
from tests.compat.environments import VERSIONS, clean_environ, make_environment
from tests.compat.play import play_version
from tests.compat.session import Result, Run

REPOSITORY = Path(__file__).parent.parent.parent
WORK = Path("/tmp/ebbtide-compat")
"""Fixed, because Spark writes its path into checkpoints, and some of these are kept."""
TIMEOUT_SECONDS = 600
_STARTED = time.monotonic()


def say(line: str) -> None:
    """One line of progress."""
    sys.stdout.write(f"{time.monotonic() - _STARTED:4.0f} s  {line}\n")
    sys.stdout.flush()


def run_session(python: Path, home: Path, runs: list[Run]) -> list[Result]:
    """The runs in one session of another Python and its Spark; its own words go to spark.log."""
    asked, answered = home / "runs.json", home / "results.json"
    asked.write_text(json.dumps([asdict(run) for run in runs]), "utf-8")
    answered.unlink(missing_ok=True)
    with (home / "spark.log").open("a", encoding="utf-8") as log:
        done = subprocess.run(
            [python, "-m", "tests.compat.session", asked, answered],
            cwd=home,
            env=clean_environ(python, REPOSITORY, jvm.spark_java_home()),
            stdout=log,
            stderr=log,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    if done.returncode:
        raise EbbtideError(
            f"The session of {python} ended with {done.returncode}.", f"See {log.name}"
        )
    return [Result(**result) for result in json.loads(answered.read_text("utf-8"))]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/compat", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(VERSIONS)}")
    parser.add_argument("--cache", type=Path, help="for the environments, about 1 GB each")
    parser.add_argument("--keep", action="store_true", help="write tests/fixtures/checkpoints anew")
    given = parser.parse_args()
    if unknown := set(given.versions) - set(VERSIONS):
        parser.error(f"no version {', '.join(sorted(unknown))}; there are {', '.join(VERSIONS)}")
    cache = (given.cache or jvm.cache_folder() / "compat").absolute()
    WORK.mkdir(parents=True, exist_ok=True)
    with FileLock(WORK.with_suffix(".lock")):
        failed = [
            line
            for version in given.versions or VERSIONS
            for line in check_version(version, cache, keep=given.keep)
        ]
    for line in failed:
        say(f"FAILED  {line}")
    if not failed:
        say("Every checkpoint was read, verified, rewound and started again by its own Spark.")
    return 1 if failed else 0


def check_version(version: str, cache: Path, *, keep: bool) -> list[str]:
    """Environment, then cells; what failed. Its files stay in the work folder if something did."""
    home = WORK / version
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()

    def tell(line: str) -> None:
        say(f"{version}  {line}")

    try:
        python = make_environment(version, cache, tell)
        session = partial(run_session, python, home)
        failed = play_version(version, session, home, tell, keep=keep)
    except (EbbtideError, subprocess.TimeoutExpired) as error:
        failed = [f"{version}: {error}"]
    if not failed:
        shutil.rmtree(home)
    return failed


if __name__ == "__main__":
    sys.exit(main())
