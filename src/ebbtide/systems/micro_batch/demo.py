"""The micro-batch consumer's walk: printed, stopped, gone on, failed in the middle, run again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from ebbtide.checkpoint import log_files, read_logs
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.storage import open_folder
from ebbtide.systems.harness import DemoFailedError, Job, Narrator, stage, type_command, wait_for

JOB = "visits-micro-batch"
BUGGY = "ebbtide.systems.micro_batch.failing_job:pipeline"
HEADER = "✍️ Printing visits"
_FLAGS = ("--trigger", "1 second", "--max-offsets-per-trigger", "4")


@dataclass(frozen=True)
class Batch:
    """A batch of the checkpoint, what the topic holds between its offsets, and what was printed."""

    id: int
    start: dict[int, int]
    end: dict[int, int]
    lines: tuple[str, ...]


def play(settings: Settings, narrator: Narrator) -> dict[str, object]:
    """Play the walk.

    **1** broker; **2** the job, batch by batch, until it is stopped; **3** more visits, and the
    job again with a bug in it: it goes on where it stopped, and fails in the middle of a batch;
    **4** the job as it was: that batch again whole, then the rest; **5** all printed lines against
    the topic.
    """
    # 1
    narrator.title("Micro-batch consumer")
    narrator.tell("Starting a Kafka broker (KRaft, one node) of this demo's own …")
    with stage(settings, "micro-batch") as local:
        narrator.check(f"Kafka answers at {local.bootstrap_servers}")
        walk = _Walk(local, narrator)
        # 2
        walk.feed(seed=7)
        first = walk.print_all()
        # 3
        walk.feed(seed=8)
        failed, partly, error = walk.fail()
        planned = _plan(local, walk.next)
        # 4
        again = walk.print_again(planned, partly)
        # 5
        walk.compare()
    return {
        "first": [asdict(batch) for batch in first],
        "failed": [asdict(batch) for batch in failed],
        "printed_before": partly,
        "error": error,
        "planned": planned,
        "again": [asdict(batch) for batch in again],
        "checkpoint": str(local.checkpoint(JOB)),
    }


class _Walk:
    """The job's runs, and which batches they have printed so far."""

    def __init__(self, local: Settings, narrator: Narrator) -> None:
        self._local, self._narrator = local, narrator
        self._done: list[Batch] = []

    @property
    def next(self) -> int:
        """The number of the next batch."""
        return len(self._done)

    def feed(self, seed: int) -> None:
        """More visits, by the command that a person would type."""
        command = ["generate", "visits", "--count", "16", "--users", "8", "--text-ids"]
        command += ["--seed", str(seed)]
        self._narrator.tell(f"Feeding the topic: ebbtide {' '.join(command)}")
        self._narrator.show(type_command(self._local, *command))

    def print_all(self) -> list[Batch]:
        """Step 2."""
        self._narrator.title("The job, batch by batch")
        self._narrator.tell(
            f"Starting the job as its own process: ebbtide run {JOB} {shlex.join(_FLAGS)}. Each "
            "batch takes at most 4 records and hands them to a function, whose tasks print them …"
        )
        return self._accept(self._run_to_the_end())

    def fail(self) -> tuple[list[Batch], list[str], str]:
        """Step 3: the batches that were printed before the failure, what of that one, and why."""
        self._narrator.title("A bug is shipped")
        self._narrator.tell(
            "The job was stopped. Now it starts again, in a version that fails in the middle of "
            f"a batch: ebbtide run {BUGGY} {shlex.join(_FLAGS)}"
        )
        with Job(self._local, BUGGY, *_FLAGS) as job:
            code, error = job.wait(), job.errors()[-1]
            *whole, partly = parse_printed(job.text)
        batches = self._accept(whole)
        self._narrator.show("\n".join([HEADER, *partly, error]))
        if code != 1 or not error.startswith(f"Error: Batch {self.next} of {JOB} failed: "):
            raise DemoFailedError(f"Batch {self.next} should fail with exit 1; {code}: {error}")
        self._narrator.check(f"exit 1, and the error names batch {self.next}")
        return batches, partly, error

    def print_again(self, planned: str, partly: list[str]) -> list[Batch]:
        """Step 4: the batch as it was planned, of which some was printed already."""
        self._narrator.title("The job again")
        self._narrator.tell(
            f"The failed batch is planned in offsets/{self.next} of the checkpoint and not "
            "committed, so the job as it was begins with it:"
        )
        self._narrator.show(planned.splitlines()[-1])
        batches = self._accept(self._run_to_the_end())
        again = batches[0]
        if _plan(self._local, again.id) != planned:
            raise DemoFailedError(f"offsets/{again.id} is not what it was.")
        if not set(map(_row, partly)) < set(map(_row, again.lines)):
            raise DemoFailedError(f"{partly} were printed before, and now not again.")
        self._narrator.check(f"batch {again.id} ran again, whole, over the same offsets")
        return batches

    def compare(self) -> None:
        """Step 5: every record of the topic was printed, and by one batch only."""
        ends = _ends(self._local)
        held = _lines(self._local, dict.fromkeys(ends, 0), ends)
        due = sorted(line for lines in held for line in lines)
        found = sorted(_row(line) for batch in self._done for line in batch.lines)
        if found != due:
            raise DemoFailedError(f"The topic holds {len(due)} visits, {len(found)} were printed.")
        self._narrator.title("All of it")
        self._narrator.check(
            f"{len(due)} visits on the topic, each printed by exactly one of "
            f"{len(self._done)} finished batches"
        )

    def _accept(self, printed: list[list[str]]) -> list[Batch]:
        """Hold what was printed against what the topic has between each batch's offsets."""
        batches = _batches(self._local, self.next, printed)
        for batch in batches:
            self._narrator.show("\n".join([HEADER, *batch.lines]))
            due = _lines(self._local, batch.start, batch.end)
            if sorted(_by_task(batch.lines)) != sorted(due):
                raise DemoFailedError(f"Batch {batch.id} should print {due}, not {batch.lines}.")
            self._narrator.check(f"batch {batch.id}: the records {_say_range(batch)}")
        self._done += batches
        return batches

    def _run_to_the_end(self) -> list[list[str]]:
        """Run the job until it has printed what is left of the topic, then stop it."""
        before = sum(len(batch.lines) for batch in self._done)
        left = sum(_ends(self._local).values()) - before
        with Job(self._local, JOB, *_FLAGS) as job:
            wait_for(lambda: _count(job) >= left, f"{left} printed visits", job)
            job.stop()
            return parse_printed(job.text)


