from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebbtide.config import Settings
from ebbtide.demos.stage import Job
from ebbtide.local.broker import free_port, start_broker, stop_broker


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """An empty home with a broker of its own."""
    broker = start_broker(tmp_path / "broker", port=free_port())
    yield Settings(home=tmp_path, bootstrap_servers=broker.bootstrap_servers)
    stop_broker(tmp_path / "broker")


QUICK_START = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")
"""For jobs that live only seconds: less compiling, which a long-lived job would want."""


def run(settings: Settings, pipeline: str, *flags: str) -> Job:
    """`ebbtide run` as a process of its own."""
    return Job(settings, pipeline, *QUICK_START, *flags)


def wait_until(true: Callable[[], object], job: Job | None = None, seconds: float = 90) -> None:
    """Wait for something to become true, while the job runs that should make it so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert job is None or job.running, job.errors()
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)
