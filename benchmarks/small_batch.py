"""What a batch with one record costs: the same count by the same trigger, with and without Ebbtide.

Both run at the same time, batch after batch, so noise hits them alike. CPU is that of the whole
process trees, the programs that Spark starts included. Reads Linux's clocks.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer

from benchmarks import small_jobs
from benchmarks.measure import MeasuredTree, Progress, Ratio, running
from benchmarks.start import PLAIN
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.local.broker import temporary_broker

_LONGEST_SECONDS = 600
_TRIGGER = "2 seconds"
_CONF = [word for pair in PLAIN for word in ("--conf", pair)]


def run(*, quick: bool) -> Iterator[str | Ratio]:
    """CPU a batch with one record, side by side: Ebbtide in both profiles, and plain Spark"""
    warm, counted = (2, 3) if quick else (30, 60)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    with temporary_broker() as broker, ExitStack() as stack:
        settings = Settings(bootstrap_servers=broker.bootstrap_servers)
        kafka.create_missing_topics(settings.kafka, ["events", "events-out"])
        producer = Producer(settings.kafka.client_settings())
        trees = {}
        for name, command in _commands(broker.bootstrap_servers, home).items():
            log = home / f"{name}.log"
            trees[name] = stack.enter_context(running(command, log=log)).tree
        checkpoints = {name: home / name / "checkpoint" for name in trees}
        yield Progress(f"{', '.join(trees)}: {warm} batches of each to warm up …")
        _feed(producer, checkpoints, trees, warm)
        yield Progress(f"{counted} batches of each …")
        before = {name: tree.cpu_seconds() for name, tree in trees.items()}
        done = {name: _batches(folder) for name, folder in checkpoints.items()}
        _feed(producer, checkpoints, trees, warm + counted)
        spent = {
            name: 1e3
            * (tree.cpu_seconds() - before[name])
            / (_batches(checkpoints[name]) - done[name])
            for name, tree in trees.items()
        }
        for tree in trees.values():
            tree.stop()
    shutil.rmtree(home, ignore_errors=True)
    for name, ms in spent.items():
        text = f"{name:<10} {ms:7.1f} CPU ms a batch, {ms / spent['plain']:.2f} × plain Spark"
        yield f"{text}, in the mean of {counted} batches"
    ratio = spent["throughput"] / spent["plain"]
    yield Ratio("small batch", "CPU of a batch with one record, to plain Spark", 1.1, ratio)


def _commands(servers: str, home: Path) -> dict[str, list[str]]:
    plain = [sys.executable, "-m", small_jobs.__name__, "windowed", servers, "events"]
    commands = {
        "plain": [*plain, str(home / "plain" / "checkpoint"), *PLAIN, f"trigger={_TRIGGER}"]
    }
    for profile in ("throughput", "latency"):
        job = ["run", f"{small_jobs.__file__}:windowed", "--profile", profile, *_CONF]
        where = ["--home", str(home / profile), "--bootstrap-servers", servers]
        checkpoint = ["--checkpoint", str(home / profile / "checkpoint"), "--trigger", _TRIGGER]
        commands[profile] = [sys.executable, "-m", "ebbtide", *job, *where, *checkpoint]
    return commands


def _batches(checkpoint: Path) -> int:
    return max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=-1) + 1


def _feed(
    producer: Producer, checkpoints: dict[str, Path], trees: dict[str, MeasuredTree], until: int
) -> None:
    """Send a record now and then, until all queries have run so many batches."""
    deadline, number = time.monotonic() + _LONGEST_SECONDS, 0
    while any(_batches(folder) < until for folder in checkpoints.values()):
        assert all(tree.runs for tree in trees.values()), "a query has ended"
        assert time.monotonic() < deadline, "the batches take too long"
        number += 1
        at = f"2025-09-04T07:00:00.{number % 1000:03}Z"
        producer.produce("events", f'{{"id":{number},"at":"{at}"}}', partition=number % 2)
        producer.flush()
        time.sleep(1)
