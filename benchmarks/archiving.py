"""Copy a topic into a Delta table by hour of event time, then read one hour of each table."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.contenders import in_python, ours, plain_spark
from benchmarks.contest import (
    Command,
    Contender,
    Contest,
    Stage,
    Turn,
    differences,
    open_stage,
    warm_result,
)
from benchmarks.environments import PEERS, python_of
from benchmarks.events import FIRST, Visits
from benchmarks.measure import ContenderError, Result
from ebbtide.archive.layout import DAY, HOUR

WORK, WARM, LOOP = "archive", "archive, warm", "delta-rs loop"
READ_HOUR = "read_hour_cpu_ms"
_BATCH = 1_000_000
_NOT_ONCE = "not exactly once: what a crash repeats is there twice"


def run(*, quick: bool) -> Iterator[str | Result]:
    """3 million records to a Delta table by hour of event time, 7 million more; reading one hour"""
    short, long, repeats = (200_000, 600_000, 1) if quick else (3_000_000, 10_000_000, 2)
    chosen = [
        ours("archive", "windows", _BATCH),
        plain_spark("archive", _BATCH, "Spark's Delta sink"),
        in_python("delta-rs", "delta_loop.py", "write", name=LOOP, note=_NOT_ONCE),
    ]
    contests, readings = [], []
    with open_stage() as stage:
        for count, times in ((short, repeats), (long, 1)):
            topic = f"visits-{count}"
            yield from stage.fill(topic, Visits(count))
            read = _Readings(stage, topic)
            contest = Contest(stage, topic, chosen, read.check, has_output=_has_version)
            contest.after = read.keep
            yield from contest.go(times)
            contests.append(contest)
            readings.append(read)
    cold, whole = contests
    for contender in chosen:
        result = cold.result(WORK, "record", short, contender)
        seconds, files = readings[0].seconds, readings[0].files
        figures = _figures(seconds.get(contender.name), files.get(contender.name))
        yield replace(result, figures=figures)
    for contender in chosen:
        yield warm_result(cold, whole, contender, WARM, "record", long - short)


def _figures(seconds: list[float] | None, files: int | None) -> dict[str, float]:
    if not seconds or files is None:
        return {}
    return {READ_HOUR: 1e3 * statistics.median(seconds), "read_hour_files": files}


class _Readings:
    """What reading one hour of each table took: the same reader for all."""

    def __init__(self, stage: Stage, topic: str) -> None:
        visits = stage.filled[topic]
        assert isinstance(visits, Visits)
        self._visits = visits
        self._last: dict[str, float] = {}
        self.seconds: dict[str, list[float]] = {}
        self.files: dict[str, int] = {}

    def check(self, turn: Turn) -> str:
        """All records, and those of the second hour."""
        hour = FIRST.replace(hour=1)
        is_ours = not (turn.folder / "table").exists()
        names = (DAY, HOUR) if is_ours else ("day", "hour")
        command: Command = [python_of("delta-rs"), PEERS / "delta_loop.py", "read", _table(turn)]
        answer = subprocess.run(
            [*command, hour.date().isoformat(), str(hour.hour), *names],
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode:
            raise ContenderError(f"the table cannot be read: {answer.stderr.splitlines()[-1]}")
        self._last = json.loads(answer.stdout)
        start = f"{hour:%Y-%m-%dT%H}"
        within = sum(n for window, n in self._visits.counts.items() if window.startswith(start))
        return differences(
            {"all": self._visits.count, "one hour": within},
            {"all": int(self._last["all"]), "one hour": int(self._last["rows"])},
        )

    def keep(self, contender: Contender, _turn: Turn) -> None:
        """The reading that the check made."""
        self.seconds.setdefault(contender.name, []).append(self._last["seconds"])
        self.files[contender.name] = int(self._last["files"])


def _table(turn: Turn) -> Path:
    """Where the peers write, and where Ebbtide's home has the archive."""
    plain = turn.folder / "table"
    return plain if plain.exists() else turn.folder / "tables" / "visits"


def _has_version(turn: Turn) -> bool:
    """Version 0 of ours is the empty table."""
    log = _table(turn) / "_delta_log"
    first = 0 if log.parent.name == "table" else 1
    return (log / f"{first:020d}.json").exists()
