"""The batch reprocessor's walk: late visits that the stream ignored, counted after all."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.systems.harness import (
    DemoFailedError,
    Job,
    Narrator,
    read_topic,
    reports,
    send,
    stage,
    type_command,
    wait_for,
)

JOB = "visits-counter"
_DAY = "2025-09-04"
_SETTLE_SECONDS = 1.5
_RANGE = (f"{_DAY}T07:00:00.000", f"{_DAY}T07:10:00.000")


@dataclass(frozen=True)
class Step:
    """What is sent, and the windows that must follow on the output topic: count by start."""

    name: str
    events: tuple[tuple[str, str, str], ...]
    windows: dict[str, int]
    tells: str


STEPS = (
    Step(
        "a",
        (("click-1", "07:00", "home"), ("click-2", "07:01", "index"), ("click-3", "07:02", "page")),
        {},
        "Three visits in the window from 07:00. It is open, so the stream says nothing yet; the "
        "archive has them already.",
    ),
    Step(
        "b",
        (
            ("click-4", "07:33", "home-2"),
            ("click-5", "07:34", "index-2"),
            ("click-6", "07:35", "page-2"),
        ),
        {"07:00": 3},
        "Half an hour on. The watermark (newest event time less 10 minutes) passes 07:10: the "
        "first window is closed and written.",
    ),
    Step(
        "c",
        (
            ("click-7", "08:06", "home-3"),
            ("click-8", "08:07", "index-3"),
            ("click-9", "08:08", "page-3"),
        ),
        {"07:30": 3},
        "And the window from 07:30 is closed.",
    ),
    Step(
        "d",
        (("click-300", "07:03", "page"), ("click-301", "07:04", "page")),
        {},
        "Two visits come late. Their window is closed, so the stream ignores them. The archive "
        "does not.",
    ),
)


def play(settings: Settings, narrator: Narrator) -> dict[str, object]:
    """Play the walk.

    **1** broker; **2** the stream and the archive, side by side, step by step; **3** the range
    again, while both go on; **4** both stopped, and neither was ever started anew.
    """
    # 1
    narrator.title("Batch reprocessor")
    narrator.tell("Starting a Kafka broker (KRaft, one node) of this demo's own …")
    with stage(settings, "batch-reprocessor") as local:
        narrator.check(f"Kafka answers at {local.bootstrap_servers}")
        # 2
        narrator.tell(
            f"Starting two processes: ebbtide run {JOB} counts visits per ten minutes of event "
            f"time into topic visits_counter; ebbtide archive {JOB} keeps every record in a Delta "
            "table, by its hour …"
        )
        with Job(local, JOB, "-o", "json") as stream:
            wait_for(lambda: "visits" in kafka.list_topics(local.kafka), "topic visits", stream)
            with Job(local, JOB, "-o", "json", verb="archive") as archive:
                walk = _Walk(local, stream, archive, narrator)
                for step in STEPS:
                    walk.play(step)
                # 3
                told = walk.reprocess()
                # 4
                run_ids = walk.stop()
    return {
        "messages": walk.messages(),
        "commits": walk.commits,
        "run_ids": run_ids,
        "reprocess": told,
        "home": str(local.home),
    }


class _Walk:
    """The two running queries, and what has come out of them so far."""

    def __init__(self, local: Settings, stream: Job, archive: Job, narrator: Narrator) -> None:
        self._local, self._stream, self._archive = local, stream, archive
        self._narrator = narrator
        self._expected: list[tuple[str, int]] = []
        self._found: list[dict[str, object]] = []
        self._sent = 0
        self.commits: list[int] = []

    def play(self, step: Step) -> None:
        self._narrator.title(f"Step {step.name}")
        self._narrator.tell(step.tells)
        events = [
            {"event_id": event, "visit_id": 1, "event_time": f"{_DAY}T{at}:00", "page": page}
            for event, at, page in step.events
        ]
        self._narrator.show(send(self._local, "visits", events))
        self._sent += len(events)
        for name, job in (("stream", self._stream), ("archive", self._archive)):
            what = f"that the {name} has read {self._sent} records"
            wait_for(lambda job=job: _rows(job) >= self._sent, what, job)  # type: ignore[misc]
        self._expect_commit(len(self.commits) + 1)
        self._expect_windows(step.windows)

    def reprocess(self) -> str:
        """The range again, by the command that a person would type."""
        start, end = _RANGE
        flags = ("--event-time-start", start, "--event-time-end", end)
        self._narrator.title("Step e")
        self._narrator.tell(
            "The same function once more, as a batch over the archive, for the one window that "
            f"is wrong: ebbtide reprocess {JOB} {' '.join(flags)} --execute"
        )
        told = type_command(
            self._local,
            *("reprocess", JOB, *flags, "--execute", "--yes", "--home", str(self._local.home)),
        )
        self._narrator.show(told)
        self._expect_windows({"07:00": 5})
        return told

    def stop(self) -> dict[str, list[str]]:
        """Stop both; a query that was started anew would have another run id."""
        found = {}
        for name, job in (("stream", self._stream), ("archive", self._archive)):
            if not job.running:
                raise DemoFailedError(f"The {name} did not run throughout.")
            began = {report["run_id"] for report in reports(job)}
            job.stop()
            ended = json.loads(job.text)["run_id"]
            if began != {ended}:
                raise DemoFailedError(f"The {name} ran as {began}, and ended as {ended}.")
            found[name] = [str(ended)]
        self._narrator.check("the stream and the archive ran throughout, each as one query")
        return found

    def messages(self) -> list[dict[str, object]]:
        """Every message on the output topic, in the order of writing."""
        return self._found

    def _expect_commit(self, count: int) -> None:
        table = Path(self._local.table("visits"))
        wait_for(lambda: len(_data_commits(table)) >= count, f"data commit {count}", self._archive)
        self.commits = _data_commits(table)
        if len(self.commits) != count:
            raise DemoFailedError(f"{count} commits with data were due, {self.commits} came.")
        self._narrator.check(f"the archive has one more commit: version {self.commits[-1]}")

    def _expect_windows(self, windows: dict[str, int]) -> None:
        """Wait for these messages, and give others, which should not come, the time to come."""
        self._expected += windows.items()
        due = len(self._expected)
        wait_for(lambda: len(_messages(self._local)) >= due, f"message {due}", self._stream)
        time.sleep(_SETTLE_SECONDS)
        self._found = _messages(self._local)
        found = [(_start(message), _count(message)) for message in self._found]
        if found != self._expected:
            raise DemoFailedError(f"visits_counter should hold {self._expected}, it has {found}.")
        for message in self._found[due - len(windows) :]:
            self._narrator.show(f"{message['key']}  {message['value']}")
        said = ", ".join(f"{start} counts {count}" for start, count in windows.items())
        self._narrator.check(f"visits_counter: {said or 'nothing new'}")


def _rows(job: Job) -> int:
    return sum(report["rows"] for report in reports(job))


def _messages(settings: Settings) -> list[dict[str, object]]:
    return [json.loads(record.to_json()) for record in read_topic(settings, "visits_counter")]


def _start(message: dict[str, object]) -> str:
    return str(json.loads(str(message["value"]))["window"]["start"])[11:16]


def _count(message: dict[str, object]) -> int:
    return int(json.loads(str(message["value"]))["count"])


def _data_commits(table: Path) -> list[int]:
    """The versions of a Delta table that brought data; compaction only moves it."""
    found = []
    for log in sorted((table / "_delta_log").glob("*.json")):
        actions = map(json.loads, log.read_text("utf-8").splitlines())
        if any(action["add"]["dataChange"] for action in actions if "add" in action):
            found.append(int(log.stem))
    return found
