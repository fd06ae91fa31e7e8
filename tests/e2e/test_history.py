"""The history of a real stream from Kafka: kept, asked for an event time, lost and rebuilt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from tests.conftest import Cli

JOB = "visits-windows-counter"
BATCHES: list[list[int | None]] = [
    [0, 1, 2, 9],
    [10, 18, 3, 11],  # one that is late
    [20, 28, None, 25],  # one that is broken
    [30, 5, 6, 31],  # two that are late
    [29, 29, 29, 29],
]
"""The minutes of the event times that each batch reads."""


@pytest.fixture
def checkpoint(settings: Settings, inside: Cli, one_jvm: None) -> Path:
    """Of a job that has run, four records a batch."""
    del one_jvm
    kafka.create_missing_topics(settings.kafka, ["visits"])
    with kafka.Sender(settings.kafka, "visits") as sender:
        for minute in (minute for batch in BATCHES for minute in batch):
            event = {"event_time": None if minute is None else f"2025-09-04T07:{minute:02d}:00"}
            sender.send(json.dumps(event).encode(), partition=0)
    ran = inside(
        *("run", JOB, "--available-now", "--max-offsets-per-trigger", "4"),
        *("--home", settings.home, "--bootstrap-servers", settings.kafka.address),
    )
    assert ran.returncode == 0, ran.stderr
    return settings.checkpoint(JOB)


def test_the_history_of_a_stream(inside: Cli, settings: Settings, checkpoint: Path) -> None:
    broker = ("--bootstrap-servers", settings.kafka.address)
    nowhere = ("--home", settings.home / "nowhere")

    def history(*flags: str | Path) -> list[dict[str, Any]]:
        answer = inside("history", checkpoint, "-o", "json", *flags)
        assert answer.returncode == 0, answer.stderr
        found: list[dict[str, Any]] = json.loads(answer.stdout)["batches"]
        return found

    def rewind(*flags: str | Path) -> str:
        answer = inside("rewind", checkpoint, "--to-event-time", "2025-09-04T07:20", *flags)
        assert answer.returncode == 0, answer.stderr
        assert f"Rewind {checkpoint} to batch 2 (event time " in answer.stderr
        return answer.stderr

    kept = history()
    assert [(b["rows"], b["broken"]) for b in kept[:5]] == [(4, 0), (4, 0), (4, 1), (4, 0), (4, 0)]
    assert [b["lag"] for b in kept[:5]] == [16, 12, 8, 4, 0]
    spans = [[time[11:16] for time in b["event_times"]] for b in kept[:5]]
    assert spans == [
        *(["07:00", "07:09"], ["07:03", "07:18"], ["07:20", "07:28"], ["07:05", "07:31"]),
        ["07:29", "07:29"],
    ]
    assert all(b["output"]["rows"] for b in kept[:5])
    # the field is known from the pipeline, the batch from the history, the count from Kafka
    assert "(from the history); 2 records older than that run again too, in batch 3" in rewind(
        *broker
    )
    # without a broker: how far back, from the history alone
    assert "older records run again too, back to 2025-09-04T07:05:00.000Z, in batch 3" in rewind(
        *nowhere
    )

    # a batch without an entry is read, and only that one
    entry = sorted((checkpoint / ".ebbtide/history").iterdir())[3]
    entry.unlink()
    assert "(4 records read); 2 records older than that run again too, in batch 3" in rewind(
        *broker
    )

    # without a history: the same answers, from Kafka alone
    shutil.rmtree(checkpoint / ".ebbtide" / "history")
    read = rewind(*broker)
    assert "(20 records read, 1 of them without an event time); 2 records older than" in read
    refused = inside("rewind", checkpoint, "--to-event-time", "2025-09-04T07:20", *nowhere)
    assert refused.returncode == 2
    assert (
        "The history does not have the event times of batches 0 to 4, and there is no broker"
        in (refused.stderr)
    )

    # rebuilt, it knows of rows and event times what it knew before
    history("--rebuild", *broker)
    rebuilt = history()
    for known in ("id", "rows", "broken", "event_times", "watermark", "sources"):
        assert [_plain(b[known]) for b in rebuilt] == [_plain(b[known]) for b in kept], known
    assert all(b["rebuilt"] and b["output"] is None for b in rebuilt)
    assert "(from the history)" in rewind(*nowhere)


def _plain(value: Any) -> Any:
    """Offsets, whatever the blanks in them."""
    return (
        [json.loads(text) if text[0] == "{" else text for text in value or ()]
        if isinstance(value, list)
        else value
    )
