"""All four stores by their kind, each started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import fsspec
import pytest

from tests.servers import azure, gcs, hdfs, s3
from tests.servers.store import Store

SERVERS = {"s3": s3.serve, "azure": azure.serve, "gcs": gcs.serve, "hdfs": hdfs.serve}
Stores = Callable[[str], Store]


@contextmanager
def started_when_asked_for() -> Iterator[Stores]:
    """A function that gives the store of a kind, the same each time; all end with the block."""
    with ExitStack() as servers:
        yield cache(lambda kind: servers.enter_context(SERVERS[kind]()))


@pytest.fixture(scope="session")
def stores() -> Iterator[Stores]:
    """The stores, one server of each kind for all tests."""
    with started_when_asked_for() as found:
        yield found


@pytest.fixture
def use(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    """Give the store of a kind, with the environment set as its users set it."""

    def choose(kind: str) -> Store:
        store = stores(kind)
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        return store

    _forget()
    yield choose
    _forget()


def _forget() -> None:
    """fsspec keeps filesystems by their options, and does not see another environment."""
    for protocol in ("s3", "abfs", "gs", "webhdfs"):
        fsspec.get_filesystem_class(protocol).clear_instance_cache()
