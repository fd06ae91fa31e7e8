"""Demo of the batch reprocessor: count late visits that the stream has dropped."""

from __future__ import annotations

import json
import re
import shlex
import time
from dataclasses import dataclass, field
from typing import Any

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.storage import Folder, open_folder
from ebbtide.systems import harness

JOB = "visits-counter"
_DAY = "2025-09-04"
Windows = dict[str, int]
"""The number of visits by the start of their window."""


def _visits(*visits: str) -> tuple[dict[str, object], ...]:
    rows = (visit.split() for visit in visits)
    return tuple(
        {"event_id": event, "visit_id": 1, "event_time": f"{_DAY}T{at}:00", "page": page}
        for event, at, page in rows
    )


STEPS: tuple[harness.DemoStep[Windows], ...] = (
    harness.DemoStep(
        "Step a",
        _visits("click-1 07:00 home", "click-2 07:01 index", "click-3 07:02 page"),
        {},
        "Three visits in the window that starts at 07:00. It is still open, so the stream writes "
        "nothing yet; the archive has the visits already.",
    ),
    harness.DemoStep(
        "Step b",
        _visits("click-4 07:33 home-2", "click-5 07:34 index-2", "click-6 07:35 page-2"),
        {"07:00": 3},
        "Half an hour later. The watermark (newest event time minus 10 minutes) passes 07:10: the "
        "first window is closed and written.",
    ),
    harness.DemoStep(
        "Step c",
        _visits("click-7 08:06 home-3", "click-8 08:07 index-3", "click-9 08:08 page-3"),
        {"07:30": 3},
        "The window that starts at 07:30 is closed, too.",
    ),
    harness.DemoStep(
        "Step d",
        _visits("click-300 07:03 page", "click-301 07:04 page"),
        {},
        "Two visits arrive late. Their window is closed, so the stream drops them. The archive "
        "keeps them.",
    ),
)


def play(settings: Settings, narrator: harness.Narrator) -> dict[str, object]:
    """Play the demo.

    **1** broker; **2** the stream and the archive, side by side, step by step; **3** the range
    again, while both go on; **4** both stopped, without ever having been restarted.
    """
    # 1
    with harness.open_stage(settings, narrator, "batch-reprocessor", "Batch reprocessor") as local:
        # 2
        narrator.tell(
            "Starting two processes. One counts visits per ten minutes of event time into topic "
            "visits_counter, the other keeps every record in a Delta table, partitioned by hour:\n"
            f"$ ebbtide run {JOB}\n$ ebbtide archive {JOB}"
        )
        with harness.Job(local, JOB, "-o", "json") as stream:
            stream.wait_for(lambda: kafka.retained_offsets(local.kafka, "visits"), "topic visits")
            with harness.Job(local, JOB, "-o", "json", verb="archive") as archive:
                jobs = {"stream": stream, "archive": archive}
                run = _BatchReprocessorRun(local, narrator, jobs)
                for step in STEPS:
                    run.play(step)
                # 3
                output = run.reprocess()
                # 4
                run_ids = run.stop()
    return {
        "messages": run.messages,
        "commits": run.commits,
        "run_ids": run_ids,
        "reprocess": output,
        "home": local.location(),
    }


@dataclass
class _BatchReprocessorRun(harness.DemoRun):
    """The two running queries, and their output so far."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    """Every message on the output topic, in the order of writing."""
    commits: list[int] = field(default_factory=list)
    _expected: list[tuple[str, int]] = field(default_factory=list)
    _sent: int = 0

    def play(self, step: harness.DemoStep[Windows]) -> None:
        self.send(step)
        self._sent += len(step.events)
        for name, job in self.jobs.items():
            what = f"the {name} has read {self._sent} records"
            job.wait_for(lambda job=job: _count_rows(job) >= self._sent, what)  # type: ignore[misc]
        self._expect_commit(len(self.commits) + 1)
        self._expect_windows(step.expected)

    def reprocess(self) -> str:
        """Run the range again by the command that a user would type; returns its output."""
        start, end = (f"{_DAY}T07:{minute}:00.000" for minute in ("00", "10"))
        command = ("reprocess", JOB, "--event-time-start", start, "--event-time-end", end)
        self.begin(
            "Step e",
            "The same function once more, as a batch over the archive, for the one window that "
            f"is wrong:\n$ ebbtide {shlex.join(command)} --execute",
        )
        home = self.local.location()
        output = self.type_command(*command, "--execute", "--yes", "--home", home)
        self._expect_windows({"07:00": 5})
        return output

    def stop(self) -> dict[str, list[str]]:
        """Stop both; a query that was restarted would have another run id."""
        run_ids = {}
        for name, job in self.jobs.items():
            harness.require(job.running, f"The {name} did not run throughout.")
            began = {report["run_id"] for report in job.reports()}
            job.stop()
            ended = json.loads(job.text)["run_id"]
            harness.require(began == {ended}, f"The {name} ran as {began}, and ended as {ended}.")
            run_ids[name] = [str(ended)]
        self.narrator.check("the stream and the archive ran throughout, each as one query")
        return run_ids

    def _expect_commit(self, count: int) -> None:
        table, archive = open_folder(self.local.table("visits")), self.jobs["archive"]
        archive.wait_for(lambda: len(_data_commits(table)) >= count, f"data commit {count}")
        self.commits = _data_commits(table)
        problem = f"Expected {count} commits with data, not {self.commits}."
        harness.require(len(self.commits) == count, problem)
        log = [name for name in table.names("_delta_log") if name.endswith(".json")]
        self.narrator.show("\n".join(f"visits/_delta_log/{name}" for name in sorted(log)))
        self.narrator.check(f"the archive has one more commit: version {self.commits[-1]}")

    def _expect_windows(self, windows: Windows) -> None:
        """Wait for these messages, and leave time for others that must not come."""
        self._expected += windows.items()
        count = len(self._expected)
        self.jobs["stream"].wait_for(lambda: len(self._read()) >= count, f"message {count}")
        time.sleep(harness.SETTLE_SECONDS)
        self.messages = self._read()
        rows = [json.loads(message["value"]) for message in self.messages]
        counts = [(row["window"]["start"][11:16], row["count"]) for row in rows]
        problem = f"visits_counter should hold {self._expected}, not {counts}."
        harness.require(counts == self._expected, problem)
        for message in self.messages[count - len(windows) :]:
            self.narrator.show(f"{message['key']}  {message['value']}")
        news = ", ".join(f"{start} counts {count}" for start, count in windows.items())
        self.narrator.check(f"visits_counter: {news or 'nothing new'}")

    def _read(self) -> list[dict[str, Any]]:
        return harness.read_messages(self.local, "visits_counter")


def _count_rows(job: harness.Job) -> int:
    return sum(report["rows"] for report in job.reports())


def _data_commits(table: Folder) -> list[int]:
    """The versions of a Delta table that added data; compaction only moves it."""
    versions = []
    for name in table.names("_delta_log"):
        if not re.fullmatch(r"\d+\.json", name):
            continue
        actions = map(json.loads, (table.read("_delta_log", name) or "").splitlines())
        if any(action["add"]["dataChange"] for action in actions if "add" in action):
            versions.append(int(name.partition(".")[0]))
    return versions
