"""Demo of the batch reprocessor: count late visits that the stream has dropped."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.systems import harness

JOB = "visits-counter"
_DAY = "2025-09-04"
_SETTLE_SECONDS = 1.5
_RANGE = (f"{_DAY}T07:00:00.000", f"{_DAY}T07:10:00.000")
Windows = dict[str, int]
"""The number of visits by the start of their window."""


def _visits(*visits: tuple[str, str, str]) -> tuple[dict[str, object], ...]:
    return tuple(
        {"event_id": event, "visit_id": 1, "event_time": f"{_DAY}T{at}:00", "page": page}
        for event, at, page in visits
    )


STEPS: tuple[harness.DemoStep[Windows], ...] = (
    harness.DemoStep(
        "Step a",
        _visits(
            *(("click-1", "07:00", "home"), ("click-2", "07:01", "index")),
            ("click-3", "07:02", "page"),
        ),
        {},
        "Three visits in the window that starts at 07:00. It is still open, so the stream writes "
        "nothing yet; the archive has the visits already.",
    ),
    harness.DemoStep(
        "Step b",
        _visits(
            *(("click-4", "07:33", "home-2"), ("click-5", "07:34", "index-2")),
            ("click-6", "07:35", "page-2"),
        ),
        {"07:00": 3},
        "Half an hour later. The watermark (newest event time minus 10 minutes) passes 07:10: the "
        "first window is closed and written.",
    ),
    harness.DemoStep(
        "Step c",
        _visits(
            *(("click-7", "08:06", "home-3"), ("click-8", "08:07", "index-3")),
            ("click-9", "08:08", "page-3"),
        ),
        {"07:30": 3},
        "The window that starts at 07:30 is closed, too.",
    ),
    harness.DemoStep(
        "Step d",
        _visits(("click-300", "07:03", "page"), ("click-301", "07:04", "page")),
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
            f"Starting two processes: ebbtide run {JOB} counts visits per ten minutes of event "
            f"time into topic visits_counter; ebbtide archive {JOB} keeps every record in a Delta "
            "table, partitioned by hour …"
        )
        with harness.Job(local, JOB, "-o", "json") as stream:
            harness.wait_for(
                lambda: bool(kafka.retained_offsets(local.kafka, "visits")), "topic visits", stream
            )
            with harness.Job(local, JOB, "-o", "json", verb="archive") as archive:
                run = _BatchReprocessorRun(local, narrator, stream, archive)
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
        "home": str(local.home),
    }


class _BatchReprocessorRun(harness.DemoRun):
    """The two running queries, and their output so far."""

    def __init__(
        self, local: Settings, narrator: harness.Narrator, stream: harness.Job, archive: harness.Job
    ) -> None:
        super().__init__(local, narrator)
        self._jobs = {"stream": stream, "archive": archive}
        self._expected: list[tuple[str, int]] = []
        self._sent = 0
        self.messages: list[dict[str, object]] = []
        """Every message on the output topic, in the order of writing."""
        self.commits: list[int] = []

    def play(self, step: harness.DemoStep[Windows]) -> None:
        self.send(step)
        self._sent += len(step.events)
        for name, job in self._jobs.items():
            what = f"the {name} has read {self._sent} records"
            harness.wait_for(lambda job=job: _rows(job) >= self._sent, what, job)  # type: ignore[misc]
        self._expect_commit(len(self.commits) + 1)
        self._expect_windows(step.expected)

    def reprocess(self) -> str:
        """Run the range again by the command that a user would type; returns its output."""
        start, end = _RANGE
        flags = ("--event-time-start", start, "--event-time-end", end)
        self.narrator.title("Step e")
        self.narrator.tell(
            "The same function once more, as a batch over the archive, for the one window that "
            f"is wrong: ebbtide reprocess {JOB} {' '.join(flags)} --execute"
        )
        output = harness.type_command(
            self.local,
            *("reprocess", JOB, *flags, "--execute", "--yes", "--home", str(self.local.home)),
        )
        self.narrator.show(output)
        self._expect_windows({"07:00": 5})
        return output

    def stop(self) -> dict[str, list[str]]:
        """Stop both; a query that was restarted would have another run id."""
        run_ids = {}
        for name, job in self._jobs.items():
            if not job.running:
                raise harness.DemoFailedError(f"The {name} did not run throughout.")
            began = {report["run_id"] for report in harness.reports(job)}
            job.stop()
            ended = json.loads(job.text)["run_id"]
            if began != {ended}:
                raise harness.DemoFailedError(f"The {name} ran as {began}, and ended as {ended}.")
            run_ids[name] = [str(ended)]
        self.narrator.check("the stream and the archive ran throughout, each as one query")
        return run_ids

    def _expect_commit(self, count: int) -> None:
        table, archive = Path(self.local.table("visits")), self._jobs["archive"]
        harness.wait_for(
            lambda: len(_data_commits(table)) >= count, f"data commit {count}", archive
        )
        self.commits = _data_commits(table)
        if len(self.commits) != count:
            raise harness.DemoFailedError(
                f"Expected {count} commits with data, not {self.commits}."
            )
        self.narrator.check(f"the archive has one more commit: version {self.commits[-1]}")

    def _expect_windows(self, windows: Windows) -> None:
        """Wait for these messages, and leave time for others that must not come."""
        self._expected += windows.items()
        count = len(self._expected)
        harness.wait_for(
            lambda: len(_messages(self.local)) >= count, f"message {count}", self._jobs["stream"]
        )
        time.sleep(_SETTLE_SECONDS)
        self.messages = _messages(self.local)
        counts = list(map(_window, self.messages))
        if counts != self._expected:
            raise harness.DemoFailedError(
                f"visits_counter should hold {self._expected}, not {counts}."
            )
        for message in self.messages[count - len(windows) :]:
            self.narrator.show(f"{message['key']}  {message['value']}")
        news = ", ".join(f"{start} counts {count}" for start, count in windows.items())
        self.narrator.check(f"visits_counter: {news or 'nothing new'}")


def _rows(job: harness.Job) -> int:
    return sum(report["rows"] for report in harness.reports(job))


def _messages(settings: Settings) -> list[dict[str, object]]:
    return [
        json.loads(record.to_json()) for record in harness.read_topic(settings, "visits_counter")
    ]


def _window(message: dict[str, object]) -> tuple[str, int]:
    row = json.loads(str(message["value"]))
    return row["window"]["start"][11:16], row["count"]


def _data_commits(table: Path) -> list[int]:
    """The versions of a Delta table that added data; compaction only moves it."""
    versions = []
    for log in sorted((table / "_delta_log").glob("*.json")):
        actions = map(json.loads, log.read_text("utf-8").splitlines())
        if any(action["add"]["dataChange"] for action in actions if "add" in action):
            versions.append(int(log.stem))
    return versions
