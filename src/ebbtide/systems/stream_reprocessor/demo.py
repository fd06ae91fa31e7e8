"""Demo of the stream reprocessor: count by window, rewind the checkpoint, run the batches again."""

from __future__ import annotations

import re
import shlex

from ebbtide.config import Settings
from ebbtide.storage import Folder, open_folder
from ebbtide.systems import harness
from ebbtide.systems.console import ConsoleBatch

JOB = "visits-windows-counter"
_DAY = "2025-09-04"
_FIRST = 5
"""The batch to go back to."""
_REMOVED = [
    *("commits/5", "commits/6", "offsets/6"),
    *(f"state/0/{partition}/{version}.zip" for partition in (0, 1) for version in (6, 7)),
]
Counts = dict[str, int]
"""The number of visits by the start of their window."""


def _visits(*visits: tuple[str, int, str]) -> tuple[dict[str, object], ...]:
    return tuple(
        {"event_id": event, "visit_id": visit, "event_time": f"{_DAY}T{at}:00"}
        for event, visit, at in visits
    )


STEPS: tuple[harness.DemoStep[dict[int, Counts]], ...] = (
    harness.DemoStep(
        "Start",
        (),
        {0: {}},
        f"Starting the job as a process of its own:\n$ ebbtide run {JOB}\nIt counts visits per "
        "ten minutes of event time and keeps the counts in a RocksDB state store. It starts on an "
        "empty topic, so its first batch, number 0, reads nothing.",
    ),
    harness.DemoStep(
        "Step a",
        _visits(("click-1", 1, "07:00"), ("click-2", 1, "07:01"), ("click-3", 1, "07:02")),
        {1: {"07:00": 3}, 2: {}},
        "Three visits, all in the window that starts at 07:00. Batch 1 counts them. They move the "
        "watermark (newest event time minus 20 minutes), so Spark adds an empty batch 2 that drops "
        "old state.",
    ),
    harness.DemoStep(
        "Step b",
        _visits(("click-4", 1, "07:00"), ("click-1", 2, "07:10"), ("click-1", 2, "07:20")),
        {3: {"07:00": 4, "07:10": 1, "07:20": 1}, 4: {}},
        "One more visit at 07:00: the count continues from the state, 3 to 4. Two windows open.",
    ),
    harness.DemoStep(
        "Step c",
        _visits(("click-1", 2, "07:25"), ("click-1", 2, "07:35")),
        {5: {"07:20": 2, "07:30": 1}, 6: {}},
        "Window 07:20 goes to 2, window 07:30 opens. Update mode prints only windows that changed.",
    ),
)
_AGAIN = harness.DemoStep(
    "The job again",
    (),
    STEPS[-1].expected,
    "It starts as before and runs batches 5 and 6 again, from the restored state.",
)


def play(settings: Settings, narrator: harness.Narrator) -> dict[str, object]:
    """Play the demo.

    **1** broker; **2** the job, step by step; **3** its checkpoint; **4** the rewind: plan, then
    apply; **5** the job again.
    """
    # 1
    with harness.open_stage(
        settings, narrator, "stream-reprocessor", "Stream reprocessor"
    ) as local:
        # 2
        run = harness.ConsoleRun(local, narrator, pipeline=JOB, read=_counts)
        batches = run.play(STEPS)
        # 3
        checkpoint = open_folder(local.location("checkpoints", JOB))
        files = _show_checkpoint(run, checkpoint)
        # 4
        _rewind(run, checkpoint, files)
        # 5
        again = run.play([_AGAIN])
        narrator.check("batches 5 and 6 as the first time")
        narrator.tell(f"To undo the rewind:\n$ ebbtide undo {shlex.quote(checkpoint.url)}")
    return {
        "batches": batches,
        "checkpoint": checkpoint.url,
        "files": files,
        "gone": _REMOVED,
        "again": again,
    }


def _counts(batch: ConsoleBatch) -> Counts:
    """From rows such as `{2025-09-04 07:00:00, 2025-09-04 07:10:00}`."""
    counts = {}
    for row in batch.rows:
        start = re.match(rf"{{{_DAY} (\d\d:\d\d):00, ", row["window"])
        counts[start[1] if start else row["window"]] = int(row["count"])
    return counts


