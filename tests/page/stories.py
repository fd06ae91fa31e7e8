"""A story in, its checkpoint for the page out, without a JVM: long, hostile, or one batch more."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from pathlib import Path

from ebbtide.history import Entry, Output
from ebbtide.history.store import FOLDED, HISTORY, write_entry
from ebbtide.storage import open_folder
from ebbtide.times import in_utc
from tests.trees import Shape, make

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
NOW = datetime.now(timezone.utc).replace(second=0, microsecond=0)
BROKEN = 400
"""So many records of the batch that went wrong."""
PACE = timedelta(seconds=30)
_LATE = timedelta(minutes=4)
_WATERMARK = timedelta(minutes=10)


@dataclass(frozen=True)
class Story:
    """What a stream went through: busy and quiet hours, and one batch that went wrong."""

    batches: int = 120
    logged: int = 100
    """The last of them are in the logs, with their state."""
    wrong: int | None = None
    topic: str = "visits"
    operator: str = "stateStoreSave"
    pipeline: str = "visits-counter"
    ends: datetime = NOW
    idle: timedelta = timedelta(0)
    """So long nothing came before the last third of the batches."""

    @property
    def first(self) -> int:
        """The oldest batch in the logs."""
        return max(0, self.batches - self.logged)

    def at(self, batch: int) -> datetime:
        """When a batch began."""
        idle = self.idle if batch < self.batches * 2 // 3 else timedelta(0)
        return self.ends + PACE * (batch - self.batches) - idle

    def rows(self) -> list[int]:
        """How many records each batch read, and the one after them."""
        rng = random.Random(8)
        day = timedelta(days=1) / PACE
        wave = (600 + 400 * math.sin(2 * math.pi * n / day) for n in range(self.batches + 1))
        return [int(each * rng.uniform(0.8, 1.2)) for each in wave]

    def entries(self) -> Iterator[Entry]:
        """What each batch did, and then the one after them."""
        rng = random.Random(9)
        rows = self.rows()
        for n, (read, end) in enumerate(zip(rows, accumulate(rows), strict=True)):
            took = timedelta(milliseconds=900 + 2 * read + rng.randrange(300))
            times = (self.at(n) - _LATE, self.at(n) - timedelta(seconds=2))
            held = 4_000 + int(2_000 * math.sin(n / 300))
            yield Entry(
                batch=n,
                timeline="origin",
                started=in_utc(self.at(n)),
                ended=in_utc(self.at(n) + took),
                sources=(self.offsets(end),),
                rows=read,
                broken=self._broken(n),
                lag=max(0, int(read * 1.5 - 900)) + rng.randrange(20),
                event_times=(in_utc(times[0]), in_utc(times[1])),
                watermark=in_utc(self.at(n) - _WATERMARK),
                durations={"addBatch": 800 + 2 * read, "triggerExecution": took // _MS},
                state=(self._state(held, read),),
                output=Output(read // 3, f"{n * 7_919:016x}"),
                versions={"spark": "4.2.0"},
                code="5f2c",
            )

    def _broken(self, batch: int) -> int:
        """Many in the batch that went wrong, fewer in the five after it, then it is mended."""
        if self.wrong is None or not self.wrong <= batch < self.wrong + 6:
            return 0
        return BROKEN if batch == self.wrong else BROKEN // 2

    def _state(self, held: int, read: int) -> dict[str, int | str]:
        return {
            "operator": self.operator,
            "rows": held,
            "updated": read // 3,
            "removed": 40,
            "dropped": 0,
            "bytes": held * 210,
        }

    def offsets(self, end: int) -> str:
        """Where a batch stops reading, as the log has it."""
        return json.dumps({self.topic: {"0": end // 2, "1": end - end // 2}})


_MS = timedelta(milliseconds=1)


def tell(folder: Path, story: Story) -> Path:
    """Write the checkpoint of a story, all but its last entry."""
    shape = Shape(
        "changelog",
        batches=story.batches - story.first,
        first=story.first,
        hadoop_checksums=False,
        operator_metadata="v1",
    )
    make(folder, shape)
    told = list(story.entries())[:-1]
    for entry in told[story.first :]:
        _write_log(folder, story, entry)
    if story.operator != "stateStoreSave":
        metadata = folder / "state" / "0" / "_metadata" / "metadata"
        metadata.write_text(metadata.read_text().replace("stateStoreSave", story.operator))
    _write_history(folder, told)
    note = {
        "pipeline": story.pipeline,
        "event_time": "event_time",
        "source": {"kind": "kafka", "path": story.topic, "topic_ids": []},
        "sink": {"kind": "console", "name": "the console", "path": ""},
        "location": str(folder.resolve()),
    }
    (folder / ".ebbtide" / "pipeline.json").write_text(json.dumps(note))
    grow_old(folder)
    return folder


def grow_old(folder: Path) -> None:
    """Let the last write lie far back, so that nobody takes the query for running."""
    for path in folder.rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))


def run_another(folder: Path, story: Story) -> int:
    """One more batch on disk, as the runner leaves it; returns its number."""
    (*_, entry) = story.entries()
    _write_log(folder, story, entry)
    (folder / "commits" / str(entry.batch)).write_text('v1\n{"nextBatchWatermarkMs":5}')
    for partition in (0, 1):
        there = folder / "state" / "0" / str(partition)
        known = (there / f"{entry.batch}.changelog").read_bytes()
        (there / f"{entry.batch + 1}.changelog").write_bytes(known)
    write_entry(open_folder(str(folder)), entry)
    return entry.batch


def _write_log(folder: Path, story: Story, entry: Entry) -> None:
    at = story.at(entry.batch)
    meta = {
        "batchWatermarkMs": _milliseconds(at - _WATERMARK),
        "batchTimestampMs": _milliseconds(at),
        "conf": {"spark.sql.shuffle.partitions": "2"},
    }
    text = f"v1\n{json.dumps(meta)}\n{entry.sources[0]}"
    (folder / "offsets" / str(entry.batch)).write_text(text)


def _write_history(folder: Path, entries: list[Entry]) -> None:
    """Whole segments as the runner folds them, and the rest one by one."""
    place = folder / HISTORY
    place.mkdir(parents=True)
    for first in range(0, len(entries), FOLDED):
        part = entries[first : first + FOLDED]
        if len(part) == FOLDED:
            name = f"{first:012d}-{first + FOLDED - 1:012d}.jsonl"
            (place / name).write_text("".join(f"{entry.to_json()}\n" for entry in part))
        else:
            for number, entry in enumerate(part, start=first):
                (place / f"{number:012d}.jsonl").write_text(f"{entry.to_json()}\n")


def _milliseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // _MS
