"""Run contenders by turns on one broker, check what each wrote, and give a result for each."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.environments import java_home
from benchmarks.measure import ContenderError, Measurement, Result, measure
from ebbtide.connectors import kafka
from ebbtide.errors import EbbtideError
from ebbtide.local.broker import EmbeddedBroker, temporary_broker

Command = list["str | Path"]


@dataclass
class Stage:
    """The broker that all contenders share, and the topics that were filled for them."""

    broker: EmbeddedBroker
    folder: Path
    filled: dict[str, object] = field(default_factory=dict)
    turns: int = 0

    def fill(self, topic: str, events: Any) -> Iterator[str]:
        """Send events to a topic of two partitions, unless another work did."""
        if topic in self.filled:
            return
        yield f"sending {events.count:,} events …"
        kafka.create_missing_topics(self.broker.connection, [topic], partitions=2)
        with kafka.Sender(self.broker.connection, topic) as sender:
            for partition, chunk in events.chunks():
                sender.send_all(chunk, partition)
        self.filled[topic] = events

    def has_records(self, topic: str) -> bool:
        """Whether something was written to the first partition of a topic."""
        try:
            return self._asker.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)[1] > 0
        except KafkaException:
            return False

    @cached_property
    def _asker(self) -> Consumer:
        """Asks often, so it keeps its connection."""
        return Consumer({"bootstrap.servers": self.broker.bootstrap_servers, "group.id": "asker"})

    def close(self) -> None:
        """Disconnect, before the broker ends."""
        self._asker.close()

    def read(self, topic: str) -> Iterator[Any]:
        """The JSON records of a topic."""
        offsets = kafka.retained_offsets(self.broker.connection, topic)
        start, end = ({p: each[n] for p, each in offsets.items()} for n in (0, 1))
        for record in kafka.consume_range(self.broker.connection, topic, start, end):
            yield json.loads(record.value or b"null")


_open: list[Stage] = []


@contextmanager
def open_stage() -> Iterator[Stage]:
    """A broker; within the block, who opens a stage gets the same one."""
    if _open:
        yield _open[0]
        return
    folder = Path(tempfile.mkdtemp(prefix="ebbtide-bench-"))
    try:
        with temporary_broker() as broker:
            _open.append(Stage(broker, folder))
            try:
                yield _open[0]
            finally:
                _open[0].close()
    finally:
        _open.clear()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Turn:
    """One run of one contender: where it reads and writes."""

    stage: Stage
    topic: str
    out: str
    """The topic for its results."""
    folder: Path
    """For checkpoints and tables; empty before the run, deleted after the check."""

    @property
    def servers(self) -> str:
        """The address of the broker."""
        return self.stage.broker.bootstrap_servers

    @property
    def places(self) -> Command:
        """What most programs of the peers take: servers, topic, topic for results, folder."""
        return [self.servers, self.topic, self.out, self.folder]


@dataclass(frozen=True)
class Contender:
    """A way to do the work: the command of a turn, made when its environment is ready."""

    name: str
    command: Callable[[Turn], Command]
    note: str = ""
    env: Callable[[Turn], Mapping[str, str]] = lambda _turn: {}


Check = Callable[[Turn], str]
"""What is wrong with what a turn wrote; empty if nothing is."""


@dataclass
class Contest:
    """The runs of the contenders over one topic, so far."""

    stage: Stage
    topic: str
    contenders: Sequence[Contender]
    check: Check
    """Compares with the truth."""
    has_output: Callable[[Turn], bool] = lambda turn: turn.stage.has_records(turn.out)
    checks: Mapping[str, Check] = field(default_factory=dict)
    """Of contenders that write something else."""
    timeout_seconds: float = 600
    runs: dict[str, list[Measurement]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    after: Callable[[Contender, Turn], None] = lambda _contender, _turn: None
    """Looks at what a turn wrote before it is deleted."""

    def go(self, repeats: int) -> Iterator[str]:
        """By turns: whatever disturbs the machine for a while disturbs them all."""
        for repeat in range(repeats):
            for contender in self.contenders:
                if contender.name in self.problems:
                    continue
                try:
                    run = self._run(contender)
                except (ContenderError, EbbtideError) as error:
                    self.problems[contender.name] = str(error)
                    yield f"{contender.name}: {error}"
                    continue
                self.runs.setdefault(contender.name, []).append(run)
                yield (
                    f"{contender.name}, {self.topic}, run {repeat + 1} of {repeats}: "
                    f"{run.seconds:.1f} s, CPU {run.cpu_seconds:.1f} s"
                )

    def _run(self, contender: Contender) -> Measurement:
        self.stage.turns += 1
        out = f"out-{self.stage.turns}"
        kafka.create_missing_topics(self.stage.broker.connection, [out], partitions=1)
        folder = self.stage.folder / out
        folder.mkdir()
        turn = Turn(self.stage, self.topic, out, folder)
        try:
            log = self.stage.folder / f"{out}.log"
            run = measure(
                contender.command(turn),
                log=log,
                env={"JAVA_HOME": java_home(), **contender.env(turn)},
                cwd=folder,
                first_output=lambda: self.has_output(turn),
                timeout_seconds=self.timeout_seconds,
            )
            problem = self._judge(contender, turn)
            self.after(contender, turn)
        finally:
            kept = os.environ.get("EBBTIDE_BENCH_LOGS")  # to see why one fails
            if kept and log.exists():
                shutil.copy(log, Path(kept, f"{contender.name.replace(' ', '-')}-{out}.log"))
            shutil.rmtree(folder, ignore_errors=True)
        if problem:
            raise ContenderError(f"disqualified: {problem}")
        return run

    def _judge(self, contender: Contender, turn: Turn) -> str:
        try:
            return self.checks.get(contender.name, self.check)(turn)
        except (KeyError, TypeError, ValueError) as error:
            return f"its results cannot be read: {error!r}"

    def result(self, work: str, unit: str, count: int, contender: Contender) -> Result:
        """What a contender took."""
        name = contender.name
        runs = tuple(self.runs.get(name, ()))
        return Result(work, name, unit, count, runs, self.problems.get(name, ""), contender.note)


def warm_result(
    cold: Contest, whole: Contest, contender: Contender, work: str, unit: str, count: int
) -> Result:
    """The difference of two runs, so that all are measured alike, without marks of their own."""
    result = whole.result(work, unit, count, contender)
    problem = cold.problems.get(contender.name, "") or result.problem
    if problem or not result.runs:
        return replace(result, runs=(), problem=problem)
    short = cold.runs[contender.name]
    seconds = statistics.median(run.seconds for run in short)
    cpu_seconds = statistics.median(run.cpu_seconds for run in short)
    runs = tuple(
        Measurement(run.seconds - seconds, run.cpu_seconds - cpu_seconds, run.peak_bytes)
        for run in result.runs
    )
    return replace(result, runs=runs)


def differences(expected: Mapping[Any, int], found: Mapping[Any, int]) -> str:
    """What is wrong with some totals; empty if nothing is.

    >>> differences({"a": 2, "b": 1}, {"a": 2, "b": 3})
    '1 of 2 totals are wrong, such as 3 instead of 1 for b'
    """
    wrong = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    if not wrong:
        return ""
    key = min(wrong, key=str)
    return (
        f"{len(wrong)} of {len(expected)} totals are wrong, such as {found.get(key)} instead of "
        f"{expected.get(key)} for {key}"
    )


def sum_windows(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The last count of each window: counts only grow. Those of several workers are added.

    >>> sum_windows([{"start": "2025-09-01T00:10:00", "count": n, "part": p}
    ...              for n, p in [(1, 0), (3, 0), (2, 1)]])
    {'2025-09-01T00:10': 5}
    """
    last: dict[tuple[str, object], int] = {}
    for record in records:
        start = record.get("window", record)["start"][:16].replace(" ", "T")
        key = start, record.get("part")
        last[key] = max(last.get(key, 0), record["count"])
    totals: dict[str, int] = {}
    for (start, _), count in last.items():
        totals[start] = totals.get(start, 0) + count
    return totals
