"""What a live stream pays while a reprocess runs beside it on the same machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ebbtide.archive.facts import read_archive
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.local.broker import temporary_broker
from ebbtide.local.visits import VisitGenerator
from ebbtide.systems.batch_reprocessor.pipeline import pipeline
from ebbtide.systems.harness import Job
from ebbtide.times import in_utc

_WAIT_SECONDS = 120


def run(*, quick: bool) -> Iterator[str]:
    """rows/s of a live stream while a range is reprocessed, as a ratio to before and after"""
    count, archived, limit, warm, long = (
        (60_000, 5_000, 200, 2, 3.0) if quick else (12_000_000, 2_000_000, 50_000, 20, 20.0)
    )
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    # a broker for each: a stream that is measured has a backlog, an archive should have none
    with temporary_broker() as busy, temporary_broker() as other:
        live = Settings(home=home / "live", bootstrap_servers=busy.bootstrap_servers)
        past = Settings(home=home / "past", bootstrap_servers=other.bootstrap_servers)
        _send(past, archived)
        _type(past, "archive", "visits-counter", "--available-now")
        _send(live, count)
        flags = ("--max-offsets-per-trigger", str(limit), "-o", "json")
        with Job(live, "visits-counter", *flags) as stream:
            _wait(lambda: len(_batches(stream)) > warm, stream)
            before = _rate(stream, lambda: time.sleep(long))
            beside = _rate(stream, lambda: _reprocess(past))
            after = _rate(stream, lambda: time.sleep(long))
            left = count - sum(rows for _, rows in _batches(stream))
            stream.stop()
    shutil.rmtree(home, ignore_errors=True)
    alone = (before + after) / 2
    yield f"alone   {before:>9,.0f} rows/s before, {after:,.0f} after"
    yield f"beside  {beside:>9,.0f} rows/s while {archived:,} records are reprocessed"
    yield f"the live stream keeps {beside / alone:.2f} × its throughput"
    if left <= 0:
        yield "but it ran out of records, so this says nothing: a larger backlog is needed"


def _send(settings: Settings, count: int) -> None:
    kafka.create_missing_topics(settings.kafka, ["visits", "visits_counter"])
    with kafka.Sender(settings.kafka, "visits") as sender:
        for chunk in VisitGenerator(count=count).messages():
            sender.send_all(chunk)


def _reprocess(settings: Settings) -> None:
    archive = read_archive(pipeline, settings)
    assert archive.earliest is not None
    assert archive.latest is not None
    flags = ("--event-time-start", in_utc(archive.earliest), "--event-time-end")
    _type(
        settings,
        "reprocess",
        "visits-counter",
        *flags,
        in_utc(archive.latest),
        "--execute",
        "--yes",
    )


def _type(settings: Settings, *arguments: str) -> None:
    where = ("--home", str(settings.home), "--bootstrap-servers", settings.kafka.address)
    command = [sys.executable, "-m", "ebbtide", *arguments, *where]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _rate(stream: Job, meanwhile: Callable[[], None]) -> float:
    """Rows a second of the batches that began and ended meanwhile."""
    seen = len(_batches(stream))
    meanwhile()
    _wait(lambda: len(_batches(stream)) > seen + 1, stream)
    batches = _batches(stream)[seen + 1 :]
    return sum(rows for _, rows in batches) / sum(seconds for seconds, _ in batches)


def _batches(stream: Job) -> list[tuple[float, int]]:
    """Of each batch with rows, how long it took and how many there were."""
    reports = [json.loads(line) for line in stream.errors() if line.startswith("{")]
    return [(r["duration_ms"] / 1000, r["rows"]) for r in reports if r["rows"]]


def _wait(true: Callable[[], bool], stream: Job) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not true():
        assert stream.running, stream.errors()[-1:]
        assert time.monotonic() < deadline, "no batch came: the backlog has run out"
        time.sleep(0.1)
