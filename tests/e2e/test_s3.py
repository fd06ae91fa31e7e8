"""The same rewind and undo on an S3 API, and how many calls it takes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from ebbtide.checkpoint import Backup, read_checkpoint
from ebbtide.checkpoint.verification import verify_checkpoint
from ebbtide.connectors.delta.log import load_table
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.target import ShiftBy, ToBatch
from ebbtide.storage import open_folder
from tests.conftest import Cli
from tests.outputs import write_partitions
from tests.trees import JOIN_STORES, Shape, make, snapshot

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


def contents(url: str) -> dict[str, bytes]:
    s3 = fsspec.filesystem("s3", use_listings_cache=False)
    root = url.removeprefix("s3://") + "/"
    return {
        path.removeprefix(root): content
        for path, content in s3.cat(s3.find(root)).items()
        if "/.ebbtide/" not in path
    }


@pytest.mark.parametrize("layout", ["hdfs", "v2"])
def test_rewind_and_undo_on_s3(layout: str, bucket: str, tmp_path: Path) -> None:
    stores = JOIN_STORES[:2] if layout == "hdfs" else ("default",)
    # S3 has no Hadoop checksum files
    shape = Shape(layout, batches=3, partitions=1, stores=stores, hadoop_checksums=False)
    local = make(tmp_path / "c", shape)
    url = f"s3://{bucket}/checkpoints/c"
    upload(local, url)
    before = contents(url)
    assert before == snapshot(local)
    assert not verify_checkpoint(url).broken
    plan = plan_rewind(RewindRequest(url, ShiftBy(-2), assume_stopped=True, remedy="none"))
    assert (plan.first_batch, plan.refusals) == (1, ())
    apply_rewind(plan, assume_stopped=True)
    # the same as on a disk
    apply_rewind(
        plan_rewind(RewindRequest(str(local), ToBatch(1), assume_stopped=True, remedy="none")),
        assume_stopped=True,
    )
    assert contents(url) == snapshot(local)
    assert len(Backup.read_all(open_folder(url))) == 1
    undo_rewind(url, assume_stopped=True)
    assert contents(url) == before
    with pytest.raises(Exception, match="it wrote"):
        undo_rewind(url)


def test_rewind_on_s3_from_the_command_line(
    endpoint: str, bucket: str, cli: Cli, tmp_path: Path
) -> None:
    url = f"s3://{bucket}/c"
    shape = Shape("hdfs", batches=5, partitions=1, hadoop_checksums=False)
    upload(make(tmp_path / "c", shape), url)
    where = {**KEYS, "AWS_ENDPOINT_URL": endpoint}
    refused = cli("rewind", url, "--to-batch", "3", "--execute", "--yes", **where)
    assert (refused.returncode, "--assume-stopped" in refused.stderr) == (1, True)
    flags = ("--to-batch", "3", "--sink", "none", "--assume-stopped", "--execute", "--yes")
    done = cli("rewind", url, *flags, **where)
    assert done.returncode == 0, done.stderr
    assert read_checkpoint(url).logs.batches[-1].id == 3


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


@pytest.fixture
def endpoint_of_its_own() -> Iterator[str]:
    """An S3 API in another process: Delta's library holds Python's lock while it asks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        while socket.socket().connect_ex(("127.0.0.1", port)) and server.poll() is None:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        server.terminate()


def test_a_delta_table_on_s3_goes_back_and_forth(
    endpoint_of_its_own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitioned, in a folder with a name of many characters, and merged meanwhile."""
    keys = {**KEYS, "AWS_ENDPOINT_URL": endpoint_of_its_own, "AWS_ALLOW_HTTP": "true"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    fsspec.filesystem("s3", use_listings_cache=False).mkdir(bucket := "bucket")
    folder, url = make(tmp_path / "c", Shape(batches=4)), f"s3://{bucket}/my tables/100% #1"
    write_partitions(tmp_path / "table", range(4), ["a b", "100%", None])
    upload(tmp_path / "table", url)
    load_table(url).optimize.compact()

    def rows() -> list[str]:
        return sorted(load_table(url).to_pyarrow_table()["row"].to_pylist())

    before = rows()
    request = RewindRequest(
        str(folder), ToBatch(2), assume_stopped=True, sink_tables=(url,), remedy="restore"
    )
    apply_rewind(plan_rewind(request), assume_stopped=True)
    assert rows() == [row for row in before if int(row[0]) < 2]
    undo_rewind(str(folder), assume_stopped=True)
    assert rows() == before
