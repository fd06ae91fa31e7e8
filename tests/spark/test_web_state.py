"""State on the page, read by the real process: as the core reads it, harmless, and gone in time."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.checkpoint import read_checkpoint
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError
from ebbtide.state.diff import diff_state, summarize
from ebbtide.state.parts import find_part
from ebbtide.state.reading import read_state, take
from ebbtide.state.values import abbreviate, to_short_json
from ebbtide.systems.early_writer.pipeline import pipeline
from ebbtide.testing import Rehearsal
from ebbtide.web.worker import Worker
from tests import cells

SCRIPT = "<script>alert(1)</script>"
QUOTED = 'a "quoted" Key'
LARGE = 1_000_000
PARTS = {"operator": None, "side": None, "store": None, "variable": None, "timers": False}


def remember(spark: SparkSession, folder: Path, batches: list[dict[str, str]]) -> Path:
    """A query that keeps the longest text of each key, a batch for each of these."""
    for number, texts in enumerate(batches):
        (folder / "in").mkdir(exist_ok=True, parents=True)
        lines = [json.dumps({"key": key, "text": text}) for key, text in texts.items()]
        (folder / "in" / f"{number}.json").write_text("\n".join(lines))
        os.utime(folder / "in" / f"{number}.json", (1_000 + number, 1_000 + number))
    rows = spark.readStream.schema("key STRING, text STRING").option("maxFilesPerTrigger", 1)
    (
        rows.json(str(folder / "in"))
        .groupBy("key")
        .agg(F.max("text").alias("text"), F.count("*").alias("count"))
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    return folder / "checkpoint"


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    many = {f"key-{number:03}": "x" for number in range(70)}
    first = {SCRIPT: "a", QUOTED: "b", "large": "x" * LARGE, **many}
    yield remember(
        spark,
        tmp_path_factory.mktemp("remembered"),
        [first, {SCRIPT: "z", "large": "y" * LARGE, "late": "c"}],
    )
    cells.forget_state(spark)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    found = Worker(Settings(home=tmp_path_factory.mktemp("page")))
    yield found
    found.close()


def with_descendants(pid: int | None) -> list[psutil.Process]:
    if pid is None:
        return []
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; an orphan that nobody has buried does not."""

    def runs(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return [process for process in processes if runs(process)]


def wait_for(what: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.05)


def show(worker: Worker, place: Path, **asked: Any) -> Any:
    question = {"part": PARTS, "batch": None, "contains": None, "limit": 50, **asked}
    return worker.ask({"do": "show", "location": str(place), **question})


def test_the_process_decodes_the_visits_of_the_early_writer(
    worker: Worker, spark: SparkSession, tmp_path: Path
) -> None:
    with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
        rehearsal.feed({"visit_id": 7, "event_time": "2025-09-04T07:00:00", "page": "home"})
    (row,) = show(worker, rehearsal.checkpoint)["first"]
    assert row["key"]["text"] == '{"id":7}'
    assert json.loads(row["value"]["text"])["pages"] == 1


def test_the_process_reads_what_the_core_reads(
    worker: Worker, place: Path, spark: SparkSession
) -> None:
    checkpoint = read_checkpoint(str(place))
    part = find_part(checkpoint)
    for batch in (0, 1):
        known = take(read_state(spark, checkpoint, part, batch), 0)
        found = show(worker, place, batch=batch, limit=500)
        assert found["count"] == known.count == (73, 74)[batch]
        assert [row["key"]["text"] for row in found["first"]] == [
            to_short_json(abbreviate(entry.key)) for entry in known.first
        ]
        for row, entry in zip(found["first"], known.first, strict=True):
            text = to_short_json(abbreviate(entry.value))
            assert row["value"]["text"] == text[:2_000]
            assert row["value"]["bytes"] == len(text.encode())
            assert row["value"]["cut"] == (len(text) > 2_000)
            assert row["partition"] == entry.partition
    assert len(show(worker, place)["first"]) == 50

    diff = summarize(diff_state(spark, checkpoint, part, 0, 1), 0)
    question = {"part": PARTS, "before": 0, "after": 1, "contains": None, "limit": 50}
    found = worker.ask({"do": "diff", "location": str(place), **question})
    assert found["counts"] == diff.counts == {"added": 1, "changed": 2, "removed": 0}
    told = [(row["kind"], row["key"]["text"], row["summary"]) for row in found["first"]]
    known_changes = [(c.kind, to_short_json(abbreviate(c.key)), c.describe()) for c in diff.first]
    assert told[0] == known_changes[0]
    assert (told[1], told[2]) == (known_changes[1], (*known_changes[2][:2], ""))
    large = found["first"][2]
    assert large["new"]["cut"]
    assert large["new"]["bytes"] > LARGE
    assert len(json.dumps(found)) < 20_000


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("SCRIPT>alert", 1),
        ("key-00", 10),
        ("KEY", 74),  # the name of the field
        (QUOTED.upper(), 1),
        ("' OR 1=1 --", 0),
        ("%", 0),
        ("reflect('java.lang.System', 'exit', 0)", 0),
        ("\\", 1),  # as it stands in JSON
    ],
)
def test_a_key_is_found_by_plain_text(worker: Worker, place: Path, text: str, count: int) -> None:
    assert show(worker, place, contains=text)["count"] == count


