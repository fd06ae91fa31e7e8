"""Demo of the browser statistics: the same visits without state and with it, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from ebbtide.config import Settings
from ebbtide.systems import harness

JOBS = ("browser-stats-stateless", "browser-stats-stateful")
_DAY = "2024-10-06"
_LAST = "last_event_time_in_window"


@dataclass(frozen=True)
class BrowserCount:
    """One message: how many visits a browser had in the five minutes from `window`."""

    browser: str
    window: str
    count: int
    last: str

    def __str__(self) -> str:
        return f"{self.browser:<7}  {self.window}  {self.count:>5}  {self.last}"


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
            f"Starting two processes: ebbtide run {JOBS[0]} counts the visits of each batch "
            f"alone; ebbtide run {JOBS[1]} counts across batches. Both use the same function …"
        )
        with (
            harness.Job(local, JOBS[0], "-o", "json") as first,
            harness.Job(local, JOBS[1], "-o", "json") as other,
        ):
            run = _BrowserStatsRun(local, narrator, (first, other))
            for job in JOBS:  # both find the topic empty
                run.wait_for_batch(job, 0)
            for step in STEPS:
                run.play(step)
            run.stop()
        # 3
        messages = {
            job: [json.loads(r.to_json()) for r in harness.read_topic(local, job)] for job in JOBS
        }
        for job in JOBS:
            run.require_count(job, len(messages[job]))
    # 4
    narrator.title("The difference")
    narrator.show("\n".join(_table(run.counts)))
    return {
        "steps": {
            step: {job: [json.loads(text) for text in values] for job, values in by_job.items()}
            for step, by_job in run.values.items()
        },
        "batches": run.batches,
        "messages": messages,
        "home": str(local.home),
    }


class _BrowserStatsRun(harness.DemoRun):
    """The two running jobs, and their messages so far."""

    def __init__(
        self, local: Settings, narrator: harness.Narrator, jobs: tuple[harness.Job, harness.Job]
    ) -> None:
        super().__init__(local, narrator)
        self._jobs = dict(zip(JOBS, jobs, strict=True))
        self._read = dict.fromkeys(JOBS, 0)
        self.values: dict[str, dict[str, list[str]]] = {}
        self.counts: dict[str, dict[str, tuple[BrowserCount, ...]]] = {}
        self.batches: dict[str, dict[int, int]] = {}

    def play(self, step: harness.DemoStep[Outputs]) -> None:
        """Send, wait for the batches that follow, and check their messages."""
        self.send(step)
        name = _name(step)
        self.values[name], self.counts[name] = {}, {}
        for job, expected in zip(JOBS, step.expected, strict=True):
            self._expect(name, job, expected)

    def stop(self) -> None:
        """Stop both, and keep the number of rows that each of their batches read."""
        for job, process in self._jobs.items():
            process.stop()
            self.batches[job] = {
                report["id"]: report["rows"] for report in harness.reports(process)
            }
        expected = [max(output.batches) for output in STEPS[-1].expected]
        last = [max(self.batches[job]) for job in JOBS]
        if last != expected:
            raise harness.DemoFailedError(f"The last batches should be {expected}, not {last}.")

    def require_count(self, job: str, messages: int) -> None:
        """Raise if there are messages that no step has read."""
        if messages != self._read[job]:
            raise harness.DemoFailedError(
                f"{job} wrote {messages} messages, not {self._read[job]}."
            )

    def wait_for_batch(self, job: str, batch: int) -> None:
        """Wait until a job reports a batch."""
        process = self._jobs[job]
        harness.wait_for(
            lambda: any(report["id"] >= batch for report in harness.reports(process)),
            f"batch {batch} of {job}",
            process,
        )

    def _expect(self, name: str, job: str, expected: JobOutput) -> None:
        self.wait_for_batch(job, expected.batches[-1])
        records = harness.read_topic(self.local, job)[self._read[job] :]
        self._read[job] += len(records)
        values = [(record.value or b"").decode() for record in records]
        counts = tuple(sorted(map(parse, values), key=lambda each: each.browser))
        if counts != expected.messages:
            raise harness.DemoFailedError(
                f"Step {name}: {job} should write {expected.messages}, not {counts}."
            )
        self.values[name][job], self.counts[name][job] = values, counts
        if values:
            self.narrator.show("\n".join(values))
        result = "as expected" if values else "nothing, as expected"
        self.narrator.check(f"{job}, batch {expected.batches[0]}: {result}")


def _name(step: harness.DemoStep[Outputs]) -> str:
    return step.title.removeprefix("Step ")


def parse(value: str) -> BrowserCount:
    """A message's value; raises if it has not the documented form.

    >>> window = '"window":{"start":"2024-10-06T10:00:00.000Z","end":"2024-10-06T10:05:00.000Z"}'
    >>> last = '"last_event_time_in_window":"2024-10-06T10:03:00.000Z"'
    >>> print(parse(f'{{"browser":"Firefox",{window},"count":2,{last}}}'))
    Firefox  10:00      2  10:03
    """
    row = json.loads(value)
    start, end, last = row["window"]["start"], row["window"]["end"], row[_LAST]
    minutes = [int(time[14:16]) for time in (start, end)]
    whole = all(time == f"{_DAY}T{time[11:16]}:00.000Z" for time in (start, end, last))
    if list(row) != ["browser", "window", "count", _LAST] or not whole:
        raise harness.DemoFailedError(f"This message has not the documented form: {value}")
    if (minutes[1] - minutes[0]) % 60 != 5:
        raise harness.DemoFailedError(f"This window is not five minutes long: {value}")
    return BrowserCount(row["browser"], start[11:16], row["count"], last[11:16])


def _table(counts: dict[str, dict[str, tuple[BrowserCount, ...]]]) -> Iterator[str]:
    """A line for each visit and its messages, the two jobs side by side."""
    head = f"{'browser':<7}  from   count  last "
    yield f"{'':<4}  {'':<13}  {'without state':<28}  with state"
    yield f"{'step':<4}  {'sent':<13}  {head:<28}  {head}".rstrip()
    for step in STEPS:
        name = _name(step)
        sent = [f"{str(visit['eventTime'])[11:16]} {visit['browser']}" for visit in step.events]
        without, with_state = (list(map(str, counts[name][job])) or ["nothing"] for job in JOBS)
        lines = zip_longest([name], sent, without, with_state, fillvalue="")
        for cell, visit, left, right in lines:
            yield f"{cell:<4}  {visit:<13}  {left:<28}  {right}".rstrip()
