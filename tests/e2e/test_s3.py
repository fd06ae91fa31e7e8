"""How many calls to an S3 API a plan takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from ebbtide.rewind import RewindRequest, plan_rewind
from ebbtide.rewind.target import ToBatch
from tests.trees import Shape, make

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket at the S3 API, found through the environment, as users have it."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    s3 = fsspec.filesystem("s3", use_listings_cache=False)
    name = f"bucket-{os.urandom(4).hex()}"
    s3.mkdir(name)
    yield name
    s3.rm(name, recursive=True)


def upload(folder: Path, url: str) -> None:
    fsspec.filesystem("s3", use_listings_cache=False).put(str(folder), url, recursive=True)


def test_listing_calls_grow_with_folders_not_with_files(
    bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    needed = {}
    for batches in (3, 20):
        shape = Shape("hdfs", batches=batches, partitions=2, hadoop_checksums=False)
        folder = make(tmp_path / str(batches), shape)
        url = f"s3://{bucket}/{batches}"
        upload(folder, url)
        with caplog.at_level("INFO", "werkzeug"):
            caplog.clear()
            plan_rewind(RewindRequest(url, ToBatch(2), assume_stopped=True, remedy="none"))
        needed[batches] = sum("list-type=2" in record.getMessage() for record in caplog.records)
    folders = sum(1 for path in folder.rglob("*") if path.is_dir()) + 1
    assert 0 < needed[3] == needed[20] <= 2 * folders