def _show_checkpoint(run: harness.DemoRun, folder: Folder) -> list[str]:
    run.begin(
        "The checkpoint after batch 6",
        "The job was asked to stop, finished its batch and ended. Its checkpoint holds, for each "
        "batch, the offsets to read (offsets/N) and the commit (commits/N); and for each partition "
        "of the state one version per batch: batch N starts from N.zip.",
    )
    files = _list_files(folder)
    run.narrator.show("\n".join([folder.url, *_tree(files)]))
    expected = ["metadata", "sources/0/0"]
    expected += [f"{log}/{n}" for log in ("offsets", "commits") for n in range(7)]
    expected += [f"state/0/{partition}/{n}.zip" for partition in (0, 1) for n in range(1, 8)]
    missing = sorted(set(expected) - set(files))
    harness.require(not missing, f"The checkpoint lacks {', '.join(missing)}.")
    run.narrator.show(folder.read("offsets", "6") or "")
    run.narrator.check("offsets 0 to 6, commits 0 to 6, state versions 1 to 7 in both partitions")
    run.narrator.tell(f"Look around yourself:\n$ ebbtide inspect {shlex.quote(folder.url)}")
    return files


def _rewind(run: harness.DemoRun, folder: Folder, files: list[str]) -> None:
    rewind = ("rewind", folder.url, "--to-batch", str(_FIRST))
    run.begin(
        f"Back to batch {_FIRST}",
        "Suppose that batch 5 went wrong. First the plan, which changes nothing:\n"
        f"$ ebbtide {shlex.join(rewind)}",
    )
    run.type_command(*rewind)
    harness.require(_list_files(folder) == files, "The plan changed the checkpoint.")
    run.narrator.tell(f"Now for real:\n$ ebbtide {shlex.join(rewind)} --execute")
    run.type_command(*rewind, "--execute", "--yes")
    removed = set(files) - set(_list_files(folder))
    # Spark 4.1 writes a checksum beside each file of state
    expected = {*_REMOVED, *({f"{name}.crc" for name in _REMOVED} & set(files))}
    harness.require(
        removed == expected, f"Expected {sorted(expected)} to be gone, not {sorted(removed)}."
    )
    run.narrator.check(
        "commits 5 and 6, offsets 6 and state versions 6 and 7 of both partitions are in the "
        "backup; offsets 5 stays, so that batch 5 reads the same records again"
    )


def _list_files(folder: Folder) -> list[str]:
    """The files that Spark wrote below a folder, without checksums and our own notes."""
    tree = folder.scan().items()
    files = (f"{directory}/{name}".lstrip("/") for directory, one in tree for name in one.names)
    return sorted(file for file in files if "/." not in f"/{file}")


def _tree(files: list[str]) -> list[str]:
    r"""The files as a tree, with all files of a folder in one line.

    >>> print("\n".join(_tree(["metadata", "offsets/0", "offsets/1", "state/0/1/2.zip"])))
    ├── metadata
    ├── offsets/  0 1
    └── state/
        └── 0/
            └── 1/  2.zip
    """
    names = [file for file in files if "/" not in file]
    folders = sorted({file.partition("/")[0] for file in files} - {*names})
    lines = []
    for name in sorted([*names, *folders]):
        last = name == max([*names, *folders])
        inside = [file.partition("/")[2] for file in files if file.startswith(f"{name}/")]
        lines.append(f"{'└' if last else '├'}── {name}{_files_of(inside)}")
        deeper = [file for file in inside if "/" in file]
        lines += [f"{' ' if last else '│'}   {line}" for line in _tree(deeper)]
    return lines


def _files_of(inside: list[str]) -> str:
    """What stands behind the name of a folder: `/  0 1 2`, or nothing behind that of a file."""
    if not inside:
        return ""
    names = sorted((file for file in inside if "/" not in file), key=lambda n: (len(n), n))
    tables = [name for name in names if name.endswith(".sst")]
    shown = [f"{len(tables)} files"] if len(tables) > 1 else names
    return f"/  {' '.join(shown)}" if names else "/"
