"""The worker that keeps a JVM: who may use it, and when it ends. No JVM is started here."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ebbtide.config import Settings
from ebbtide.warm_jvm import STATUS, STOP, ask_worker, borrowing

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ebbtide-warm-") as folder:
        yield Path(folder) / "home"


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    started = []

    def begin(seconds: float = 60.0, key: str = "a") -> subprocess.Popen[bytes]:
        folder = borrowing.worker_folder(Settings(home=home))
        folder.mkdir(parents=True)
        spec = {"home": str(home), "timezone": "UTC", "app": "visits", "key": key}
        process = subprocess.Popen(
            [sys.executable, "-m", "ebbtide.warm_jvm.process"],
            stdin=subprocess.PIPE,
            cwd=home,
        )
        started.append(process)
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(json.dumps({**spec, "seconds": seconds}).encode())
        wait_until(lambda: bool(ask_worker(Settings(home=home), STATUS)))
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_tells_its_own_user_and_ends_when_told(home: Path, start: Start) -> None:
    settings = Settings(home=home)
    assert ask_worker(settings, STATUS) == {}
    process = start()
    status = ask_worker(settings, STATUS)
    assert (status["pid"], status["busy"], status["commands"]) == (process.pid, False, 0)
    folder = borrowing.worker_folder(settings)
    assert stat.S_IMODE((folder / borrowing.SOCKET).stat().st_mode) == 0o600
    assert ask_worker(settings, STOP)["pid"] == process.pid
    process.wait(60)
    assert not (folder / borrowing.SOCKET).exists()
    assert ask_worker(settings, STOP) == {}


def test_a_worker_ends_when_its_home_is_deleted(home: Path, start: Start) -> None:
    process = start()
    shutil.rmtree(home)
    process.wait(60)


def test_a_worker_ends_when_it_is_idle(start: Start) -> None:
    start(seconds=1.0).wait(60)


def test_a_worker_with_other_settings_makes_room(home: Path, start: Start) -> None:
    process = start(key="a")
    line = borrowing.connect(borrowing.worker_folder(Settings(home=home)))
    assert line is not None
    with closing(line):
        assert line.ask({"do": borrowing.USE, "key": "b"}) == {}
    process.wait(60)


def test_the_key_changes_with_whatever_spark_would_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"app": "a", "conf": {"spark.x": "1"}, "timezone": "UTC"}
    keys = [borrowing.take_key(spec), borrowing.take_key({**spec, "timezone": "Europe/Warsaw"})]
    monkeypatch.setenv("SOME_VARIABLE", "1")
    keys.append(borrowing.take_key(spec))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    keys.append(borrowing.take_key(spec))
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    keys.append(borrowing.take_key(spec))
    monkeypatch.chdir(tmp_path)
    keys.append(borrowing.take_key(spec))
    assert len(set(keys)) == len(keys)
    monkeypatch.setenv("SHLVL", "7")
    assert borrowing.take_key(spec) == keys[-1]


def test_a_long_home_has_a_worker_too(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with borrowing.socket_address(folder) as address:
        assert len(os.fsencode(address)) < 100
