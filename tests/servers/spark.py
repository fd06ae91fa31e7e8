"""A standalone Spark cluster from the installed pyspark: a master and workers as processes.

The workers' Python has every package but Ebbtide, as on most clusters: what they run is sent.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import venv_pack

from ebbtide.local.broker import free_port
from ebbtide.runtime.java import spark_java_home
from ebbtide.runtime.versions import pyspark_home
from tests.conftest import SHORT_LIVED

HOST = "127.0.0.1"
_START_SECONDS = 240
_DEPLOY = "org.apache.spark.deploy"
_MEMORY = "512m"


class SparkCluster:
    """A master and its workers."""

    def __init__(self, folder: Path, executors: int) -> None:
        self.folder, self._executors = folder, executors
        port, self._page = free_port(), free_port()
        self.url = f"spark://{HOST}:{port}"
        self.python = _make_python(folder / "python")
        """Of the workers."""
        self.environment = _pack(self.python, folder)
        """The same as a file for `--archive-env`."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # a worker has nothing of ours, such as paths and keys, also if a test has
        self._variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self._start("master", f"{_DEPLOY}.master.Master", str(port), str(self._page))

    @property
    def settings(self) -> dict[str, str]:
        """What an application needs here: small executors, on two cores in all."""
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.ui.enabled": "false",
            "spark.driver.memory": "700m",
            "spark.executor.memory": _MEMORY,
            "spark.executor.cores": str(2 // self._executors),
            "spark.cores.max": "2",
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.pyspark.python": str(self.python),
            "spark.network.timeout": "300s",
            "spark.sql.shuffle.partitions": "2",
        }

    @property
    def workers(self) -> list[str]:
        """The names of the workers that were started and not killed."""
        return [name for name in self._processes if name != "master"]

    def busy_worker(self) -> str:
        """A worker with an executor."""
        return next(name for name in self.workers if self._family(name)[1:])

    def add_worker(self, name: str) -> None:
        """Start a worker; `wait` waits for it."""
        work = ("--work-dir", str(self.folder / f"{name}-work"), "--webui-port", "0")
        room = ("--cores", "8", "--memory", "4g")
        self._start(name, f"{_DEPLOY}.worker.Worker", *room, *work, self.url)

    def kill(self, name: str) -> None:
        """End a process and its executors abruptly, as a power cut would."""
        family, process = self._family(name), self._processes.pop(name)
        for each in family:
            with suppress(psutil.Error):
                each.kill()
        process.wait()

    def _family(self, name: str) -> list[psutil.Process]:
        daemon = psutil.Process(self._processes[name].pid)
        return [daemon, *daemon.children(recursive=True)]

    def wait(self) -> None:
        """Wait until the master knows as many living workers as were started."""
        deadline = time.monotonic() + _START_SECONDS
        while self._alive() < len(self.workers):
            assert time.monotonic() < deadline, f"see the logs in {self.folder}"
            time.sleep(0.2)

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._page}/json/", timeout=5) as page:
                return int(page.read().decode().partition('"aliveworkers" : ')[2].split(",")[0])
        except (OSError, ValueError):
            return 0

    def _start(self, name: str, role: str, *words: str) -> None:
        command = [str(pyspark_home() / "bin" / "spark-class"), role, "--host", HOST]
        ports = ("--port", words[0], "--webui-port", words[1]) if name == "master" else words
        own = {
            "SPARK_HOME": str(pyspark_home()),
            "JAVA_HOME": str(spark_java_home()),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{SHORT_LIVED} -Dspark.master.rest.enabled=false",
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder / f"{name}-local"),
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*command, *ports],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._variables, **own},
                start_new_session=True,
            )


def _make_python(folder: Path) -> Path:
    """An environment with our packages, but without Ebbtide."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "ebbtide" not in entry.name.lower() and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    finds = "import pyspark, pandas, importlib.util as i; assert not i.find_spec('ebbtide')"
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-c", finds], check=True, env=plain, cwd=folder)
    return python


def _pack(python: Path, folder: Path) -> Path:
    """An environment as venv-pack makes it; its packages, of 500 MB, are linked."""
    venv.create(folder / "packed", with_pip=False, symlinks=True)
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    (linked,) = (folder / "packed").glob("lib/python*/site-packages")
    (linked / "linked.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    return Path(venv_pack.pack(str(folder / "packed"), output=str(folder / "environment.tar.gz")))


@contextmanager
def spark_cluster(folder: Path, executors: int = 2) -> Iterator[SparkCluster]:
    """A running cluster, its logs in a folder, and so many executors for an application."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = SparkCluster(folder, executors)
    try:
        for name in ("worker-1", "worker-2"):
            cluster.add_worker(name)
        cluster.wait()
        yield cluster
    finally:
        for name in list(cluster._processes):
            cluster.kill(name)
