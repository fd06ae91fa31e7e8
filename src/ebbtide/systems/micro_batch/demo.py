"""Demo of the micro-batch consumer: stopped, restarted, failed in the middle, run again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from ebbtide.checkpoint import log_files, read_logs
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.storage import Folder, open_folder
from ebbtide.systems import harness
from ebbtide.times import parse_time

JOB = "visits-micro-batch"
BUGGY = "ebbtide.systems.micro_batch.failing_job:pipeline"
HEADER = "✍️ Printing visits"
_FLAGS = ("--trigger", "1 second", "--max-offsets-per-trigger", "10")


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
        planned = run.read_plan(len(run.done))
        # 4
        again = run.print_again(planned, partly)
        # 5
        run.compare()
    return {
        "first": list(map(asdict, first)),
        "failed": list(map(asdict, failed)),
        "printed_before": partly,
        "error": error,
        "planned": planned,
        "again": list(map(asdict, again)),
        "checkpoint": local.location("checkpoints", JOB),
    }


@dataclass
class _MicroBatchRun(harness.DemoRun):
    """The runs of the job, and the batches that they have printed so far."""

    done: list[PrintedBatch] = field(default_factory=list)

    def feed(self, seed: int) -> None:
        """Send more visits by the command that a user would type."""
        visits = ("--count", "40", "--users", "8", "--text-ids", "--seed", str(seed))
        command = ("generate", "visits", *visits)
        self.narrator.tell(f"Sending visits:\n$ ebbtide {shlex.join(command)}")
        self.type_command(*command)

    def print_all(self) -> list[PrintedBatch]:
        """Step 2."""
        self.begin(
            "The job, batch by batch",
            f"Starting the job as a process of its own:\n$ ebbtide run {JOB} {shlex.join(_FLAGS)}"
            "\nEach batch reads at most 10 records and passes them to a function, whose tasks "
            "print them. By itself the job starts a batch every 20 seconds; here it is every "
            "second, so that you need not wait.",
        )
        return self._accept(self._run_to_the_end())

    def fail(self) -> tuple[list[PrintedBatch], list[str], str]:
        """Step 3: the batches before the failure, the lines of the failed one, and the error."""
        self.begin(
            "A bug is shipped",
            "The job was stopped, and more visits came. What is printed so far is set aside: no "
            "line of it may come again. Now a version starts that fails in the middle of a batch:\n"
            f"$ ebbtide run {BUGGY} {shlex.join(_FLAGS)}",
        )
        with harness.Job(self.local, BUGGY, *_FLAGS) as job:
            code, error = job.wait(), job.errors()[-1]
            *whole, partly = parse_printed(job.text)
        set_aside = {_row(line) for batch in self.done for line in batch.lines}
        batches = self._accept(whole)
        again = set_aside & {_row(line) for lines in [*whole, partly] for line in lines}
        harness.require(not again, f"{sorted(again)} were printed twice.")
        self.narrator.check(f"none of the {len(set_aside)} visits that were set aside came again")
        self.narrator.show("\n".join([HEADER, *partly, error]))
        failed = len(self.done)
        harness.require(
            code == 1 and error.startswith(f"Error: Batch {failed} of {JOB} failed: "),
            f"Batch {failed} should fail with exit 1; {code}: {error}",
        )
        self.narrator.check(f"exit 1, and the error names batch {failed}")
        return batches, partly, error

    def print_again(self, planned: str, partly: list[str]) -> list[PrintedBatch]:
        """Step 4: the failed batch, of which some lines were printed already, as planned."""
        failed = len(self.done)
        self.begin(
            "The job again",
            f"The failed batch is planned in offsets/{failed} of the checkpoint and not "
            "committed, so the job without the bug starts with it:",
        )
        self.narrator.show(planned.splitlines()[-1])
        batches = self._accept(self._run_to_the_end())
        harness.require(self.read_plan(failed) == planned, f"offsets/{failed} has changed.")
        repeated = set(map(_row, partly)) < set(map(_row, batches[0].lines))
        harness.require(repeated, f"{partly} were printed before, but not again.")
        self.narrator.check(f"batch {failed} ran again, complete, over the same offsets")
        return batches

    def compare(self) -> None:
        """Step 5: every record of the topic was printed by exactly one batch."""
        ends = self._ends()
        expected = sorted(row for _, row in self._rows(dict.fromkeys(ends, 0), ends))
        printed = sorted(_row(line) for batch in self.done for line in batch.lines)
        harness.require(
            printed == expected,
            f"The topic holds {len(expected)} visits, but {len(printed)} were printed.",
        )
        self.narrator.title("All batches")
        self.narrator.check(
            f"{len(expected)} visits on the topic, each printed by exactly one of "
            f"{len(self.done)} finished batches"
        )

    def read_plan(self, number: int) -> str:
        """The plan of a batch in the checkpoint: what it reads."""
        return self._checkpoint.read("offsets", str(number)) or ""

    @property
    def _checkpoint(self) -> Folder:
        return open_folder(self.local.location("checkpoints", JOB))

    def _run_to_the_end(self) -> list[list[str]]:
        """Run the job until it has printed the rest of the topic, then stop it."""
        left = sum(self._ends().values()) - sum(len(batch.lines) for batch in self.done)
        with harness.Job(self.local, JOB, *_FLAGS) as job:
            job.wait_for(
                lambda: sum(map(len, parse_printed(job.text))) >= left, f"{left} printed visits"
            )
            job.stop()
            return parse_printed(job.text)

    def _accept(self, printed: list[list[str]]) -> list[PrintedBatch]:
        """Compare what was printed with the topic's records between each batch's offsets."""
        logs = read_logs(self._checkpoint)
        ends = {batch.id: batch.offsets.sources[0] for batch in logs.batches}
        first = len(self.done)
        for number, lines in enumerate(printed, first):
            planned = ends.get(number)
            if planned is None:
                problem = f"Batch {number} was printed, but is not in the checkpoint."
                raise harness.DemoFailedError(problem)
            start = self.done[-1].end if self.done else dict.fromkeys(self._ends(), 0)
            end = dict(log_files.parse_kafka_offset(planned)["visits"])
            self.narrator.show("\n".join([HEADER, *lines]))
            expected = _group(self._rows(start, end))
            problem = f"Batch {number} should print {expected}, not {lines}."
            harness.require(_group(line.split(" > ", 1) for line in lines) == expected, problem)
            self.narrator.check(f"batch {number}: {_format_ranges(start, end)}")
            self.done.append(PrintedBatch(number, start, end, tuple(lines)))
        return self.done[first:]

    def _ends(self) -> dict[int, int]:
        retained = kafka.retained_offsets(self.local.kafka, "visits")
        return {partition: end for partition, (_, end) in retained.items()}

    def _rows(self, start: dict[int, int], end: dict[int, int]) -> Iterator[tuple[int, str]]:
        """The visits between offsets as they should be printed, each with its partition."""
        for record in kafka.consume_range(self.local.kafka, "visits", start, end):
            visit = json.loads(record.value or b"")
            zone = ZoneInfo(self.local.timezone)
            at = parse_time(visit["event_time"]).astimezone(zone).replace(tzinfo=None)
            row = f"Row(visit_id={visit['visit_id']!r}, event_time={at!r}, page={visit['page']!r})"
            yield record.partition, f"Printing visit={row}"


def parse_printed(text: str) -> list[list[str]]:
    r"""The lines that the job printed, by batch and without headers.

    >>> parse_printed("✍️ Printing visits\nPartition[0] > a\n✍️ Printing visits\n")
    [['Partition[0] > a'], []]
    """
    before, *batches = text.split(f"{HEADER}\n")
    harness.require(not before, f"There is a line before the first header: {before}")
    return [batch.splitlines() for batch in batches]


def _group(rows: Iterable[Sequence[Any]]) -> list[list[str]]:
    """Rows by the task or partition that precedes each; which task reads which is not fixed."""
    groups: dict[Any, list[str]] = {}
    for key, row in rows:
        groups.setdefault(key, []).append(row)
    return sorted(groups.values())


def _format_ranges(start: Mapping[int, int], end: Mapping[int, int]) -> str:
    """Which records of each partition a batch has read.

    >>> _format_ranges({0: 5, 1: 5, 2: 0}, {0: 10, 1: 8, 2: 0})
    'records 5 to 9 of partition 0 and 5 to 7 of partition 1'
    """
    read = [p for p in sorted(end) if end[p] > start[p]]
    return "records " + " and ".join(f"{start[p]} to {end[p] - 1} of partition {p}" for p in read)


def _row(line: str) -> str:
    return line.partition(" > ")[2]
