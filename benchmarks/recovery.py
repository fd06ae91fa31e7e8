"""How long a query takes from its start to its first output, by the size of its state.

Measured three times on the same checkpoint: the first start, a start after `kill -9`, and one after
a rewind by a batch.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import running
from ebbtide import api
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.local.broker import temporary_broker

_JOB = """
from ebbtide import Kafka, Pipeline

totals = Pipeline(
    "totals",
    source=Kafka("keys", schema="key BIGINT, at TIMESTAMP"),
    event_time="at",
    transform=lambda rows: rows.groupBy("key").count(),
    sink=Kafka("totals"),
    output_mode="update",
)
"""
_LONGEST_SECONDS = 600


def run(*, quick: bool) -> Iterator[str]:
    """Start to first output: new, after kill -9 and after a rewind, by the number of keys"""
    for keys in (1_000,) if quick else (10_000, 1_000_000):
        home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
        with temporary_broker() as broker:
            settings = Settings(home=home, bootstrap_servers=broker.bootstrap_servers)
            yield _measure(settings, keys)
        shutil.rmtree(home, ignore_errors=True)


def _measure(settings: Settings, keys: int) -> str:
    home = settings.home
    (home / "job.py").write_text(_JOB)
    kafka.create_missing_topics(settings.kafka, ["keys", "totals"])
    _send(settings, keys)
    empty = _start(settings, kill=True)  # the state is there, and its process is dead
    _send(settings, 1)
    killed = _start(settings, kill=False)
    checkpoint = home / "checkpoints" / "totals"
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    plan = api.plan_rewind(checkpoint, to_batch=last, sink="none")
    api.apply_rewind(plan)
    rewound = _start(settings, kill=False)
    return (
        f"{keys:>9,} keys: first start {empty:.1f} s, after kill -9 {killed:.1f} s, "
        f"after a rewind {rewound:.1f} s"
    )


def _send(settings: Settings, keys: int) -> None:
    with kafka.Sender(settings.kafka, "keys") as sender:
        for key in range(keys):
            sender.send(b'{"key":%d,"at":"2025-09-04T07:00:00Z"}' % key)


def _end(settings: Settings) -> int:
    return sum(end for _, end in kafka.retained_offsets(settings.kafka, "totals").values())


def _start(settings: Settings, *, kill: bool) -> float:
    """The seconds until the first output; then the batch may end, and the query is ended."""
    home, before = settings.home, _end(settings)
    commits = home / "checkpoints" / "totals" / "commits"
    committed = len(list(commits.glob("[0-9]*")))
    command = [sys.executable, "-m", "ebbtide", "run", f"{home}/job.py:totals", "--home", str(home)]
    command += ["--bootstrap-servers", settings.kafka.address]
    started = time.monotonic()
    with running(command, log=home / "job.log") as outcome:
        while _end(settings) == before:
            assert time.monotonic() - started < _LONGEST_SECONDS, "there is no output"
            assert outcome.tree.runs, "the job has ended"
            time.sleep(0.05)
        took = time.monotonic() - started
        while len(list(commits.glob("[0-9]*"))) == committed:
            time.sleep(0.05)
        if kill:
            outcome.tree.kill()
        else:
            outcome.tree.stop()
    return took
