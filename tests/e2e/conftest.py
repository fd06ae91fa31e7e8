"""What the end-to-end tests share: a broker that is empty for each, jobs as processes or inside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka.admin import AdminClient

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka.admin import list_topics
from ebbtide.local.broker import free_port, start_broker, stop_broker
from ebbtide.rewind.holders import read_lease
from ebbtide.storage import open_folder
from ebbtide.systems.harness import Job
from tests.conftest import INTERPRETED, SHORT_LIVED
from tests.inside import inside  # noqa: F401
from tests.servers.stores import stores, use  # noqa: F401

Result = TypeVar("Result")


@pytest.fixture(scope="session")
def broker_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the one broker that the tests share: each start of a broker takes seconds."""
    folder = tmp_path_factory.mktemp("shared") / "broker"
    start_broker(folder, port=free_port())
    yield folder
    stop_broker(folder)


@pytest.fixture
def settings(tmp_path: Path, broker_folder: Path) -> Iterator[Settings]:
    """An empty home, and in it a running broker without a topic; a test may kill the broker."""
    (tmp_path / "broker").symlink_to(broker_folder)
    broker = start_broker(broker_folder)
    yield Settings(home=tmp_path, bootstrap_servers=broker.bootstrap_servers)
    _wait_for_killed_jobs(tmp_path)
    start_broker(broker_folder)
    _delete_topics(broker.connection)


def _wait_for_killed_jobs(home: Path) -> None:
    """A killed job's JVM outlives it for a moment; it must not write for the next test to read."""
    for notes in home.glob("**/.ebbtide/leases"):
        lease = read_lease(open_folder(str(notes.parent.parent)))
        wait_until(lambda lease=lease: lease is None or lease.holder() is None)  # type: ignore[misc]


def _delete_topics(connection: kafka.KafkaConnection) -> None:
    admin = AdminClient(connection.client_settings())
    if topics := list(list_topics(connection)):
        for future in admin.delete_topics(topics).values():
            future.result(60)
        wait_until(lambda: not list_topics(connection))


QUICK_CONF = {"spark.driver.extraJavaOptions": SHORT_LIVED, **INTERPRETED}
"""Settings of a Spark that lives only seconds."""

QUICK_START = tuple(
    word for name, value in QUICK_CONF.items() for word in ("--conf", f"{name}={value}")
)
"""The same as flags of a job."""

QUICK_JAVA = {"JAVA_TOOL_OPTIONS": SHORT_LIVED}
"""Its JVM's options, for commands that start such jobs themselves and run them as users do."""


def run(settings: Settings, pipeline: str, *flags: str) -> Job:
    """`ebbtide run` as a process of its own."""
    return Job(settings, pipeline, *QUICK_START, *flags)


@pytest.fixture(scope="session")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from ebbtide.runtime.session import build_session, close_session

    home = Settings(home=tmp_path_factory.mktemp("session"))
    spark = build_session("tests", home, conf=QUICK_CONF)
    yield
    close_session(spark)


@pytest.fixture
def one_jvm(_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs `inside` finds a JVM running and leaves it to the next test: a start saved each."""
    monkeypatch.setattr("ebbtide.runtime.session.close_session", lambda _spark: None)


def together(*calls: Callable[[], Result]) -> list[Result]:
    """The results of calls that mostly wait for processes, made side by side."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def wait_until(true: Callable[[], object], job: Job | None = None, seconds: float = 90) -> None:
    """Wait for something to become true, while the job runs that should make it so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert job is None or job.running, job.errors()
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)
