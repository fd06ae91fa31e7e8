"""Demo of the browser statistics: the same visits without state and with it, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from ebbtide.config import Settings
from ebbtide.systems import harness

JOBS = ("browser-stats-stateless", "browser-stats-stateful")
_DAY = "2024-10-06"


@dataclass(frozen=True)
class BrowserCount:
    """One message: how many visits a browser had in the five minutes from `window`."""

    browser: str
    window: str
    count: int
    last: str

    def __str__(self) -> str:
        return f"{self.browser:<7}  {self.window}  {self.count:>5}  {self.last}"

    def to_json(self) -> str:
        """The value of the message, byte for byte.

        >>> print(BrowserCount("Firefox", "10:00", 2, "10:03").to_json()[:59])
        {"browser":"Firefox","window":{"start":"2024-10-06T10:00:00
        """
        end = f"{self.window[:3]}{int(self.window[3:]) + 5:02}"
        start, end, last = (f"{_DAY}T{at}:00.000Z" for at in (self.window, end, self.last))
        row = {
            "browser": self.browser,
            "window": {"start": start, "end": end},
            "count": self.count,
            "last_event_time_in_window": last,
        }
        return json.dumps(row, separators=(",", ":"))


@dataclass(frozen=True)
class JobOutput:
    """The batches that a job runs in a step, and its messages; the last batch may be empty."""

    batches: tuple[int, ...]
    messages: tuple[BrowserCount, ...] = ()


Outputs = tuple[JobOutput, JobOutput]
"""Of the job without state and of the one with it."""


def _visits(*visits: tuple[str, str]) -> tuple[dict[str, object], ...]:
    return tuple(
        {"userId": 1, "page": "index.html", "eventTime": f"{_DAY}T{at}:00Z", "browser": browser}
        for at, browser in visits
    )


def _firefox(window: str, count: int, last: str) -> tuple[BrowserCount, ...]:
    return (BrowserCount("Firefox", window, count, last),)


_EACH = (
    BrowserCount("Chrome", "10:00", 1, "10:01"),
    *_firefox("10:00", 1, "10:00"),
    BrowserCount("Safari", "10:00", 1, "10:02"),
)

STEPS: tuple[harness.DemoStep[Outputs], ...] = (
    harness.DemoStep(
        "Step a",
        _visits(("10:00", "Firefox"), ("10:01", "Chrome"), ("10:02", "Safari")),
        (JobOutput((1,), _EACH), JobOutput((1, 2), _EACH)),
        "One visit with each of three browsers. Both jobs write the same. With state there is a "
        "watermark, the newest event time minus 20 minutes, which is now 09:42; an empty batch "
        "applies it.",
    ),
    harness.DemoStep(
        "Step b",
        _visits(("10:00", "Firefox"), ("10:03", "Firefox")),
        (
            JobOutput((2,), _firefox("10:00", 2, "10:03")),
            JobOutput((3, 4), _firefox("10:00", 3, "10:03")),
        ),
        "Two more in the same window. Without state only these two count; with state they are the "
        "second and the third.",
    ),
    harness.DemoStep(
        "Step c",
        _visits(("09:40", "Firefox")),
        (
            JobOutput((3,), _firefox("09:40", 1, "09:40")),
            JobOutput((5,), _firefox("09:40", 1, "09:40")),
        ),
        "A late visit. Its window ends at 09:45 and the watermark is 09:43: still open.",
    ),
    harness.DemoStep(
        "Step d",
        _visits(("09:30", "Firefox")),
        (JobOutput((4,), _firefox("09:30", 1, "09:30")), JobOutput((6,))),
        "An even later one. Its window ended at 09:35, before the watermark: with state it is "
        "dropped. Without state nothing is ever late.",
    ),
    harness.DemoStep(
        "Step e",
        _visits(("10:30", "Firefox")),
        (
            JobOutput((5,), _firefox("10:30", 1, "10:30")),
            JobOutput((7, 8), _firefox("10:30", 1, "10:30")),
        ),
        "Half an hour later. The watermark moves to 10:10, and the state of all windows that ended "
        "by then is dropped.",
    ),
    harness.DemoStep(
        "Step f",
        _visits(("10:00", "Firefox")),
        (JobOutput((6,), _firefox("10:00", 1, "10:00")), JobOutput((9,))),
        "The first visit once more. Without state it counts 1, as if it were the first; with state "
        "its window is gone, and nothing is written.",
    ),
)


def play(settings: Settings, narrator: harness.Narrator) -> dict[str, object]:
    """Play the demo.

    **1** broker; **2** both jobs, side by side, step by step; **3** once they have stopped, all
    their messages; **4** the difference.
    """
    # 1
    with harness.open_stage(settings, narrator, "browser-stats", "Browser statistics") as local:
        # 2
        narrator.tell(
            "Starting two processes. The first counts the visits of each batch alone, the second "
            "counts across batches. Both use the same function.\n"
            f"$ ebbtide run {JOBS[0]}\n$ ebbtide run {JOBS[1]}"
        )
        with (
            harness.Job(local, JOBS[0], "-o", "json") as stateless,
            harness.Job(local, JOBS[1], "-o", "json") as stateful,
        ):
            jobs = dict(zip(JOBS, (stateless, stateful), strict=True))
            run = _BrowserStatsRun(local, narrator, jobs)
            for job in JOBS:  # both find the topic empty
                run.wait_for_batch(job, 0)
            for step in STEPS:
                run.play(step)
            batches = run.stop()
        # 3
        messages = {job: harness.read_messages(local, job) for job in JOBS}
        for job in JOBS:
            count, read = len(messages[job]), run.count_read(job)
            harness.require(count == read, f"{job} wrote {count} messages, not {read}.")
    # 4
    narrator.title("The difference")
    narrator.show("\n".join(_table()))
    return {
        "steps": {
            step: {job: list(map(json.loads, values)) for job, values in by_job.items()}
            for step, by_job in run.values.items()
        },
        "batches": batches,
        "messages": messages,
        "home": local.location(),
    }


@dataclass
class _BrowserStatsRun(harness.DemoRun):
    """The two running jobs, and the values of their messages by step and job."""

    values: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def play(self, step: harness.DemoStep[Outputs]) -> None:
        """Send, wait for the batches that follow, and check their messages."""
        self.send(step)
        outputs = zip(JOBS, step.expected, strict=True)
        self.values[step.title[-1]] = {
            job: self._expect(step.title, job, expected) for job, expected in outputs
        }

    def stop(self) -> dict[str, dict[int, int]]:
        """Stop both; returns the number of rows that each of their batches read."""
        batches = {}
        for job, process in self.jobs.items():
            process.stop()
            batches[job] = {report["id"]: report["rows"] for report in process.reports()}
        expected = [max(output.batches) for output in STEPS[-1].expected]
        last = [max(batches[job]) for job in JOBS]
        harness.require(last == expected, f"The last batches should be {expected}, not {last}.")
        return batches

    def count_read(self, job: str) -> int:
        """How many messages of a job the steps have read."""
        return sum(len(by_job[job]) for by_job in self.values.values())

    def wait_for_batch(self, job: str, batch: int) -> None:
        """Wait until a job reports a batch."""
        process = self.jobs[job]
        process.wait_for(
            lambda: any(report["id"] >= batch for report in process.reports()),
            f"batch {batch} of {job}",
        )

    def _expect(self, title: str, job: str, expected: JobOutput) -> list[str]:
        self.wait_for_batch(job, expected.batches[-1])
        new = harness.read_messages(self.local, job)[self.count_read(job) :]
        values = [message["value"] for message in new]
        wanted = sorted(message.to_json() for message in expected.messages)
        harness.require(
            sorted(values) == wanted, f"{title}: {job} should write {wanted}, not {values}."
        )
        if values:
            self.narrator.show("\n".join(values))
        result = "as expected" if values else "nothing, as expected"
        self.narrator.check(f"{job}, batch {expected.batches[0]}: {result}")
        return values


def _table() -> Iterator[str]:
    """A line for each visit and its messages, which were as expected, the jobs side by side."""
    head = f"{'browser':<7}  from   count  last "
    yield f"{'':<4}  {'':<13}  {'without state':<28}  with state"
    yield f"{'step':<4}  {'sent':<13}  {head:<28}  {head}".rstrip()
    for step in STEPS:
        sent = [f"{str(visit['eventTime'])[11:16]} {visit['browser']}" for visit in step.events]
        without, with_state = (output.messages or ("nothing",) for output in step.expected)
        lines = zip_longest([step.title[-1]], sent, without, with_state, fillvalue="")
        for cell, visit, left, right in lines:
            yield f"{cell:<4}  {visit:<13}  {left!s:<28}  {right}".rstrip()
