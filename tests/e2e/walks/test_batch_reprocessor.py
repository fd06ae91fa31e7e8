"""The batch reprocessor's walk, whole; then killed at a chunk, retried, and run once more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.local.broker import free_port, start_broker, stop_broker
from tests.conftest import Cli
from tests.e2e.conftest import QUICK_JAVA, QUICK_START, wait_until

ZONE = ("--timezone", "Europe/Paris")
"""Times without a zone are of this one: the same walk, and what it writes ends in +02:00."""
RANGE = ("--event-time-start", "2025-09-04T07:00", "--event-time-end", "2025-09-04T08:10")


def counts(messages: list[dict[str, Any]]) -> list[tuple[str, int]]:
    rows = [(message["key"], json.loads(message["value"])) for message in messages]
    assert all(key == row["window"]["start"] for key, row in rows)
    return [(key[11:16], row["count"]) for key, row in rows]


def on_topic(settings: Settings) -> list[kafka.Record]:
    retained = kafka.retained_offsets(settings.kafka, "visits_counter")
    start, end = dict.fromkeys(retained, 0), {p: last for p, (_, last) in retained.items()}
    found = kafka.consume_range(settings.kafka, "visits_counter", start, end)
    return sorted(found, key=lambda record: (record.timestamp_ms, record.offset))


@pytest.mark.usefixtures("one_jvm")
def test_the_walk(cli: Cli, inside: Cli, tmp_path: Path) -> None:
    command = ("demo", "batch-reprocessor", "--home", tmp_path, *ZONE, "-o", "json")
    answer = cli(*command, timeout=400, **QUICK_JAVA)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert counts(found["messages"]) == [("07:00", 3), ("07:30", 3), ("07:00", 5)]
    first, _, again = found["messages"]
    assert first["value"] == (
        '{"window":{"start":"2025-09-04T07:00:00.000+02:00",'
        '"end":"2025-09-04T07:10:00.000+02:00"},"count":3}'
    )
    log = "visits/_delta_log/" + 19 * "0"
    assert f"{log}0.json\n{log}1.json\n" in answer.stderr
    assert again["partition"] == first["partition"]
    assert first["headers"] == {"ebbtide-pipeline": "visits-counter", "ebbtide-timeline": "origin"}
    assert set(again["headers"]) == {"ebbtide-run-id", "ebbtide-source"}
    assert again["headers"]["ebbtide-source"].startswith("visits@")
    # one commit with data a step, and both queries ran throughout
    assert len(found["commits"]) == 4
    assert {name: len(ids) for name, ids in found["run_ids"].items()} == {"stream": 1, "archive": 1}
    assert "count 3 → 5" in found["reprocess"]

    home = Path(found["home"])
    broker = start_broker(home / "broker", port=free_port())
    settings = Settings(home=home, bootstrap_servers=broker.bootstrap_servers)
    try:
        killed_at_a_chunk(inside, settings)
        once_more(inside, settings)
        not_yet_archived(inside, settings)
    finally:
        stop_broker(home / "broker")


def reprocess(settings: Settings, *flags: str) -> list[str]:
    where = ("--home", str(settings.home), "--bootstrap-servers", settings.kafka.address)
    return ["reprocess", "visits-counter", *RANGE, *ZONE, *where, *QUICK_START, *flags]


def killed_at_a_chunk(inside: Cli, settings: Settings) -> None:
    """Seven chunks; killed when the second is done, the retry runs only what is missing."""
    held = len(on_topic(settings))
    command = [sys.executable, "-m", "ebbtide"]
    command += reprocess(settings, "--execute", "--yes", "--chunk", "PT10M")
    before = set((settings.home / "runs").iterdir())
    job = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def second_done() -> bool:
        assert job.poll() is None, job.returncode
        new = set((settings.home / "runs").iterdir()) - before
        return any((run / "chunk-0002.json").exists() for run in new)

    wait_until(second_done)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    (run,) = set((settings.home / "runs").iterdir()) - before
    done = sorted(path.name for path in run.glob("chunk-*.json"))
    assert 2 <= len(done) < 7

    where = ("--home", settings.home, "--bootstrap-servers", settings.kafka.address)
    answer = inside("retry", run.name, *where, *QUICK_START, "-o", "json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["ran"] == 7 - len(done)
    assert found["status"] == "success"
    assert len(found["chunks"]) == 7
    # compared with what the topic held before the run, whatever the killed one had written
    assert found["counts"] == {"unchanged": 2, "changed": 0, "new": 1, "gone": 0}
    written = [
        (json.loads(record.value or b"")["window"]["start"][11:16], dict(record.headers))
        for record in on_topic(settings)[held:]
    ]
    # the chunk in which it was killed may have been written twice, under the same key
    assert {start for start, _ in written} >= {"07:30", "08:00"}
    assert all(headers["ebbtide-run-id"] == run.name.encode() for _, headers in written)


def once_more(inside: Cli, settings: Settings) -> None:
    """With `--only-changed`, a second time nothing is written; a picture is."""
    held = len(on_topic(settings))
    picture = settings.home / "windows.png"
    answer = inside(
        *reprocess(settings, "--execute", "--yes", "--only-changed", "--plot", str(picture)),
        *("-o", "json"),
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["counts"] == {"unchanged": 3, "changed": 0, "new": 0, "gone": 0}
    assert found["written"] == 0
    assert [point["new"] for point in found["points"]] == [5, 3, 3]
    assert len(on_topic(settings)) == held
    assert picture.read_bytes().startswith(b"\x89PNG")


def not_yet_archived(inside: Cli, settings: Settings) -> None:
    """A visit that is in the topic and not in the archive: refused, nothing written."""
    with kafka.Sender(settings.kafka, "visits") as sender:
        sender.send(b'{"visit_id": 1, "event_time": "2025-09-04T07:05:00"}')
    held, runs = len(on_topic(settings)), set((settings.home / "runs").iterdir())
    answer = inside(*reprocess(settings, "--execute", "--yes"))
    assert answer.returncode == 1
    assert "1 records of the range are in topic visits and not yet archived" in answer.stderr
    assert "ebbtide archive visits-counter --available-now" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert len(on_topic(settings)) == held
    assert set((settings.home / "runs").iterdir()) == runs
