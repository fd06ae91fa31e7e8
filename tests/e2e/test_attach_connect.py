"""A program of Spark Connect's: a real server, and a client that is followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from ebbtide.checkpoint import Owner, read_checkpoint
from ebbtide.history import kept_entries
from ebbtide.rewind import lease
from ebbtide.storage import open_folder
from tests.conftest import Cli
from tests.e2e.conftest import wait_until
from tests.servers.connect import spark_connect

FILES = 3
NAMES = ("one", "two", "three")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_connect(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of two events each, a minute apart."""
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        rows = [{"at": f"2025-09-04T07:0{file}:0{n}Z", "n": 2 * file + n} for n in range(2)]
        path = tmp_path / "in" / f"{file}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_756_969_200 + file,) * 2)  # Spark reads the oldest first
    return tmp_path


class ConnectJob:
    """The program as a process of its own."""

    def __init__(self, folder: Path, server: str, *through: str) -> None:
        self._stop = folder / "stop"
        self._stop.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, *through, Path(__file__).with_name("connect_job.py"), folder, server],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> None:
        """Let it stop its queries and end, saying nothing."""
        self._stop.touch()
        try:
            said, _ = self.process.communicate(timeout=120)
        finally:
            self.process.kill()
        assert (self.process.returncode, said) == (0, "")


def written(folder: Path, name: str) -> list[int]:
    files = [path for path in (folder / name).glob("*.parquet") if path.is_file()]
    rows = [row for path in files for row in parquet.read_table(path).to_pylist()]
    return sorted(row["n" if "n" in row else "rows"] for row in rows)


def test_a_client_is_followed(server: str, folder: Path, inside: Cli) -> None:
    """Steps: **1** held while it runs, **2** recorded whole, **3** rewound, **4** and again."""
    kept = {name: folder / "checkpoints" / name for name in NAMES}
    kept["two"] = folder / "elsewhere" / "two"
    last = {"one": FILES - 1, "two": FILES, "three": FILES - 1}  # with a batch that has no data
    # 1
    job = ConnectJob(folder, server)
    try:
        for name, checkpoint in kept.items():
            wait_until((checkpoint / "commits" / str(last[name])).exists, seconds=240)
            store = open_folder(str(checkpoint))
            wait_until(lambda store=store: lease.read_lease(store))  # type: ignore[misc]
            assert lease.read_lease(store).alive() == [job.process.pid]  # type: ignore[union-attr]
        back = ("--to-event-time", "2025-09-04T07:01:00", "--sink", "restore", "--execute", "--yes")
        assert "the query is running" in inside("rewind", kept["one"], *back).stderr
    finally:
        job.finish()
    for name, checkpoint in kept.items():
        # 2
        contents = read_checkpoint(str(checkpoint))
        entries = kept_entries(contents)
        assert list(entries) == [batch.id for batch in contents.logs.batches if batch.committed]
        assert [entry.rows for entry in entries.values()][:FILES] == [2] * FILES
        times = [entry.event_times for entry in entries.values()][:FILES]
        latest = {"one": "01.000000Z", "two": "01.000999Z"}.get(name)
        ranges = [
            (f"2025-09-04T07:0{n}:00.000000Z", f"2025-09-04T07:0{n}:{latest}") for n in range(FILES)
        ]
        assert times == (ranges if latest else [None] * FILES)
        owner = Owner.read(contents.folder)
        assert owner.pipeline == name
        assert (owner.sink or {})["path"] == str(folder / name)
        assert lease.read_lease(contents.folder).released  # type: ignore[union-attr]
    # 3
    rewound = inside("rewind", kept["one"], *back)
    assert rewound.returncode == 0, rewound.stderr
    assert read_checkpoint(str(kept["one"])).folder.ids("commits") == [0]
    assert written(folder, "one") == [0, 1]
    # 4
    job = ConnectJob(folder, server, "-m", "ebbtide.attach")
    try:
        wait_until((kept["one"] / "commits" / str(last["one"])).exists, seconds=240)
    finally:
        job.finish()
    assert written(folder, "one") == written(folder, "three") == list(range(2 * FILES))
    assert list(kept_entries(read_checkpoint(str(kept["one"])))) == list(range(FILES))
