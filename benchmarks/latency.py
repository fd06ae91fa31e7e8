"""How long one event takes from its producer to a consumer of the output.

Each event is sent when the one before it has come out and a random pause is over, so every figure
is of a stream without a backlog. The pauses are the same for all. Who is slow is timed with fewer
events, and only once; a percentile above which no event would lie is not given. A run that fails is
tried a second time, and both what was wrong and the figures are shown.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import small_jobs
from benchmarks.contenders import FLINK_NOTE
from benchmarks.environments import flink_command
from benchmarks.measure import ContenderError, MeasuredTree, Ratio, Result, last_line, running
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.local.broker import temporary_broker

_PARTITIONS = 2
_FIRST_SECONDS = 180
_ANSWER_SECONDS = 60
_END_SECONDS = 60
_LONGEST_PAUSE = 0.3
_TUNED = ("spark.sql.shuffle.partitions=2",)
_NOTE = f"buffers and the sink's records leave at once; {FLINK_NOTE}"


@dataclass(frozen=True)
class Span:
    """When to end: after some events, or after a time if there are enough of them by then."""

    most: int
    fewest: int
    seconds: float

    def is_over(self, events: int, seconds: float) -> bool:
        """Whether that was enough."""
        return events >= self.most or (events >= self.fewest and seconds > self.seconds)


_START = Span(1, 1, 0)
"""The first event waits for the process; the time of the warm-up begins when it has come out."""


@dataclass(frozen=True)
class Place:
    """Where one run reads and writes."""

    servers: str
    topic: str
    home: Path

    @property
    def checkpoint(self) -> str:
        """Where its checkpoints are."""
        return str(self.home / "checkpoint")


@dataclass(frozen=True)
class Contender:
    """A system with its settings, which runs all works: the command runs one until SIGTERM."""

    name: str
    command: Callable[[str, Place], list[str]]
    note: str = ""
    works: tuple[str, ...] = tuple(small_jobs.TRANSFORMS)
    repeats: int = 1
    """In how many rounds it runs; more where every millisecond shows."""


def ours(profile: str, repeats: int = 1) -> Contender:
    """`ebbtide run` with a profile."""

    def build(work: str, at: Place) -> list[str]:
        job = f"{small_jobs.__file__}:{work}"
        where = ("--home", str(at.home), "--bootstrap-servers", at.servers)
        flags = ("--profile", profile, "--checkpoint", at.checkpoint)
        return [sys.executable, "-m", "ebbtide", "run", job, *where, *flags]

    return Contender(f"Ebbtide, profile {profile}", build, repeats=repeats)


def spark(
    name: str, *conf: str, works: tuple[str, ...] = tuple(small_jobs.TRANSFORMS)
) -> Contender:
    """PySpark alone, with settings."""

    def build(work: str, at: Place) -> list[str]:
        module = ("-m", small_jobs.__name__, work, at.servers, at.topic, at.checkpoint)
        return [sys.executable, *module, *conf]

    return Contender(name, build, works=works)


def _flink(work: str, at: Place) -> list[str]:
    places = (at.servers, at.topic, f"{at.topic}-out", at.checkpoint)
    return [*flink_command("OneEvent"), work, *places]


LATENCY, DEFAULT, FLINK = (
    ours("latency", repeats=2),
    spark("Spark by default"),
    Contender("Flink", _flink, _NOTE, repeats=2),
)
CONTENDERS = (
    LATENCY,
    ours("throughput"),
    DEFAULT,
    # the other work has no shuffle
    spark("Spark, 2 shuffle partitions", *_TUNED, works=("windowed",)),
    FLINK,
)


def run(*, quick: bool) -> Iterator[str | Result | Ratio]:
    """One event from producer to output: windowed count (with state) and stateless"""
    rounds = 1 if quick else max(contender.repeats for contender in CONTENDERS)
    warm, timed = (Span(2, 2, 0), Span(5, 5, 0)) if quick else (Span(15, 2, 5), Span(52, 4, 24))
    taken: dict[tuple[str, Contender], list[float]] = defaultdict(list)
    problems: dict[tuple[str, Contender], str] = {}
    with temporary_broker() as broker:
        settings = Settings(bootstrap_servers=broker.bootstrap_servers)
        for turn in range(rounds):
            for work in small_jobs.TRANSFORMS:
                for contender in CONTENDERS[:: -1 if turn % 2 else 1]:
                    if turn >= contender.repeats or work not in contender.works:
                        continue
                    for attempt in range(2):
                        topic = f"{work}-{turn}-{CONTENDERS.index(contender)}-{attempt}"
                        where = f"round {turn + 1}, {work}, {contender.name}"
                        try:
                            times = time_events(contender, work, settings, topic, warm, timed)
                        except ContenderError as error:
                            problems[work, contender] = str(error)
                            yield f"{where}: {error}"
                            continue
                        taken[work, contender] += times
                        yield f"{where}: {format_times(times)}"
                        break
    for work in small_jobs.TRANSFORMS:
        yield f"{work}:"
        for contender in CONTENDERS:
            if work not in contender.works:
                continue
            times, problem = taken[work, contender], problems.get((work, contender), "")
            bases = {other.name: taken[work, other] for other in (DEFAULT, FLINK)}
            yield f"  {contender.name:<28} {format_times(times, bases)} {problem}".rstrip()
            figures = percentiles(times)
            row = (f"latency, {work}", contender.name, "event", len(times), (), problem)
            yield Result(*row, contender.note, figures)
    p50 = {key: percentiles(times).get("p50_ms") for key, times in taken.items()}
    windowed, default = p50.get(("windowed", LATENCY)), p50.get(("windowed", DEFAULT))
    ratio = windowed / default if windowed and default else None
    yield Ratio("latency, windowed", "p50, to Spark by default", 0.4, ratio)
    yield Ratio("latency, stateless", "p50", 15, p50.get(("stateless", LATENCY)), unit="ms")


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds, as far as there are events above them.

    >>> percentiles([0.01 * n for n in range(1, 22)])
    {'p50_ms': 110.0, 'p95_ms': 200.0}
    """
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    given = [at for at in (50, 95, 99) if len(seconds) * (100 - at) >= 100]
    return {f"p{at}_ms": round(1e3 * cuts[at - 1], 3) for at in given}


