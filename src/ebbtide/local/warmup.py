"""Run a job once to write class archives, from which later JVMs start faster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ebbtide.config import make_folder
from ebbtide.local.broker import HOST, free_port
from ebbtide.runtime import java as jvm

_JOB = "ebbtide.systems.warmup_job:pipeline"


def is_warm() -> bool:
    """Whether the archives for this Java, pyspark and jars exist."""
    return all(jvm.class_archive(set_).exists() for set_ in jvm.ALL)


def warm_up() -> None:
    """Write the archives, which are optional: a Java that cannot write them starts as before.

    Steps: **1** lock; **2** write the archive of Java's own classes; **3** run the job, whose JVMs
    write theirs at exit; **4** rename.
    """
    folder = make_folder(jvm.class_archive("spark").parent, "EBBTIDE_CACHE")
    # 1
    from filelock import FileLock

    with FileLock(folder / "writing"):
        if is_warm():
            return
        # 2: the bundled runtime lacks it
        java = jvm.find_java()
        if java.origin == jvm.BUNDLED:
            subprocess.run([java.executable, "-Xshare:dump", "-Xlog:disable"], check=False)
        # 3
        with tempfile.TemporaryDirectory() as home:
            port = free_port()
            # named, because the environment or ebbtide.toml may name the user's own Kafka
            kafka = ("--bootstrap-servers", f"{HOST}:{port}", "--kafka-config", os.devnull)
            here = ("--home", home, *kafka)
            _ebbtide("broker", "start", "--port", str(port), *here)
            try:
                # a job without any records would plan no batch and load no classes
                _ebbtide("generate", "visits", "--count", "200", "--broken", "0.1", *here)
                flags = ["--available-now", "--max-offsets-per-trigger", "150"]
                # named, because spark-defaults.conf may name a cluster
                _ebbtide("run", _JOB, "--master", "local[*]", *flags, *here)
            finally:
                _ebbtide("broker", "stop", *here)
        # 4
        for set_ in jvm.ALL:
            archive = jvm.class_archive(set_)
            written = Path(f"{archive}.new")
            if written.exists():
                written.replace(archive)


def _ebbtide(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "ebbtide", *arguments],
        env={**os.environ, jvm.WRITE_ARCHIVES: "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
