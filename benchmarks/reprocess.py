"""What one hour takes to reprocess from a small and a large archive, from start to end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import archive as filled
from benchmarks.measure import Ratio
from ebbtide.archive.facts import read_archive
from ebbtide.archive.layout import WRITE_CONF, properties
from ebbtide.archive.read import open_table, select_range
from ebbtide.archive.write import create_table
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.local.broker import temporary_broker
from ebbtide.runtime.session import build_session, close_session
from ebbtide.systems.batch_reprocessor.pipeline import pipeline

_START, _END = "2025-09-01T07:00", "2025-09-01T08:00"


@dataclass(frozen=True)
class Command:
    """What one command took, in seconds of the clock: whole, and up to each of its events."""

    whole: float
    asked: float
    """Until Python had read the request."""
    starting: float
    """Until Spark was started."""
    planned: float

    def __str__(self) -> str:
        parts = (
            ("Python", self.asked),
            ("checks", self.starting - self.asked),
            ("JVM and plan", self.planned - self.starting),
            ("run", self.whole - self.planned),
        )
        listed = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts)
        return f"{self.whole:.1f} s ({listed})"


def run(*, quick: bool) -> Iterator[str | Ratio]:
    """One hour of 1, 7 and 30 days: the whole command, and the reading alone"""
    rounds, per_day = (1, 10_000) if quick else (3, 300_000)
    place = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    homes = {days: place / f"{days}-days" for days in ((1, 2) if quick else (1, 7, 30))}
    try:
        yield from _fill(homes, per_day, quick=quick)
        with temporary_broker() as broker:
            servers = broker.bootstrap_servers
            settings = Settings(home=place, bootstrap_servers=servers)
            topics = [each.topic for each in (pipeline.source, pipeline.sink)]  # type: ignore[union-attr]
            kafka.create_missing_topics(settings.kafka, topics)
            taken: dict[int, list[Command]] = defaultdict(list)
            for _ in range(rounds):
                for days, home in homes.items():
                    taken[days].append(_reprocess(home, servers))
            warm = [_reprocess_twice(homes[min(homes)], servers) for _ in range(rounds)]
        best = {days: min(all_, key=lambda one: one.whole) for days, all_ in taken.items()}
        least = min(homes)
        for days in homes:
            ratio = best[days].whole / best[least].whole
            yield (f"{days} days: {best[days]}, {ratio:.2f} × the same hour of {least} day")
        text = f"time for an hour of {days} days, to the same hour of {least} day"
        yield Ratio("reprocess", text, 1.3, ratio)
        first, second = (min(each, key=lambda one: one.whole) for each in zip(*warm, strict=True))
        yield f"with --warm: the first {first}; the second {second}"
        text = "time of the second by the command line with --warm, to the first"
        yield Ratio("reprocess", text, 0.3, second.whole / first.whole)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _fill(homes: dict[int, Path], per_day: int, *, quick: bool) -> Iterator[str | Ratio]:
    """Archives with as many records a day, and how fast an hour of the largest is read."""
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"} if quick else {}
    spark = build_session("bench", Settings(home=min(homes.values())), conf=conf, wanted=WRITE_CONF)
    try:
        for days, home in homes.items():
            settings = Settings(home=home)
            path = settings.table("visits")
            create_table(spark, path, properties(pipeline, settings, f"{path}-checkpoint"))
            filled._fill(spark, path, filled.Size(days, days * per_day, max(1, 2 * days // 3)))
            archive = read_archive(pipeline, settings)
            start, end = filled._FIRST.replace(hour=7), filled._FIRST.replace(hour=8)
            ours = filled._read(select_range(open_table(spark, archive), start, end))
            filled._START, filled._END = start, end
            whole = filled._read(filled._by_parsing(spark, path))
            assert ours.rows == whole.rows > 0
            yield (
                f"{days} days, {archive.records:,} records in {archive.files:,} files: reading an "
                f"hour {ours.seconds:.2f} s, {whole.seconds / ours.seconds:.0f} × faster than a "
                f"filter of the whole table ({whole.seconds:.1f} s)"
            )
        text = f"speed of reading an hour of {days} days, to a filter of the whole table"
        yield Ratio("reprocess", text, 200, whole.seconds / ours.seconds, at_least=True)
    finally:
        close_session(spark)


def _reprocess_twice(home: Path, servers: str) -> tuple[Command, Command]:
    """By the JVM that the first one starts and keeps."""
    taken = _reprocess(home, servers, "--warm"), _reprocess(home, servers, "--warm")
    stop = [sys.executable, "-m", "ebbtide", "warm", "stop", "--home", str(home)]
    subprocess.run(stop, capture_output=True, check=True, timeout=60)
    return taken


def _reprocess(home: Path, servers: str, *flags: str) -> Command:
    words = ["reprocess", "visits-counter", "--event-time-start", _START, "--event-time-end", _END]
    words += ["--execute", "--yes", "--events", "--home", str(home), *flags]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "ebbtide", *words, "--bootstrap-servers", servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    seen: dict[str, float] = {}
    last = ""
    for last in process.stdout:
        seen[json.loads(last)["event"]] = time.perf_counter() - began
    if process.wait():
        raise RuntimeError(f"{last}\n{process.stderr.read()}")
    whole = time.perf_counter() - began
    return Command(whole, seen["RangeRequested"], seen["SparkStarting"], seen["ReprocessPlanned"])
