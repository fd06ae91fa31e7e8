"""A checkpoint that Spark wrote, on real servers of four stores: the same results as on disk."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.conftest import Cli
from tests.e2e.conftest import wait_until
from tests.outputs import rows_of, write_partitions
from tests.servers.stores import SERVERS, Stores
from tests.trees import Shape, make, snapshot

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"
CASES = (
    sorted(str(path.relative_to(CHECKPOINTS)) for path in CHECKPOINTS.rglob("*.tar.gz"))
    if os.environ.get("EBBTIDE_STORES") == "all"
    else ["4.2.0/changelog-aggregation.tar.gz"]
)
STOPPED = ("--sink", "none", "--assume-stopped", "--execute", "--yes")


def unpack(name: str, folder: Path) -> Path:
    with tarfile.open(CHECKPOINTS / name) as archive:
        # Hadoop writes its own checksums only to a disk
        files = [file for file in archive if not re.search(r"/\.[^/]*\.crc$", file.name)]
        archive.extractall(folder, files, filter="data")
    return folder


def play(
    run: Cli, spellings: tuple[str, ...], contents: Callable[[str], dict[str, bytes]]
) -> dict[str, Any]:
    """What each command says and leaves behind; each writes the URL in the next of its ways."""
    ways = cycle(spellings)

    def call(*words: str) -> Any:
        name, *flags = words
        url = next(ways)
        flags = [flag.format(url=url) for flag in flags]
        done = run(name, url, *flags, "-o", "json")
        assert done.returncode == 0, done.stderr
        return _same_everywhere(json.loads(done.stdout), spellings)

    first = spellings[-1]
    seen: dict[str, Any] = {"inspect": call("inspect"), "verify": call("verify")}
    seen["plan"] = call("rewind", "--shift-by", "-2", "--sink", "none", "--assume-stopped")
    call("rewind", "--shift-by", "-2", *STOPPED)
    seen["rewound"], seen["verify again"] = contents(first), call("verify")
    seen["backups"] = len(call("backups"))
    call("undo", "--yes", "--assume-stopped")
    seen["undone"] = contents(first)
    call("fork", "{url}-fork", "--at-batch", "6")
    seen["forked"] = contents(f"{first}-fork")
    for part in ("rewound", "forked"):
        del seen[part]["metadata"]  # a new query id each time
    return seen


def _same_everywhere(said: Any, spellings: tuple[str, ...]) -> Any:
    """What a command says, but for the place and for what depends on the time of writing."""
    match said:
        case dict():
            kept = said.keys() - {"replayable_until", "fingerprint", "digest"}
            if said.get("name") == "not running":
                kept = {"name"}
            return {name: _same_everywhere(said[name], spellings) for name in kept}
        case list():
            return [_same_everywhere(each, spellings) for each in said]
        case str():
            for spelling in spellings:
                said = said.replace(spelling, "CHECKPOINT")
    return said


@pytest.mark.parametrize("checkpoint", CASES)
@pytest.mark.parametrize("kind", SERVERS)
def test_a_store_gives_the_same_results_as_a_disk(
    kind: str, checkpoint: str, use: Stores, inside: Cli, tmp_path: Path
) -> None:
    local = unpack(checkpoint, tmp_path / "c")
    for path in local.rglob("*"):
        path.touch()  # as new as what is uploaded, so both queries may be running
    before = snapshot(local)
    store = use(kind)
    url = store.upload(local, f"{store.new_root()}/jobs/visits")
    on_store = play(inside, store.spell(url), store.contents)
    on_disk = play(inside, (str(local),), lambda path: snapshot(Path(path)))
    assert on_store["undone"] == before
    assert on_store == on_disk


TABLES = {"s3": "my tables/100% #1", "azure": "my tables/100% #1", "hdfs": "tables/visits"}
"""Where Delta's library can commit: not on this GCS, which cannot list from a name on; on HDFS it
does not find names that a URL would encode."""


@pytest.mark.parametrize("kind", TABLES)
def test_a_delta_table_on_a_store_goes_back_and_forth(
    kind: str, use: Stores, inside: Cli, tmp_path: Path
) -> None:
    """Partitioned, and merged meanwhile."""
    store = use(kind)
    root = store.new_root()
    make(tmp_path / "c", Shape(batches=4, hadoop_checksums=False))
    write_partitions(tmp_path / "table", range(4), ["a b", "100%", None])
    DeltaTable(str(tmp_path / "table")).optimize.compact()
    checkpoint = store.upload(tmp_path / "c", f"{root}/c")
    table = store.upload(tmp_path / "table", f"{root}/{TABLES[kind]}")

    def rows() -> list[str]:
        with TemporaryDirectory() as folder:
            return rows_of(store.download(table, Path(folder)))

    before = rows()
    spark_url, *_ = store.spell(table)
    flags = ("--to-batch", "2", "--sink-table", spark_url, "--sink", "restore")
    done = inside("rewind", checkpoint, *flags, "--assume-stopped", "--execute", "--yes")
    assert done.returncode == 0, done.stderr
    assert rows() == [row for row in before if int(row[0]) < 2]
    done = inside("undo", checkpoint, "--assume-stopped", "--yes")
    assert done.returncode == 0, done.stderr
    assert rows() == before


@pytest.mark.parametrize("kind", SERVERS)
def test_a_process_of_its_own_finds_a_store_by_its_environment(
    kind: str, stores: Stores, cli: Cli, tmp_path: Path
) -> None:
    store = stores(kind)
    shape = Shape("hdfs", batches=5, partitions=1, hadoop_checksums=False)
    url = store.upload(make(tmp_path / "c", shape), f"{store.new_root()}/c")
    spark_url, *_ = store.spell(url)
    refused = cli("rewind", spark_url, "--to-batch", "3", "--execute", **store.environment)
    assert (refused.returncode, "--assume-stopped" in refused.stderr) == (1, True), refused.stderr
    assert store.everything(url) == snapshot(tmp_path / "c")
    done = cli("rewind", url, "--to-batch", "3", *STOPPED, **store.environment)
    assert done.returncode == 0, done.stderr
    assert "offsets/4" not in store.contents(url)


def test_a_server_ends_with_the_tests_that_were_killed() -> None:
    script = (
        "from tests.servers import gcs\n"
        "with gcs.serve() as store: print(store.options['endpoint_url'], flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKPOINTS.parents[2],
    ) as tests:
        assert tests.stdout is not None
        port = int(tests.stdout.readline().rpartition(":")[2])
        assert socket.socket().connect_ex(("127.0.0.1", port)) == 0
        tests.kill()
    wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)), seconds=30)
