"""What the adapter of each store promises, on real servers."""

from __future__ import annotations

import base64
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ebbtide.connectors.delta.log import load_table, newest_version
from ebbtide.errors import CheckpointError, StorageError
from ebbtide.hadoop import _OF_THE_RUN, use_spark_settings
from ebbtide.storage import WritableFolder, open_writable
from tests.outputs import write_batches
from tests.servers.store import Store
from tests.servers.stores import SERVERS, Stores


@pytest.fixture(params=SERVERS)
def store(request: pytest.FixtureRequest, use: Stores) -> Store:
    return use(request.param)


@pytest.fixture
def folder(store: Store) -> WritableFolder:
    return open_writable(f"{store.new_root()}/c")


def test_exactly_one_of_several_creates_a_file(folder: WritableFolder) -> None:
    assert folder.creates_exclusively
    with ThreadPoolExecutor(6) as pool:
        for turn in range(4):
            texts = [f"{turn}.{n}" * 500 for n in range(6)]
            created = list(pool.map(lambda text, turn=turn: folder.create(f"{turn}", text), texts))
            assert created.count(True) == 1
            assert folder.read(f"{turn}") == texts[created.index(True)]
    assert folder.names(".ebbtide/tmp") == []


def test_files_are_written_moved_and_copied_whole(folder: WritableFolder) -> None:
    name = "a b%20#1?x=ü"
    for text in ("", "longer" * 5000, "short"):
        folder.write(f"n/{name}", text)
        assert folder.read(f"n/{name}") == text
    folder.write("m/there", "before")
    folder.link(f"n/{name}", "l/copy")
    folder.move(f"n/{name}", "m/there")
    assert (folder.read("m/there"), folder.read("l/copy")) == ("short", "short")
    assert (folder.read(f"n/{name}"), folder.stat(f"n/{name}")) == (None, None)
    assert not folder.exists(f"n/{name}")
    stat = folder.stat("m/there")
    assert stat is not None
    assert (stat.size, stat.modified is not None) == (5, True)
    assert abs(time.time() - (stat.modified or 0)) < 600
    with pytest.raises(CheckpointError, match="more than the 4 bytes that are read"):
        folder.read("m/there", limit=4)
    for change in (folder.move, folder.link):
        with pytest.raises(FileNotFoundError):
            change("gone", "m/there")
    folder.probe()
    folder.remove_tree("m")
    assert (folder.exists("m"), folder.names("nowhere")) == (False, [])


@pytest.mark.parametrize("name", ["c*", "c[1]"])
def test_a_folder_is_removed_by_its_very_name(store: Store, name: str) -> None:
    """To fsspec, it is a pattern: its neighbour must not be removed with it."""
    root = store.new_root()
    folder, other = open_writable(f"{root}/{name}"), open_writable(f"{root}/c1")
    for one in (folder, other):
        one.write("state/0/1.delta", "text")
        one.write("state/metadata", "text")
    folder.remove_tree("state/metadata")
    folder.remove_tree("state")
    assert not folder.exists("state")
    assert other.read("state/0/1.delta") == other.read("state/metadata") == "text"


def test_a_rewritten_file_has_another_stamp(folder: WritableFolder) -> None:
    folder.write("offsets/1", "aa")
    before = folder.stamps("offsets")
    folder.write("offsets/1", "bb")
    assert folder.stamps("offsets") != before


@pytest.mark.parametrize("kind", ["s3", "azure", "gcs"])
def test_a_missing_bucket_is_named_and_not_made(kind: str, use: Stores) -> None:
    root = use(kind).new_root()
    folder = open_writable(f"{root}0/c")
    for change in (folder.write, folder.create):
        with pytest.raises(StorageError, match="its bucket or container does not exist"):
            change("offsets/1", "text")
    assert (folder.read("metadata"), folder.names("offsets")) == (None, [])


def test_a_wrong_key_is_no_missing_file(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store = stores("azure")
    right = store.environment["AZURE_STORAGE_CONNECTION_STRING"]
    key = base64.b64encode(os.urandom(64)).decode()
    wrong = ";".join(
        f"AccountKey={key}" if part.startswith("AccountKey") else part for part in right.split(";")
    )
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", wrong)
    folder = open_writable(f"{store.new_root()}/wrong")
    for read in (folder.read, folder.stat, folder.names, folder.exists):
        with pytest.raises(CheckpointError, match=r"No permission to .* Check your credentials"):
            read("metadata")
    with pytest.raises(StorageError, match="cannot be written"):
        folder.write("metadata", "")
    assert key not in capfd.readouterr().err


def test_spark_s_settings_reach_s3(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    store = stores("s3")
    monkeypatch.setattr("ebbtide.hadoop._OF_THE_RUN", {**_OF_THE_RUN})
    use_spark_settings(store.spark)
    url = f"s3a://{store.new_root().partition('://')[2]}/c"
    folder = open_writable(url)
    folder.write("a", "text")
    assert (folder.read("a"), folder.address) == ("text", url.replace("s3a:", "s3:"))


def test_hdfs_is_found_by_its_own_url(use: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    root = use("hdfs").new_root()
    folder = open_writable(root)
    folder.write("a", "text")
    host, _, port = root.partition("://")[2].partition("/")[0].partition(":")
    monkeypatch.setenv("EBBTIDE_WEBHDFS_PORT", port)
    same = open_writable(f"hdfs://{host}:8020/{root.rpartition('/')[2]}")
    assert (same.read("a"), same.address) == ("text", folder.address)


def test_delta_s_library_reads_the_tables_of_each_store(store: Store, tmp_path: Path) -> None:
    write_batches(tmp_path / "table", range(2))
    url = store.upload(tmp_path / "table", f"{store.new_root()}/t")
    if store.kind == "hdfs":  # the library does not take WebHDFS; we read the log ourselves then
        assert newest_version(url) == 1
        url = f"{store.spark['spark.hadoop.fs.defaultFS']}/{url.partition('://')[2].partition('/')[2]}"
    assert load_table(url).version() == 1


def test_the_mark_of_a_folder_is_nothing_in_it(use: Stores) -> None:
    """As the console of S3 creates an empty folder."""
    url = use("s3").new_root()
    folder = open_writable(f"{url}/new")
    bucket, _, key = folder.root.partition("/")
    folder.filesystem.call_s3("put_object", Bucket=bucket, Key=f"{key}/")
    assert folder.names() == []
    folder.write("a", "1")
    assert folder.names() == ["a"]
