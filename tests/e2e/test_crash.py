"""kill -9 of the job in the middle of a batch, and of the broker between two: counts stay exact."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.history.store import read_history
from ebbtide.local.broker import find_broker, start_broker
from ebbtide.storage import open_folder
from ebbtide.systems.console import ConsoleBatch
from tests.e2e.conftest import run, wait_until

JOB = "visits-windows-counter"


def last_counts(batches: Iterable[ConsoleBatch]) -> dict[str, int]:
    """The newest count of each window, by its start; a batch that ran again prints it again."""
    return {row["window"][12:17]: int(row["count"]) for batch in batches for row in batch.rows}


def send(connection: kafka.KafkaConnection, minutes: Iterable[int], each: int) -> None:
    with kafka.Sender(connection, "visits") as sender:
        for minute in minutes:
            value = json.dumps({"event_time": f"2025-09-04T07:{minute:02d}:00"}).encode()
            for n in range(each):
                sender.send(value, partition=n % 2)


def test_counts_are_exact_after_kills(settings: Settings) -> None:
    connection = settings.kafka
    kafka.create_missing_topics(connection, ["visits"])
    checkpoint = settings.checkpoint(JOB)
    send(connection, range(20), each=500)
    printed: list[ConsoleBatch] = []

    # the job, in the middle of a batch: planned, not committed
    with run(settings, JOB, "--max-offsets-per-trigger", "4000") as job:
        wait_until(lambda: (checkpoint / "offsets" / "1").exists(), job)
        assert not (checkpoint / "commits" / "1").exists()
        job.kill()
        printed += job.batches()

    # restarted at once, it waits for what is left of the killed one, and runs that batch again
    with run(settings, JOB, "--max-offsets-per-trigger", "4000") as job:
        wait_until(lambda: (checkpoint / "commits" / "2").exists(), job)
        wait_until(lambda: last_counts(printed + job.batches()).get("07:10") == 5_000, job)
        assert any(batch.id == 1 for batch in job.batches())

        # the broker, between two batches
        broker = find_broker(settings.broker)
        assert broker is not None
        os.kill(broker.pid, signal.SIGKILL)
        wait_until(lambda: not broker.alive)
        assert start_broker(settings.broker).port == broker.port
        send(connection, range(10, 30), each=100)
        wait_until(
            lambda: not job.running or last_counts(printed + job.batches()).get("07:20") == 1_000
        )
        printed += job.batches()
        if job.running:
            assert job.stop() == 0

    with run(settings, JOB, "--available-now") as job:
        assert job.wait() == 0, job.errors()
        printed += job.batches()
    assert last_counts(printed) == {"07:00": 5_000, "07:10": 6_000, "07:20": 1_000}

    # what the batches did is whole: none twice, and none that was committed in order is missing
    history = read_history(open_folder(str(checkpoint)))
    kept = [entry.batch for entry in history.entries]
    assert history.strange == ()
    assert len(kept) == len(set(kept))
    assert set(range(1, max(kept) + 1)) <= set(kept)
