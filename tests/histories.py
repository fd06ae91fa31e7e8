"""Histories as a stream leaves them, of any length: a wave of visits, and an incident in it."""

from __future__ import annotations

import json
import math
import random
from datetime import datetime, timedelta, timezone

from ebbtide.history import Entry, Output
from ebbtide.times import in_utc

START = datetime(2026, 1, 5, 6, 0, tzinfo=timezone.utc)
EVERY = timedelta(seconds=20)
_LIMIT = 9_000
"""At most so many records a batch."""


def believable(batches: int, *, seed: int = 7, pause_at: int | None = None) -> list[Entry]:
    """A windowed count every 20 seconds; past half-way its input triples, and some is broken.

    Its offsets are those of `tests.trees`. It paused for three hours before batch `pause_at`.
    """
    rng = random.Random(seed)
    found, behind, state = [], 0, 0
    at = START
    for batch in range(batches):
        at += timedelta(hours=3) if pause_at == batch else timedelta()
        share = batch / batches
        incident = 0.55 < share < 0.65
        wave = 4_000 + 2_500 * math.sin(share * 2 * math.pi * max(1, batches / 900))
        arrived = int(wave * rng.uniform(0.85, 1.15) * (3 if incident else 1))
        rows = min(_LIMIT, behind + arrived)
        behind += arrived - rows
        state = int(0.9 * state + 0.02 * rows)
        late = timedelta(seconds=behind / 300)
        milliseconds = int(700 + rows * 0.12 + rng.expovariate(1 / 250))
        latest = at - late - timedelta(seconds=rng.uniform(0, 4))
        spread = timedelta(minutes=rng.uniform(1, 4) * (3 if rng.random() < 0.04 else 1))
        found.append(
            Entry(
                batch,
                "origin",
                in_utc(at),
                in_utc(at + timedelta(milliseconds=milliseconds)),
                (json.dumps({"visits": {"0": batch, "1": 2 * batch}}),),
                rows,
                broken=rng.randrange(5, 200) if incident and rng.random() < 0.7 else 0,
                event_times=(in_utc(latest - EVERY - spread), in_utc(latest)),
                watermark=in_utc(latest - timedelta(minutes=10)) if batch else None,
                lag=behind,
                durations={
                    "addBatch": milliseconds - 300,
                    "queryPlanning": 80,
                    "triggerExecution": milliseconds,
                },
                state=(
                    {
                        "operator": "stateStoreSave",
                        "rows": state,
                        "updated": rows // 50,
                        "removed": state // 10,
                        "dropped": rng.randrange(20) if incident else 0,
                        "bytes": 150_000 + 220 * state,
                    },
                ),
                output=Output(rows // 50, f"{batch:016x}"),
                versions={"ebbtide": "0.1.0", "python": "3.11.7", "spark": "4.2.0"},
            )
        )
        at += max(EVERY, timedelta(milliseconds=milliseconds))
    return found
