"""Demo of the early writer: visits reported before they end, and again after a rewind."""

from __future__ import annotations

import shlex

from ebbtide.config import Settings
from ebbtide.connectors.kafka import create_missing_topics
from ebbtide.systems import harness
from ebbtide.systems.console import ConsoleBatch

JOB = "visits-early-writer"
_FIRST = 9
"""The batch to go back to."""
Reports = list[tuple[int, int, bool]]
"""Visit, number of pages, and whether it has ended."""


def _step(
    event: tuple[str, int, str], batches: dict[int, Reports], text: str
) -> harness.DemoStep[dict[int, Reports]]:
    sent: dict[str, object] = dict(zip(("event_id", "visit_id", "event_time"), event, strict=True))
    return harness.DemoStep(f"{event[0]} of visit {event[1]}", (sent,), batches, text)


STEPS = (
    _step(
        ("click-1", 1, "2025-09-04T07:00:00"),
        {0: [(1, 1, False)], 1: []},
        "The first event is there before the job starts. Then the job starts as a process of its "
        f"own:\n$ ebbtide run {JOB}\nIt counts the pages of each visit and reports them without "
        "waiting for the visit to end. Batch 0 reports the visit although it has not ended, and "
        "sets its timer to ten minutes after the event. The event moves the watermark (newest "
        "event time minus 15 minutes), so an empty batch 1 follows.",
    ),
    _step(
        ("click-2", 1, "2025-09-04T07:01:00"),
        {2: [(1, 2, False)], 3: []},
        "One more page. The timer is set again, from now on to ten minutes after the watermark.",
    ),
    _step(("click-3", 1, "2025-09-04T07:02:00"), {4: [(1, 3, False)], 5: []}, "And one more."),
    _step(
        ("click-4", 1, "2025-09-04T07:00:00"),
        {6: [(1, 4, False)]},
        "An event that is out of order, but newer than the watermark: it counts. It does not move "
        "the watermark, so no empty batch follows.",
    ),
    _step(
        ("click-1", 2, "2025-09-04T07:10:00"),
        {7: [(2, 1, False)], 8: []},
        "Another visit. The watermark is now 06:55 and the timer of visit 1 is set to 06:57: the "
        "visit is still open.",
    ),
    _step(
        ("stop", 1, "2026-12-29T07:49:15.189575"),
        {9: [(1, 5, False)], 10: [(1, 5, True), (2, 1, True)]},
        "An event far in the future. It counts as a page of visit 1; then the watermark jumps past "
        "every timer, and batch 10 ends both visits and clears their state.",
    ),
)
_AGAIN = harness.DemoStep(
    "The job again", (), STEPS[-1].expected, "It starts with the restored pages and timers."
)


def play(settings: Settings, narrator: harness.Narrator) -> dict[str, object]:
    """Play the demo.

    **1** broker and topic; **2** the job, event by event; **3** back to before the last event, with
    both visits open; **4** the job again.
    """
    # 1
    with harness.open_stage(settings, narrator, "early-writer", "Early writer") as local:
        create_missing_topics(local.kafka, ["visits"])
        # 2
        run = harness.ConsoleRun(local, narrator, pipeline=JOB, read=_reports)
        batches = run.play(STEPS)
        # 3
        checkpoint = local.location("checkpoints", JOB)
        rewind = ("rewind", checkpoint, "--to-batch", str(_FIRST), "--execute")
        run.begin(
            "Back to before the last event",
            "Suppose that batch 9 went wrong. Back to when both visits were open:\n"
            f"$ ebbtide {shlex.join(rewind)}",
        )
        run.type_command(*rewind, "--yes")
        # 4
        again = run.play([_AGAIN])
        narrator.check("batches 9 and 10 as the first time: state and timers are restored")
    return {"batches": batches, "again": again, "checkpoint": checkpoint}


def _reports(batch: ConsoleBatch) -> Reports:
    return sorted(
        (int(row["visit_id"]), int(row["visited_pages"]), row["is_finished"] == "true")
        for row in batch.rows
    )
