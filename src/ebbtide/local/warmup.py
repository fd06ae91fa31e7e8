"""Run a job once to write class archives, from which later JVMs start faster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from ebbtide.config import make_folder
from ebbtide.connectors import kafka
from ebbtide.errors import EbbtideError
from ebbtide.local.broker import find_broker, free_port
from ebbtide.local.visits import VisitGenerator
from ebbtide.runtime import java as jvm

_JOB = "ebbtide.systems.warmup_job:pipeline"
_VISITS = VisitGenerator(count=200, broken=0.1)


def is_warm() -> bool:
    """Whether the archives for this Java, pyspark and jars exist."""
    return all(jvm.class_archive(set_).exists() for set_ in ("spark", "broker"))


def warm_up() -> None:
    """Write the archives, which are optional: a Java that cannot write them starts as before.

    Steps: **1** lock; **2** write the archive of Java's own classes; **3** run the job, whose JVMs
    write theirs at exit; **4** rename.
    """
    folder = make_folder(jvm.class_archive("spark").parent, "EBBTIDE_CACHE")
    # 1
    with FileLock(folder / "writing"):
        if is_warm():
            return
        # 2: the bundled runtime lacks it
        java = jvm.find_java()
        if java.origin == jvm.BUNDLED:
            subprocess.run([java.executable, "-Xshare:dump", "-Xlog:disable"], check=False)
        # 3
        with tempfile.TemporaryDirectory() as home:
            _ebbtide("broker", "start", "--port", str(free_port()), home=home)
            try:
                with suppress(EbbtideError):  # then the job plans no batch
                    _send_visits(Path(home))
                limit = ("--max-offsets-per-trigger", "150")
                _ebbtide("run", _JOB, "--available-now", *limit, home=home)
            finally:
                _ebbtide("broker", "stop", home=home)
        # 4
        for set_ in ("spark", "broker"):
            archive = jvm.class_archive(set_)
            written = Path(f"{archive}.new")
            if written.exists():
                written.replace(archive)


def _send_visits(home: Path) -> None:
    """Send records, as a job without any would plan no batch and load no classes."""
    if (broker := find_broker(home / "broker")) is not None:
        kafka.create_missing_topics(broker.connection, ["visits"])
        with kafka.Sender(broker.connection, "visits") as sender:
            for chunk in _VISITS.messages():
                sender.send_all(chunk)


def _ebbtide(*arguments: str, home: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "ebbtide", *arguments, "--home", home],
        env={**os.environ, jvm.WRITE_ARCHIVES: "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
