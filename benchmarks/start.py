"""How long a job takes from its command to its end."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ebbtide.local.broker import temporary_broker
from ebbtide.local.warmup import warm_up
from ebbtide.runtime import java as jvm


def run(*, quick: bool) -> Iterator[str]:
    """`ebbtide run visits-windows-counter --available-now`, without and with class archives"""
    rounds = 1 if quick else 3
    warm_up()
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    # the same jars, but no archives
    bare = home / "cache"
    (bare / "jars").mkdir(parents=True)
    for set_ in jvm.ALL:
        (bare / "jars" / jvm.jar_folder(set_).name).symlink_to(jvm.jar_folder(set_))
    times: dict[str, list[float]] = {"without": [], "with": []}
    with temporary_broker() as broker:
        for _ in range(rounds):
            for name, cache in (("without", bare), ("with", jvm.cache_folder())):
                times[name].append(_time(home / "run", broker.bootstrap_servers, cache))
    shutil.rmtree(home, ignore_errors=True)
    for name, seconds in times.items():
        yield f"{name:<8} {statistics.median(seconds):.1f} s"
    ratio = statistics.median(times["without"]) / statistics.median(times["with"])
    yield f"{ratio:.2f} × faster with class archives"


def _time(home: Path, servers: str, cache: Path) -> float:
    shutil.rmtree(home, ignore_errors=True)
    command = ["run", "visits-windows-counter", "--available-now", "--home", str(home)]
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ebbtide", *command, "--bootstrap-servers", servers],
        env={**os.environ, "EBBTIDE_CACHE": str(cache)},
        capture_output=True,
        check=True,
    )
    return time.perf_counter() - started
