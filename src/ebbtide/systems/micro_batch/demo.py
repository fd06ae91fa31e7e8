"""Demo of the micro-batch consumer: stopped, restarted, failed in the middle, run again."""

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
from ebbtide.systems import harness

JOB = "visits-micro-batch"
BUGGY = "ebbtide.systems.micro_batch.failing_job:pipeline"
HEADER = "✍️ Printing visits"
_FLAGS = ("--trigger", "1 second", "--max-offsets-per-trigger", "4")


@dataclass(frozen=True)
class PrintedBatch:
    """A batch of the checkpoint: its offsets, and the lines that it printed."""

    id: int
    start: dict[int, int]
    end: dict[int, int]
    lines: tuple[str, ...]


def play(settings: Settings, narrator: harness.Narrator) -> dict[str, object]:
    """Play the demo.

    **1** broker; **2** the job, batch by batch, until it is stopped; **3** more visits, and the
    job again with a bug: it continues where it stopped, and fails in the middle of a batch;
    **4** the job without the bug: that batch again, complete, then the rest; **5** all printed
    lines compared with the topic.
    """
    # 1
    with harness.open_stage(settings, narrator, "micro-batch", "Micro-batch consumer") as local:
        run = _MicroBatchRun(local, narrator)
        # 2
        run.feed(seed=7)
        first = run.print_all()
        # 3
        run.feed(seed=8)
        failed, partly, error = run.fail()
        planned = _plan(local, run.next)
        # 4
        again = run.print_again(planned, partly)
        # 5
        run.compare()
    return {
        "first": [asdict(batch) for batch in first],
        "failed": [asdict(batch) for batch in failed],
        "printed_before": partly,
        "error": error,
        "planned": planned,
        "again": [asdict(batch) for batch in again],
        "checkpoint": str(local.checkpoint(JOB)),
    }


class _MicroBatchRun(harness.DemoRun):
    """The runs of the job, and the batches that they have printed so far."""

    def __init__(self, local: Settings, narrator: harness.Narrator) -> None:
        super().__init__(local, narrator)
        self._done: list[PrintedBatch] = []

    @property
    def next(self) -> int:
        """The number of the next batch."""
        return len(self._done)

    def feed(self, seed: int) -> None:
        """Send more visits by the command that a user would type."""
        command = ["generate", "visits", "--count", "16", "--users", "8", "--text-ids"]
        command += ["--seed", str(seed)]
        self.narrator.tell(f"Sending visits: ebbtide {' '.join(command)}")
        self.narrator.show(harness.type_command(self.local, *command))

    def print_all(self) -> list[PrintedBatch]:
        """Step 2."""
        self.narrator.title("The job, batch by batch")
        self.narrator.tell(
            f"Starting the job as a process of its own: ebbtide run {JOB} {shlex.join(_FLAGS)}. "
            "Each batch reads at most 4 records and passes them to a function, whose tasks print "
            "them …"
        )
        return self._accept(self._run_to_the_end())

    def fail(self) -> tuple[list[PrintedBatch], list[str], str]:
        """Step 3: the batches before the failure, the lines of the failed one, and the error."""
        self.narrator.title("A bug is shipped")
        self.narrator.tell(
            "The job was stopped. Now a version starts that fails in the middle of a batch: "
            f"ebbtide run {BUGGY} {shlex.join(_FLAGS)}"
        )
        with harness.Job(self.local, BUGGY, *_FLAGS) as job:
            code, error = job.wait(), job.errors()[-1]
            *whole, partly = parse_printed(job.text)
        batches = self._accept(whole)
        self.narrator.show("\n".join([HEADER, *partly, error]))
        if code != 1 or not error.startswith(f"Error: Batch {self.next} of {JOB} failed: "):
            raise harness.DemoFailedError(
                f"Batch {self.next} should fail with exit 1; {code}: {error}"
            )
        self.narrator.check(f"exit 1, and the error names batch {self.next}")
        return batches, partly, error

    def print_again(self, planned: str, partly: list[str]) -> list[PrintedBatch]:
        """Step 4: the failed batch, of which some lines were printed already, as planned."""
        self.narrator.title("The job again")
        self.narrator.tell(
            f"The failed batch is planned in offsets/{self.next} of the checkpoint and not "
            "committed, so the job without the bug starts with it:"
        )
        self.narrator.show(planned.splitlines()[-1])
        batches = self._accept(self._run_to_the_end())
        again = batches[0]
        if _plan(self.local, again.id) != planned:
            raise harness.DemoFailedError(f"offsets/{again.id} has changed.")
        if not set(map(_row, partly)) < set(map(_row, again.lines)):
            raise harness.DemoFailedError(f"{partly} were printed before, but not again.")
        self.narrator.check(f"batch {again.id} ran again, complete, over the same offsets")
        return batches

    def compare(self) -> None:
        """Step 5: every record of the topic was printed by exactly one batch."""
        ends = _ends(self.local)
        held = _lines(self.local, dict.fromkeys(ends, 0), ends)
        expected = sorted(line for lines in held for line in lines)
        printed = sorted(_row(line) for batch in self._done for line in batch.lines)
        if printed != expected:
            raise harness.DemoFailedError(
                f"The topic holds {len(expected)} visits, but {len(printed)} were printed."
            )
        self.narrator.title("All batches")
        self.narrator.check(
            f"{len(expected)} visits on the topic, each printed by exactly one of "
            f"{len(self._done)} finished batches"
        )

    def _accept(self, printed: list[list[str]]) -> list[PrintedBatch]:
        """Compare what was printed with the topic's records between each batch's offsets."""
        batches = _batches(self.local, self.next, printed)
        for batch in batches:
            self.narrator.show("\n".join([HEADER, *batch.lines]))
            expected = _lines(self.local, batch.start, batch.end)
            if sorted(_by_task(batch.lines)) != sorted(expected):
                raise harness.DemoFailedError(
                    f"Batch {batch.id} should print {expected}, not {batch.lines}."
                )
            self.narrator.check(f"batch {batch.id}: the records {_format_range(batch)}")
        self._done += batches
        return batches

    def _run_to_the_end(self) -> list[list[str]]:
        """Run the job until it has printed the rest of the topic, then stop it."""
        before = sum(len(batch.lines) for batch in self._done)
        left = sum(_ends(self.local).values()) - before
        with harness.Job(self.local, JOB, *_FLAGS) as job:
            harness.wait_for(lambda: _count(job) >= left, f"{left} printed visits", job)
            job.stop()
            return parse_printed(job.text)