def format_times(times: Sequence[float], bases: Mapping[str, Sequence[float]] | None = None) -> str:
    """The percentiles in a line, the first also as ratios to others."""
    found = percentiles(times)
    if not found:
        return "–"
    text = "  ".join(f"{name[:-3]} {found[name]:7.1f} ms" for name in found)
    ratios = [
        f" · {found['p50_ms'] / base['p50_ms']:.2f} × {name}"
        for name, times_of_it in (bases or {}).items()
        if (base := percentiles(times_of_it))
    ]
    return f"{text}  of {len(times)}{''.join(ratios)}"


def time_events(
    contender: Contender, work: str, settings: Settings, topic: str, warm: Span, timed: Span
) -> list[float]:
    """How long each event took, those of the warm-up left out."""
    kafka.create_missing_topics(settings.kafka, [topic, f"{topic}-out"], partitions=_PARTITIONS)
    home = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    env = {"EBBTIDE_BENCH_TOPIC": topic}
    try:
        command = contender.command(work, Place(settings.kafka.address, topic, home))
        with (
            output_of(settings, f"{topic}-out") as consumer,
            running(command, log=home / "log", env=env, timeout_seconds=120) as outcome,
        ):
            producer = Producer({**settings.kafka.client_settings(), "linger.ms": 0})
            pauses = random.Random(1)
            number = count(1)
            times: list[float] = []
            for span in (_START, warm, timed):
                times.clear()
                began = time.monotonic()
                while not span.is_over(len(times), time.monotonic() - began):
                    times.append(
                        time_event(producer, consumer, topic, work, next(number), outcome.tree)
                    )
                    time.sleep(pauses.uniform(0, _LONGEST_PAUSE))
            _end(outcome.tree)
    except ContenderError as error:
        log = home / "log"
        said = f"; its log ends with: {last_line(log)}" if log.exists() else ""
        raise ContenderError(f"{error}{said}") from None
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return times


def _end(tree: MeasuredTree) -> None:
    """Stop it; all is timed, so an end that takes long must not cost the figures."""
    tree.stop()
    last = time.monotonic() + _END_SECONDS
    while tree.runs and time.monotonic() < last:
        time.sleep(0.05)
    tree.kill()


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
) -> float:
    """Send one event and wait for its result, which must be the right one."""
    # a few seconds of event time, so that the watermark moves and no window ends
    at = f"2025-09-04T07:00:{number % 60:02}.{number:03}Z"
    producer.produce(topic, json.dumps({"id": number, "at": at}), partition=number % _PARTITIONS)
    started = time.perf_counter()
    producer.flush()
    longest = _FIRST_SECONDS if number == 1 else _ANSWER_SECONDS
    while time.perf_counter() - started < longest:
        message = consumer.poll(0.5)
        if message is None:
            if not tree.runs:
                raise ContenderError("it ended")
            continue
        took = time.perf_counter() - started
        if message.error():  # such as that the broker does not know the new topic yet
            continue
        result = json.loads(message.value() or b"{}")
        if result.get("id", 0) < number:  # none promises to write a record only once
            continue
        if result["id"] != number or result.get("events", number) != number:
            raise ContenderError(f"event {number} of {work} gave {result}")
        return took
    raise ContenderError(f"event {number} has not come out within {longest:.0f} s")
