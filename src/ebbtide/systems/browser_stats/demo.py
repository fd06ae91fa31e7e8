"""The browser statistics' walk: the same visits without state and with it, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from ebbtide.config import Settings
from ebbtide.systems.harness import (
    DemoFailedError,
    Job,
    Narrator,
    read_topic,
    reports,
    send,
    stage,
    wait_for,
)

JOBS = ("browser-stats-stateless", "browser-stats-stateful")
_DAY = "2024-10-06"
_LAST = "last_event_time_in_window"


@dataclass(frozen=True)
class Said:
    """One message: how many visits a browser had in the five minutes from `window`."""

    browser: str
    window: str
    count: int
    last: str

    def __str__(self) -> str:
        return f"{self.browser:<7}  {self.window}  {self.count:>5}  {self.last}"


@dataclass(frozen=True)
class Due:
    """What a job must say, and its batches until then; the last one may be empty."""

    batches: tuple[int, ...]
    messages: tuple[Said, ...] = ()


@dataclass(frozen=True)
class Step:
    """What is sent, and what the job without state and the one with it must make of it."""

    name: str
    visits: tuple[tuple[str, str], ...]
    stateless: Due
    stateful: Due
    tells: str


_EACH = (
    Said("Chrome", "10:00", 1, "10:01"),
    Said("Firefox", "10:00", 1, "10:00"),
    Said("Safari", "10:00", 1, "10:02"),
)

STEPS = (
    Step(
        "a",
        (("10:00", "Firefox"), ("10:01", "Chrome"), ("10:02", "Safari")),
        Due((1,), _EACH),
        Due((1, 2), _EACH),
        "One visit with each of three browsers. Both jobs say the same. With state there is a "
        "watermark, newest event time less 20 minutes, now 09:42; an empty batch takes note of it.",
    ),
    Step(
        "b",
        (("10:00", "Firefox"), ("10:03", "Firefox")),
        Due((2,), (Said("Firefox", "10:00", 2, "10:03"),)),
        Due((3, 4), (Said("Firefox", "10:00", 3, "10:03"),)),
        "Two more in the same window. Without state they are all there is; with it they are the "
        "second and the third.",
    ),
    Step(
        "c",
        (("09:40", "Firefox"),),
        Due((3,), (Said("Firefox", "09:40", 1, "09:40"),)),
        Due((5,), (Said("Firefox", "09:40", 1, "09:40"),)),
        "A late one. Its window ends at 09:45 and the watermark is 09:43: still open.",
    ),
    Step(
        "d",
        (("09:30", "Firefox"),),
        Due((4,), (Said("Firefox", "09:30", 1, "09:30"),)),
        Due((6,)),
        "A later one still. Its window ended at 09:35, before the watermark: with state it is "
        "left out. Without state there is no such thing as late.",
    ),
    Step(
        "e",
        (("10:30", "Firefox"),),
        Due((5,), (Said("Firefox", "10:30", 1, "10:30"),)),
        Due((7, 8), (Said("Firefox", "10:30", 1, "10:30"),)),
        "Half an hour on. The watermark moves to 10:10, and the state of all windows that ended "
        "by then is dropped.",
    ),
    Step(
        "f",
        (("10:00", "Firefox"),),
        Due((6,), (Said("Firefox", "10:00", 1, "10:00"),)),
        Due((9,)),
        "The first visit once more. Without state it counts 1, as if nothing had been before; with "
        "state its window is gone, and nothing is said.",
    ),
)


def play(settings: Settings, narrator: Narrator) -> dict[str, object]:
    """Play the walk.

    **1** broker; **2** both jobs, side by side, step by step; **3** once they have stopped, all
    that they said; **4** the difference.
    """
    # 1
    narrator.title("Browser statistics")
    narrator.tell("Starting a Kafka broker (KRaft, one node) of this demo's own …")
    with stage(settings, "browser-stats") as local:
        narrator.check(f"Kafka answers at {local.bootstrap_servers}")
        # 2
        narrator.tell(
            f"Starting two processes: ebbtide run {JOBS[0]} counts the visits of each batch by "
            f"itself; ebbtide run {JOBS[1]} goes on counting. Both use the same function …"
        )
        with Job(local, JOBS[0], "-o", "json") as first, Job(local, JOBS[1], "-o", "json") as other:
            walk = _Walk(local, (first, other), narrator)
            walk.begin()
            for step in STEPS:
                walk.play(step)
            walk.stop()
        # 3
        messages = {job: [json.loads(r.to_json()) for r in read_topic(local, job)] for job in JOBS}
        for job in JOBS:
            walk.require(job, messages=len(messages[job]))
    # 4
    narrator.title("The difference")
    narrator.show("\n".join(_table(walk.said)))
    return {
        "steps": {
            step: {job: [json.loads(text) for text in values] for job, values in said.items()}
            for step, said in walk.values.items()
        },
        "batches": walk.batches,
        "messages": messages,
        "home": str(local.home),
    }


class _Walk:
    """The two running jobs, and what they have said so far."""

    def __init__(self, local: Settings, jobs: tuple[Job, Job], narrator: Narrator) -> None:
        self._local, self._narrator = local, narrator
        self._jobs = dict(zip(JOBS, jobs, strict=True))
        self._count = dict.fromkeys(JOBS, 0)
        self.values: dict[str, dict[str, list[str]]] = {}
        self.said: dict[str, dict[str, tuple[Said, ...]]] = {}
        self.batches: dict[str, dict[int, int]] = {}

    def begin(self) -> None:
        """Both find the topic empty, in batch 0."""
        for job in JOBS:
            self._wait_for_batch(job, 0)

    def play(self, step: Step) -> None:
        """Send, wait for the batches that are due, and hold what they said against what is due."""
        self._narrator.title(f"Step {step.name}")
        self._narrator.tell(step.tells)
        visits = [
            {"userId": 1, "page": "index.html", "eventTime": f"{_DAY}T{at}:00Z", "browser": browser}
            for at, browser in step.visits
        ]
        self._narrator.show(send(self._local, "visits", visits))
        self.values[step.name], self.said[step.name] = {}, {}
        for job, due in zip(JOBS, (step.stateless, step.stateful), strict=True):
            self._expect(step, job, due)

    def stop(self) -> None:
        """Stop both, and keep what each of their batches read."""
        for job, process in self._jobs.items():
            process.stop()
            self.batches[job] = {report["id"]: report["rows"] for report in reports(process)}
        due = [max(step.batches) for step in (STEPS[-1].stateless, STEPS[-1].stateful)]
        last = [max(self.batches[job]) for job in JOBS]
        if last != due:
            raise DemoFailedError(f"The last batches should be {due}, they are {last}.")

    def require(self, job: str, messages: int) -> None:
        """Refuse messages that came when nobody looked."""
        if messages != self._count[job]:
            raise DemoFailedError(f"{job} said {messages} things, not {self._count[job]}.")

    def _expect(self, step: Step, job: str, due: Due) -> None:
        self._wait_for_batch(job, due.batches[-1])
        records = read_topic(self._local, job)[self._count[job] :]
        self._count[job] += len(records)
        values = [(record.value or b"").decode() for record in records]
        said = tuple(sorted(map(parse, values), key=lambda each: each.browser))
        if said != due.messages:
            raise DemoFailedError(f"Step {step.name}: {job} should say {due.messages}, not {said}.")
        self.values[step.name][job], self.said[step.name][job] = values, said
        what = f"{job}, batch {due.batches[0]}"
        if values:
            self._narrator.show("\n".join(values))
        self._narrator.check(f"{what}: {'as expected' if values else 'nothing, as expected'}")

    def _wait_for_batch(self, job: str, batch: int) -> None:
        process = self._jobs[job]
        wait_for(
            lambda: any(report["id"] >= batch for report in reports(process)),
            f"batch {batch} of {job}",
            process,
        )


def parse(value: str) -> Said:
    """A message's value in few words; refused if it is not of the form that was promised.

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
        raise DemoFailedError(f"This is not what was promised: {value}")
    if (minutes[1] - minutes[0]) % 60 != 5:
        raise DemoFailedError(f"This window is not of five minutes: {value}")
    return Said(row["browser"], start[11:16], row["count"], last[11:16])


def _table(said: dict[str, dict[str, tuple[Said, ...]]]) -> Iterator[str]:
    """A line for each visit sent and what was said of it, the two jobs beside each other."""
    head = f"{'browser':<7}  from   count  last "
    yield f"{'':<4}  {'':<13}  {'without state':<28}  with state"
    yield f"{'step':<4}  {'sent':<13}  {head:<28}  {head}".rstrip()
    for step in STEPS:
        sent = [" ".join(visit) for visit in step.visits]
        without, with_state = (list(map(str, said[step.name][job])) or ["nothing"] for job in JOBS)
        lines = zip_longest([step.name], sent, without, with_state, fillvalue="")
        for name, visit, left, right in lines:
            yield f"{name:<4}  {visit:<13}  {left:<28}  {right}".rstrip()