def parse_printed(text: str) -> list[list[str]]:
    r"""The lines that the job printed, by batch and without headers.

    >>> parse_printed("✍️ Printing visits\nPartition[0] > a\n✍️ Printing visits\n")
    [['Partition[0] > a'], []]
    """
    batches: list[list[str]] = []
    for line in text.splitlines():
        if line == HEADER:
            batches.append([])
        elif not batches:
            raise harness.DemoFailedError(f"There is a line before the first header: {line}")
        else:
            batches[-1].append(line)
    return batches


def _count(job: harness.Job) -> int:
    return sum(map(len, parse_printed(job.text)))


def _batches(settings: Settings, first: int, printed: list[list[str]]) -> list[PrintedBatch]:
    """The batches printed from `first` on, with their offsets in the checkpoint."""
    logs = read_logs(open_folder(str(settings.checkpoint(JOB))))
    planned = {batch.id: _offsets(batch.offsets.sources[0]) for batch in logs.batches}
    start = planned.get(first - 1, dict.fromkeys(_ends(settings), 0))
    batches = []
    for number, lines in enumerate(printed, first):
        if number not in planned:
            raise harness.DemoFailedError(
                f"Batch {number} was printed, but is not in the checkpoint."
            )
        batches.append(PrintedBatch(number, start, planned[number], tuple(lines)))
        start = planned[number]
    return batches


def _offsets(source: str | None) -> dict[int, int]:
    return {} if source is None else dict(log_files.parse_kafka_offset(source)["visits"])


def _plan(settings: Settings, number: int) -> str:
    """The plan of a batch in the checkpoint: what it reads."""
    return (settings.checkpoint(JOB) / "offsets" / str(number)).read_text("utf-8")


def _ends(settings: Settings) -> dict[int, int]:
    retained = kafka.retained_offsets(settings.kafka, "visits")
    return {partition: end for partition, (_, end) in retained.items()}


def _lines(
    settings: Settings, start: Mapping[int, int], end: Mapping[int, int]
) -> list[tuple[str, ...]]:
    """The lines to print for the visits between offsets, for each partition that has any."""
    by_partition: dict[int, list[str]] = {}
    for record in kafka.consume_range(settings.kafka, "visits", start, end):
        visit = json.loads(record.value or b"")
        at = datetime.fromisoformat(visit["event_time"].replace("Z", "+00:00")).replace(tzinfo=None)
        row = f"Row(visit_id={visit['visit_id']!r}, event_time={at!r}, page={visit['page']!r})"
        by_partition.setdefault(record.partition, []).append(f"Printing visit={row}")
    return [tuple(lines) for lines in by_partition.values()]


def _by_task(lines: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The printed rows, task by task."""
    tasks: dict[str, list[str]] = {}
    for line in lines:
        tasks.setdefault(line.partition(" > ")[0], []).append(_row(line))
    return [tuple(rows) for rows in tasks.values()]


def _row(line: str) -> str:
    return line.partition(" > ")[2]


def _format_range(batch: PrintedBatch) -> str:
    return ", ".join(
        f"{batch.start[partition]} to {end} of partition {partition}"
        for partition, end in sorted(batch.end.items())
    )
