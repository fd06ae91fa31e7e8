"""The stream reprocessor's walk: a windowed count, its checkpoint rewound, the batches again."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ebbtide.config import Settings
from ebbtide.systems.console import ConsoleBatch
from ebbtide.systems.harness import (
    DemoFailedError,
    Job,
    Narrator,
    require_batches,
    run_again,
    send,
    stage,
    tree,
    type_command,
)

JOB = "visits-windows-counter"
_DAY = "2025-09-04"
_FIRST = 5
"""The batch to go back to."""
_GONE = (
    *("commits/5", "commits/6", "offsets/6"),
    *(f"state/0/{partition}/{version}.zip" for partition in (0, 1) for version in (6, 7)),
)


@dataclass(frozen=True)
class Step:
    """What is sent, and the batches that must follow: for each, the count by window start."""

    name: str
    events: tuple[tuple[str, int, str], ...]
    batches: dict[int, dict[str, int]]
    tells: str


STEPS = (
    Step(
        "start",
        (),
        {0: {}},
        "The job starts on the empty topic. Its first batch, number 0, finds nothing.",
    ),
    Step(
        "a",
        (("click-1", 1, "07:00"), ("click-2", 1, "07:01"), ("click-3", 1, "07:02")),
        {1: {"07:00": 3}, 2: {}},
        "Three visits, all in the window from 07:00. Batch 1 counts them. They move the watermark "
        "(newest event time less 20 minutes), so Spark adds an empty batch 2 to let old state go.",
    ),
    Step(
        "b",
        (("click-4", 1, "07:00"), ("click-1", 2, "07:10"), ("click-1", 2, "07:20")),
        {3: {"07:00": 4, "07:10": 1, "07:20": 1}, 4: {}},
        "One more visit at 07:00: the count goes on from the state, 3 to 4. Two windows open.",
    ),
    Step(
        "c",
        (("click-1", 2, "07:25"), ("click-1", 2, "07:35")),
        {5: {"07:20": 2, "07:30": 1}, 6: {}},
        "Window 07:20 goes to 2, window 07:30 opens. Update mode shows only changed windows.",
    ),
)


def play(settings: Settings, narrator: Narrator) -> dict[str, object]:
    """Play the walk.

    **1** broker; **2** the job, step by step; **3** its checkpoint; **4** the rewind: plan, then
    apply; **5** the job again.
    """
    # 1
    narrator.title("Stream reprocessor")
    narrator.tell("Starting a Kafka broker (KRaft, one node) of this demo's own …")
    with stage(settings, "stream-reprocessor") as local:
        narrator.check(f"Kafka answers at {local.bootstrap_servers}")
        # 2
        narrator.tell(
            f"Starting the job as its own process: ebbtide run {JOB}. It counts visits per ten "
            "minutes of event time and keeps the counts in a RocksDB state store …"
        )
        with Job(local, JOB) as job:
            for step in STEPS:
                _play_step(local, job, step, narrator)
            seen = job.settle()
            require_batches([batch for step in STEPS for batch in step.batches], seen)
            job.stop()
        # 3
        files = _show_checkpoint(local, narrator)
        # 4
        _rewind(local, files, narrator)
        # 5
        again = _run_again(local, narrator)
    return {
        "batches": {batch.id: _counts(batch.rows) for batch in seen},
        "checkpoint": str(local.checkpoint(JOB)),
        "files": files,
        "gone": list(_GONE),
        "again": {batch.id: _counts(batch.rows) for batch in again},
    }


def _rewind(settings: Settings, files: list[str], narrator: Narrator) -> None:
    folder = settings.checkpoint(JOB)
    narrator.title(f"Back to batch {_FIRST}")
    narrator.tell(
        "Suppose that batch 5 went wrong. The plan first; it changes nothing: "
        f"ebbtide rewind {folder} --to-batch {_FIRST}"
    )
    target = ("rewind", str(folder), "--to-batch", str(_FIRST))
    narrator.show(type_command(settings, *target))
    if tree(folder) != files:
        raise DemoFailedError("The plan changed the checkpoint.")
    narrator.tell("Now for real, with --execute:")
    narrator.show(type_command(settings, *target, "--execute", "--yes"))
    gone = sorted(set(files) - set(tree(folder)))
    if gone != sorted(_GONE):
        raise DemoFailedError(f"{', '.join(sorted(_GONE))} should be gone; {', '.join(gone)} are.")
    narrator.check(
        "commits 5 and 6, offsets 6 and state versions 6 and 7 of both partitions are in the "
        "backup; offsets 5 stays, so that batch 5 reads the same records again"
    )


def _run_again(settings: Settings, narrator: Narrator) -> list[ConsoleBatch]:
    narrator.title("The job again")
    narrator.tell("It is started as before. It runs batch 5 again, then 6, from the state of then.")
    last = STEPS[-1].batches
    again = run_again(settings, JOB, list(last))
    for batch in again:
        narrator.show(batch.text)
        _require_counts(batch, last[batch.id])
    narrator.check("batch 5 and 6 as the first time")
    narrator.tell(f"To go back to before the rewind: ebbtide undo {settings.checkpoint(JOB)}")
    return again


def _play_step(settings: Settings, job: Job, step: Step, narrator: Narrator) -> None:
    narrator.title(f"Step {step.name}")
    narrator.tell(step.tells)
    if step.events:
        events = [
            {"event_id": event, "visit_id": visit, "event_time": f"{_DAY}T{time}:00"}
            for event, visit, time in step.events
        ]
        narrator.show(send(settings, "visits", events))
    last = max(step.batches)
    for batch in job.wait_for_batch(last):
        if batch.id not in step.batches:
            continue
        narrator.show(batch.text)
        _require_counts(batch, step.batches[batch.id])
    ids = " and ".join(map(str, step.batches))
    narrator.check(f"batch {ids} as expected")


def _require_counts(batch: ConsoleBatch, expected: dict[str, int]) -> None:
    if (found := _counts(batch.rows)) != expected:
        raise DemoFailedError(f"Batch {batch.id} should count {expected}, it counts {found}.")


def _counts(rows: tuple[dict[str, str], ...]) -> dict[str, int]:
    """Count by window start, from rows such as `{2025-09-04 07:00:00, 2025-09-04 07:10:00}`."""
    found = {}
    for row in rows:
        start = re.match(rf"{{{_DAY} (\d\d:\d\d):00, ", row["window"])
        found[start[1] if start else row["window"]] = int(row["count"])
    return found


def _show_checkpoint(settings: Settings, narrator: Narrator) -> list[str]:
    folder = settings.checkpoint(JOB)
    files = tree(folder)
    narrator.title("The checkpoint after batch 6")
    narrator.tell(
        "The job was asked to stop, finished its batch and ended. This is what it leaves: for each "
        "batch the offsets it was to read (offsets/N) and that it is done (commits/N); for each "
        "partition of the state a version after each batch: N.zip is what batch N starts from."
    )
    narrator.show("\n".join(_fold(files)))
    wanted = ["metadata", "sources/0/0"]
    wanted += [f"{log}/{n}" for log in ("offsets", "commits") for n in range(7)]
    wanted += [f"state/0/{part}/{n}.zip" for part in (0, 1) for n in range(1, 8)]
    if missing := sorted(set(wanted) - set(files)):
        raise DemoFailedError(f"The checkpoint lacks {', '.join(missing)}.")
    narrator.show((folder / "offsets" / "6").read_text("utf-8"))
    narrator.check("offsets 0 to 6, commits 0 to 6, state versions 1 to 7 in both partitions")
    narrator.tell(f"Look around yourself: ebbtide inspect {folder}")
    return files


def _fold(files: list[str]) -> list[str]:
    """One line a folder: `offsets/  0 1 2`."""
    folders: dict[str, list[str]] = {}
    for file in files:
        folder, _, name = file.rpartition("/")
        folders.setdefault(folder, []).append(name)

    def number(name: str) -> tuple[int, str]:
        head = name.split(".")[0]
        return (int(head) if head.isdigit() else 10**9, name)

    lines = []
    for folder, names in sorted(folders.items()):
        shown = (
            f"{len(names)} files"
            if folder.endswith("SSTs")
            else " ".join(sorted(names, key=number))
        )
        lines.append(f"{folder + '/' if folder else '.':<24} {shown}")
    return lines
