"""kill -9 of the archive at random under load: afterwards each record is in the table once."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.systems.harness import Job
from tests.conftest import Cli
from tests.e2e.conftest import QUICK_START, wait_until

JOB = "visits-counter"
KILLS = int(os.environ.get("EBBTIDE_KILLS", "2"))
A_BATCH = 3_000


def archive(settings: Settings, *flags: str) -> Job:
    return Job(settings, JOB, *QUICK_START, "-o", "json", *flags, verb="archive")


def value(n: int) -> bytes:
    if n % 100 == 7:
        return b"broken"
    hour, minute = divmod(n // 100 % 180, 60)
    at = f"2025-09-04T{7 + hour:02d}:{minute:02d}:00"
    return json.dumps({"visit_id": n, "event_time": at, "page": "home"}).encode()


@contextmanager
def load(connection: kafka.KafkaConnection) -> Iterator[None]:
    """Visits of three hours, every hundredth broken, about two thousand a second."""
    ended = threading.Event()

    def send() -> None:
        n = 0
        with kafka.Sender(connection, "visits") as sender:
            while not ended.wait(0.05):
                for _ in range(100):
                    sender.send(value(n), partition=n % 2)
                    n += 1

    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield
    finally:
        ended.set()
        sending.join()


def run_ids(job: Job) -> set[str]:
    """Of the batches that the job has reported so far: one at most."""
    found = {json.loads(line)["run_id"] for line in job.errors() if line.startswith('{"id"')}
    assert len(found) <= 1
    return found


def kill(job: Job, everything: bool) -> None:
    """The driver alone, whose JVM then ends by itself, or both at once as a power cut would."""
    if everything:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    else:
        job.kill()


def test_each_record_is_archived_once_whatever_is_killed(settings: Settings, inside: Cli) -> None:
    connection = settings.kafka
    kafka.create_missing_topics(connection, ["visits"])
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    status = (
        "archive",
        JOB,
        "--status",
        "--home",
        settings.home,
        "--bootstrap-servers",
        connection.address,
    )
    commits = settings.checkpoint("visits-archive") / "commits"
    runs: set[str] = set()
    with load(connection):
        for turn in range(KILLS):
            with archive(settings, "--max-offsets-per-trigger", str(A_BATCH)) as job:
                before = set(commits.glob("[0-9]*"))
                wait_until(lambda: set(commits.glob("[0-9]*")) - before, job, 180)  # noqa: B023
                if turn == 0:
                    assert json.loads(inside(*status, "-o", "json").stdout)["running"]
                time.sleep(chance.uniform(0, 3))
                runs |= run_ids(job)
                kill(job, everything=turn % 2 == 0)
    assert 1 <= len(runs) <= KILLS
    with archive(settings, "--available-now") as job:
        assert job.wait() == 0, job.errors()
        result = json.loads(job.text)
    assert result["run_id"] not in runs
    assert result["pipeline"] == "visits-archive"

    ends = {p: end for p, (_, end) in kafka.retained_offsets(connection, "visits").items()}
    table = DeltaTable(settings.table("visits"))
    each = 'SELECT "partition", count(*), count(DISTINCT "offset"), max("offset") + 1'
    found = ask(table, f'{each} FROM archive GROUP BY "partition"')
    assert found == {(p, end, end, end) for p, end in ends.items()}, f"seed {seed}"
    broken = ask(table, "SELECT count(*) FROM archive WHERE value = 'broken'")
    assert_one_commit_a_batch(Path(settings.table("visits")))

    facts = json.loads(inside(*status, "-o", "json").stdout)
    assert (facts["running"], facts["behind"]) == (False, 0)
    assert facts["records"] == sum(ends.values())
    assert {(facts["unreadable"],)} == broken
    assert [part["end"] for part in facts["partitions"]] == [ends[0], ends[1]]
    assert f"{sum(ends.values()):,}" in inside(*status).stdout


def ask(table: DeltaTable, query: str) -> set[tuple[int, ...]]:
    found = QueryBuilder().register("archive", table).execute(query).read_all()
    columns = [found.column(name).to_pylist() for name in found.schema.names]
    return set(zip(*columns, strict=True))


def assert_one_commit_a_batch(table: Path) -> None:
    """Delta notes a batch with the commit of its records: none twice, none left out."""
    written = []
    for file in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        written += [action["txn"]["version"] for action in actions if "txn" in action]
    assert written == list(range(len(written)))
