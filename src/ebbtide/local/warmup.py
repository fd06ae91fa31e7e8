"""One play of the first job in, class archives out, from which later JVMs start faster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from ebbtide import jvm
from ebbtide.config import make_folder
from ebbtide.local.broker import free_port

_JOB = "visits-windows-counter"


def is_warm() -> bool:
    """Whether the archives for this Java, pyspark and jars are there."""
    return all(jvm.class_archive(set_).exists() for set_ in ("spark", "broker"))


def warm_up() -> None:
    """Write the archives: **1** lock; **2** what Java itself needs for it; **3** play the job, its
    JVMs writing at exit; **4** rename.

    They are a gift, not a need: a Java that cannot write them starts as it always did.
    """
    folder = make_folder(jvm.class_archive("spark").parent, "EBBTIDE_CACHE")
    # 1
    with FileLock(folder / "writing"):
        if is_warm():
            return
        # 2: the small runtime comes without the archive of Java's own classes
        java = jvm.find_java()
        if java.origin == jvm.BROUGHT:
            subprocess.run([java.executable, "-Xshare:dump", "-Xlog:disable"], check=False)
        # 3
        with tempfile.TemporaryDirectory() as home:
            _ebbtide("broker", "start", "--port", str(free_port()), home=home)
            _ebbtide("run", _JOB, "--available-now", home=home)
            _ebbtide("broker", "stop", home=home)
        # 4
        for set_ in ("spark", "broker"):
            archive = jvm.class_archive(set_)
            written = Path(f"{archive}.new")
            if written.exists():
                written.replace(archive)


def _ebbtide(*arguments: str, home: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "ebbtide", *arguments, "--home", home],
        env={**os.environ, jvm.WRITE_ARCHIVES: "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
