"""System 5: a broker, the early writer and scenario events in, every report of every visit out."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.config import Settings
from ebbtide.connectors.kafka import create_missing_topics
from ebbtide.systems.console import ConsoleBatch
from ebbtide.systems.harness import (
    DemoFailedError,
    Job,
    Narrator,
    require_batches,
    run_again,
    send,
    stage,
    type_command,
)

JOB = "visits-early-writer"
_DAY = "2025-09-04"
_FIRST = 9
"""The batch to go back to."""
Report = tuple[int, int, bool]


@dataclass(frozen=True)
class Step:
    """An event, and the batches that must follow: for each, visit, pages, and whether it ended."""

    event: str
    visit: int
    time: str
    batches: dict[int, set[Report]]
    tells: str


STEPS = (
    Step(
        "click-1",
        1,
        f"{_DAY}T07:00:00",
        {0: {(1, 1, False)}, 1: set()},
        "The first event is there before the job. Batch 0 reports the visit although it has not "
        "ended, and sets its timer: ten minutes after the event. The event moves the watermark "
        "(newest event time less 15 minutes), so an empty batch 1 follows.",
    ),
    Step(
        "click-2",
        1,
        f"{_DAY}T07:01:00",
        {2: {(1, 2, False)}, 3: set()},
        "One page more. The timer is renewed: from now on ten minutes after the watermark.",
    ),
    Step("click-3", 1, f"{_DAY}T07:02:00", {4: {(1, 3, False)}, 5: set()}, "And one more."),
    Step(
        "click-4",
        1,
        f"{_DAY}T07:00:00",
        {6: {(1, 4, False)}},
        "An event that is out of order, but newer than the watermark: it counts. It does not move "
        "the watermark, so no empty batch follows.",
    ),
    Step(
        "click-1",
        2,
        f"{_DAY}T07:10:00",
        {7: {(2, 1, False)}, 8: set()},
        "Another visit. The watermark is now at 06:55 and the timer of visit 1 at 06:57: it is "
        "still open.",
    ),
    Step(
        "stop",
        1,
        "2026-12-29T07:49:15.189575",
        {9: {(1, 5, False)}, 10: {(1, 5, True), (2, 1, True)}},
        "An event far in the future. It counts as a page of visit 1; then the watermark jumps past "
        "every timer, and batch 10 ends both visits and clears their state.",
    ),
)


def play(settings: Settings, narrator: Narrator) -> dict[str, object]:
    """Play the walk.

    **1** broker, topic, the first event; **2** the job, event by event; **3** back to before the
    last event, with both visits open; **4** the job again.
    """
    # 1
    narrator.title("Early writer")
    narrator.tell("Starting a Kafka broker (KRaft, one node) of this demo's own …")
    with stage(settings, "early-writer") as local:
        narrator.check(f"Kafka answers at {local.bootstrap_servers}")
        create_missing_topics(local.kafka, ["visits"])
        first, *rest = STEPS
        _send(local, first, narrator)
        # 2
        narrator.tell(
            f"Starting the job as its own process: ebbtide run {JOB}. It counts the pages of each "
            "visit and does not wait for the visit's end to say so …"
        )
        with Job(local, JOB) as job:
            _check(job, first, narrator)
            for step in rest:
                _send(local, step, narrator)
                _check(job, step, narrator)
            seen = job.settle()
            require_batches([id_ for step in STEPS for id_ in step.batches], seen)
            job.stop()
        # 3
        _rewind(local, narrator)
        # 4
        again = _run_again(local, narrator)
    return {
        "batches": {batch.id: _reports(batch) for batch in seen},
        "again": {batch.id: _reports(batch) for batch in again},
        "checkpoint": str(local.checkpoint(JOB)),
    }


def _send(settings: Settings, step: Step, narrator: Narrator) -> None:
    narrator.title(f"{step.event} of visit {step.visit}")
    narrator.tell(step.tells)
    event = {"event_id": step.event, "visit_id": step.visit, "event_time": step.time}
    narrator.show(send(settings, "visits", [event]))


def _check(job: Job, step: Step, narrator: Narrator) -> None:
    for batch in job.wait_for_batch(max(step.batches)):
        if batch.id in step.batches:
            _require_reports(batch, step.batches[batch.id])
            narrator.show(batch.text)
    narrator.check(f"batch {' and '.join(map(str, step.batches))} as expected")


def _rewind(settings: Settings, narrator: Narrator) -> None:
    folder = settings.checkpoint(JOB)
    narrator.title("Back to before the last event")
    narrator.tell(
        "Suppose that batch 9 went wrong. Back to when both visits were open: "
        f"ebbtide rewind {folder} --to-batch {_FIRST} --execute"
    )
    target = ("rewind", str(folder), "--to-batch", str(_FIRST), "--execute", "--yes")
    narrator.show(type_command(settings, *target))


def _run_again(settings: Settings, narrator: Narrator) -> list[ConsoleBatch]:
    narrator.tell("The job again: pages so far and timers are those of then.")
    last = STEPS[-1].batches
    again = run_again(settings, JOB, list(last))
    for batch in again:
        _require_reports(batch, last[batch.id])
        narrator.show(batch.text)
    narrator.check("batch 9 and 10 as the first time: state and timers came back")
    return again


def _require_reports(batch: ConsoleBatch, expected: set[Report]) -> None:
    found = _reports(batch)
    if found != sorted(expected):
        raise DemoFailedError(
            f"Batch {batch.id} should report {sorted(expected)}, it reports {found}."
        )


def _reports(batch: ConsoleBatch) -> list[Report]:
    return sorted(
        (int(row["visit_id"]), int(row["visited_pages"]), row["is_finished"] == "true")
        for row in batch.rows
    )
