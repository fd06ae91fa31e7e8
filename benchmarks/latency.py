"""How long one event takes from its producer to a consumer of the output.

Each event is sent when the one before it has come out and a random pause is over, so every figure
is of a stream without a backlog. The pauses are the same for all.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import small_jobs
from benchmarks.measure import ContenderError, MeasuredTree, Ratio, Result, running
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.local.broker import temporary_broker

_PARTITIONS = 2
_FIRST_SECONDS = 180
_ANSWER_SECONDS = 60
_ENOUGH_SECONDS, _FEWEST = 120, 10
"""Who takes longer for all events is timed with fewer, but with so many at least."""
_LONGEST_PAUSE = 0.3
_TUNED = ("spark.sql.shuffle.partitions=2",)


@dataclass(frozen=True)
class Contender:
    """A system with its settings, which runs all works."""

    name: str
    profile: str | None = None
    conf: tuple[str, ...] = ()

    def command(self, work: str, servers: str, topic: str, home: Path) -> list[str]:
        """The command that runs a work until SIGTERM."""
        if self.profile is None:
            module = ("-m", small_jobs.__name__, work, servers, topic, str(home / "checkpoint"))
            return [sys.executable, *module, *self.conf]
        job = f"{small_jobs.__file__}:{work}"
        where = ("--home", str(home), "--bootstrap-servers", servers)
        flags = ("--profile", self.profile, "--checkpoint", str(home / "checkpoint"))
        return [sys.executable, "-m", "ebbtide", "run", job, *where, *flags]


CONTENDERS = (
    Contender("Ebbtide, profile latency", "latency"),
    Contender("Ebbtide, profile throughput", "throughput"),
    Contender("Spark by default"),
    Contender("Spark, 2 shuffle partitions", conf=_TUNED),
)


def run(*, quick: bool) -> Iterator[str | Result | Ratio]:
    """One event from producer to output: windowed count (with state) and stateless"""
    rounds, events, warm = (1, 5, 2) if quick else (2, 45, 15)
    taken: dict[tuple[str, Contender], list[float]] = defaultdict(list)
    problems: dict[tuple[str, Contender], str] = {}
    with temporary_broker() as broker:
        for turn in range(rounds):
            for work in small_jobs.TRANSFORMS:
                for contender in CONTENDERS[:: -1 if turn % 2 else 1]:
                    topic = f"{work}-{turn}-{CONTENDERS.index(contender)}"
                    settings = Settings(bootstrap_servers=broker.bootstrap_servers)
                    try:
                        times = time_events(contender, work, settings, topic, warm, events)
                    except ContenderError as error:
                        problems[work, contender] = str(error)
                        continue
                    taken[work, contender] += times
                    yield f"round {turn + 1}, {work}, {contender.name}: {format_times(times, ())}"
    for work in small_jobs.TRANSFORMS:
        yield f"{work}:"
        base = taken[work, CONTENDERS[2]]
        for contender in CONTENDERS:
            times, problem = taken[work, contender], problems.get((work, contender), "")
            figures = dict(zip(("p50_ms", "p95_ms", "p99_ms"), percentiles(times), strict=False))
            yield f"  {contender.name:<28} {format_times(times, base)}{problem}"
            name = f"latency, {work}"
            yield Result(name, contender.name, "event", len(times), (), problem, "", figures)
    p50 = {key: percentiles(times)[0] for key, times in taken.items() if len(times) > 1}
    ours, default = p50.get(("windowed", CONTENDERS[0])), p50.get(("windowed", CONTENDERS[2]))
    ratio = ours / default if ours and default else None
    yield Ratio("latency, windowed", "p50, to Spark by default", 0.4, ratio)
    ours = p50.get(("stateless", CONTENDERS[0]))
    yield Ratio("latency, stateless", "p50", 15, ours, unit="ms")


def percentiles(seconds: Sequence[float]) -> list[float]:
    """p50, p95 and p99 in milliseconds."""
    if len(seconds) < 2:
        return []
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return [1e3 * cuts[at - 1] for at in (50, 95, 99)]


def format_times(times: Sequence[float], base: Sequence[float]) -> str:
    """The percentiles in a line, the first also as a ratio."""
    if len(times) < 2:
        return "–"
    p50, p95, p99 = percentiles(times)
    ratio = f" · {p50 / percentiles(base)[0]:.2f} × Spark by default" if len(base) > 1 else ""
    return f"p50 {p50:7.1f} ms  p95 {p95:7.1f}  p99 {p99:7.1f}  of {len(times)}{ratio}"


def time_events(
    contender: Contender, work: str, settings: Settings, topic: str, warm: int, count: int
) -> list[float]:
    """How long each event took, the first `warm` ones left out."""
    kafka.create_missing_topics(settings.kafka, [topic, f"{topic}-out"], partitions=_PARTITIONS)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    command = contender.command(work, settings.kafka.address, topic, home)
    pauses = random.Random(1)
    times: list[float] = []
    try:
        with (
            output_of(settings, f"{topic}-out") as consumer,
            running(
                command, log=home / "log", env={"EBBTIDE_BENCH_TOPIC": topic}, timeout_seconds=120
            ) as outcome,
        ):
            producer = Producer({**settings.kafka.client_settings(), "linger.ms": 0})
            enough = time.monotonic() + _FIRST_SECONDS + _ENOUGH_SECONDS
            for number in range(1, warm + count + 1):
                if time.monotonic() > enough and number > warm + _FEWEST:
                    break
                seconds = _FIRST_SECONDS if number == 1 else _ANSWER_SECONDS
                took = time_event(producer, consumer, topic, work, number, outcome.tree, seconds)
                times.append(took)
                time.sleep(pauses.uniform(0, _LONGEST_PAUSE))
            outcome.tree.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return times[warm:]


@contextmanager
def output_of(settings: Settings, topic: str) -> Iterator[Consumer]:
    """A consumer of a topic, which asks without waiting."""
    consumer = Consumer(
        {
            **settings.kafka.client_settings(),
            "group.id": topic,
            "fetch.wait.max.ms": 5,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(_PARTITIONS)])
    try:
        yield consumer
    finally:
        consumer.close()


def time_event(
    producer: Any,
    consumer: Consumer,
    topic: str,
    work: str,
    number: int,
    tree: MeasuredTree,
    longest: float,
) -> float:
    """Send one event and wait for its result, which must be the right one."""
    # a few seconds of event time, so that the watermark moves and no window ends
    at = f"2025-09-04T07:00:{number % 60:02}.{number:03}Z"
    producer.produce(topic, json.dumps({"id": number, "at": at}), partition=number % _PARTITIONS)
    started = time.perf_counter()
    producer.flush()
    while time.perf_counter() - started < longest:
        message = consumer.poll(0.5)
        if message is None:
            if not tree.runs:
                raise ContenderError("it ended")
            continue
        took = time.perf_counter() - started
        result = json.loads(message.value() or b"{}")
        if result["id"] != number or result.get("events", number) != number:
            raise ContenderError(f"event {number} of {work} gave {result}")
        return took
    raise ContenderError(f"event {number} has not come out within {longest:.0f} s")