def test_refusals_are_the_cores(worker: Worker, place: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Batch 9 has no commit"):
        show(worker, place, batch=9)
    broken = shutil.copytree(place, tmp_path / "broken")
    for file in (*broken.rglob("*.zip"), *broken.rglob("*.changelog")):
        file.write_bytes(b"not what it was")
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    before = worker.pid
    with pytest.raises(CheckpointError):
        show(worker, broken, batch=1)
    assert worker.pid == before


def test_another_timeline_under_the_same_name(
    worker: Worker, place: Path, spark: SparkSession, tmp_path: Path
) -> None:
    """A warm process must not answer from what it has read before."""
    moved = shutil.copytree(place, tmp_path / "checkpoint")
    assert show(worker, moved, contains="late")["count"] == 1
    other = remember(spark, tmp_path / "other", [{"a": "1"}, {"b": "2"}])
    shutil.rmtree(moved)
    shutil.copytree(other, moved)
    assert [row["key"]["text"] for row in show(worker, moved)["first"]] == [
        '{"key":"a"}',
        '{"key":"b"}',
    ]


def read_json(lines: IO[str]) -> Any:
    """One value, as soon as it is whole."""
    text = ""
    while True:
        text += (line := lines.readline())
        try:
            return json.loads(text)
        except ValueError:
            assert line, text


@contextmanager
def served(home: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """`ebbtide ui` as a process, and a visitor."""
    command = [sys.executable, "-m", "ebbtide", "ui", "--no-browser", "--port", "0", "-o", "json"]
    environment = {**os.environ, "XDG_STATE_HOME": str(home / "state-home")}
    with subprocess.Popen(
        [*command, "--home", str(home)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            link = httpx.URL(read_json(process.stdout)["url"])
            origin = f"http://{link.host}:{link.port}"
            with httpx.Client(base_url=origin, timeout=120, trust_env=False) as client:
                assert client.get(link).status_code == 303
                yield process, client
        finally:
            process.kill()


def test_a_server_that_is_ended_leaves_no_process(place: Path) -> None:
    home = place.parent / "home"
    shutil.copytree(place, home / "checkpoints" / "visits", dirs_exist_ok=True)
    with served(home) as (process, client):
        key = re.search(r"/checkpoints/([\w.-]+)", client.get("/").text)
        assert key is not None
        path = f"/checkpoints/{key[1]}/state"
        assert "about ten seconds the first time" in client.get(path).text
        page = client.get(f"{path}/rows?batch=0&limit=200").text
        assert SCRIPT not in page
        assert html.escape(SCRIPT) in page
        assert re.search("cut: 2,000 characters of [0-9.]+ KiB are shown", page)
        assert len(page) < 100_000
        assert "Reading the state" in client.get(path).text  # it is warm
        family = with_descendants(process.pid)
        assert any("java" in one.name() for one in family)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: not alive(family))
        assert not alive(family)


def test_a_page_that_nobody_looks_at_holds_no_spark(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.web.worker.IDLE_SECONDS", 5.0)
    worker = Worker(Settings(home=tmp_path))
    assert show(worker, place)["count"] == 74
    family = with_descendants(worker.pid)
    assert any("java" in one.name() for one in family)
    wait_for(lambda: not worker.warm)
    assert not alive(family)