def parse_printed(text: str) -> list[list[str]]:
    r"""What the job printed, batch by batch, without the headers.

    >>> parse_printed("✍️ Printing visits\nPartition[0] > a\n✍️ Printing visits\n")
    [['Partition[0] > a'], []]
    """
    batches: list[list[str]] = []
    for line in text.splitlines():
        if line == HEADER:
            batches.append([])
        elif not batches:
            raise DemoFailedError(f"A line before the first header: {line}")
        else:
            batches[-1].append(line)
    return batches


def _count(job: Job) -> int:
    return sum(map(len, parse_printed(job.text)))


def _batches(settings: Settings, first: int, printed: list[list[str]]) -> list[Batch]:
    """What was printed since a batch, with the offsets that the checkpoint names."""
    logs = read_logs(open_folder(str(settings.checkpoint(JOB))))
    planned = {batch.id: _offsets(batch.offsets.sources[0]) for batch in logs.batches}
    start = planned.get(first - 1, dict.fromkeys(_ends(settings), 0))
    found = []
    for number, lines in enumerate(printed, first):
        if number not in planned:
            raise DemoFailedError(f"Batch {number} was printed, but the checkpoint has none.")
        found.append(Batch(number, start, planned[number], tuple(lines)))
        start = planned[number]
    return found


def _offsets(source: str | None) -> dict[int, int]:
    return {} if source is None else dict(log_files.parse_kafka_offset(source)["visits"])


def _plan(settings: Settings, number: int) -> str:
    """What a batch is to read, as the checkpoint has it."""
    return (settings.checkpoint(JOB) / "offsets" / str(number)).read_text("utf-8")


def _ends(settings: Settings) -> dict[int, int]:
    retained = kafka.retained_offsets(settings.kafka, "visits")
    return {partition: end for partition, (_, end) in retained.items()}


def _lines(
    settings: Settings, start: Mapping[int, int], end: Mapping[int, int]
) -> list[tuple[str, ...]]:
    """The visits between offsets as they are to be printed, for each partition that has any."""
    found: dict[int, list[str]] = {}
    for record in kafka.consume_range(settings.kafka, "visits", start, end):
        visit = json.loads(record.value or b"")
        at = datetime.fromisoformat(visit["event_time"].replace("Z", "+00:00")).replace(tzinfo=None)
        row = f"Row(visit_id={visit['visit_id']!r}, event_time={at!r}, page={visit['page']!r})"
        found.setdefault(record.partition, []).append(f"Printing visit={row}")
    return [tuple(lines) for lines in found.values()]


def _by_task(lines: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The printed rows, task by task."""
    tasks: dict[str, list[str]] = {}
    for line in lines:
        tasks.setdefault(line.partition(" > ")[0], []).append(_row(line))
    return [tuple(rows) for rows in tasks.values()]


def _row(line: str) -> str:
    return line.partition(" > ")[2]


def _say_range(batch: Batch) -> str:
    return ", ".join(
        f"{batch.start[partition]} to {end} of partition {partition}"
        for partition, end in sorted(batch.end.items())
    )
