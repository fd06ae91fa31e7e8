"""What Ebbtide must reach against its peers, as ratios of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.archiving import LOOP, READ_HOUR
from benchmarks.archiving import WARM as ARCHIVE_WARM
from benchmarks.archiving import WORK as ARCHIVE
from benchmarks.contenders import OURS, PLAIN_SPARK
from benchmarks.measure import Ratio, Result
from benchmarks.visit_reports import TRANSFORM_WITH_STATE
from benchmarks.visit_reports import WARM as EARLY_WRITER_WARM
from benchmarks.visit_reports import WORK as EARLY_WRITER
from benchmarks.windowed_count import COLD, WARM

Results = Mapping[tuple[str, str], Result]
"""By work and contender."""
_DELTA_SINK = "Spark's Delta sink"
_ARCHIVE_BEFORE_US = 42.0
_EARLY_WRITER_BEFORE_US = 165.0


@dataclass(frozen=True)
class Goal:
    """How a ratio follows from results, and its limit."""

    work: str
    text: str
    limit: float
    ratio: Callable[[Results], float | None]
    at_least: bool = False

    def judge(self, results: Results) -> Ratio:
        """What was found, and whether that is enough."""
        return Ratio(self.work, self.text, self.limit, self.ratio(results), self.at_least)


def cpu_against(work: str, peer: str) -> Callable[[Results], float | None]:
    """CPU time per unit: ours as a ratio to a peer's."""
    return _of(work, peer, lambda ours, theirs: ours.cpu_us / theirs.cpu_us)


def speed_against(work: str, peer: str) -> Callable[[Results], float | None]:
    """Units per second of wall time: ours as a ratio to a peer's."""
    return _of(work, peer, lambda ours, theirs: ours.per_second / theirs.per_second)


def figure_against(work: str, peer: str, name: str) -> Callable[[Results], float | None]:
    """One of the other figures: ours as a ratio to a peer's."""
    return _of(work, peer, lambda ours, theirs: ours.figures[name] / theirs.figures[name])


def cpu_before(work: str, before_us: float) -> Callable[[Results], float | None]:
    """CPU time per unit as a ratio to a figure from before the work on speed began."""

    def find(results: Results) -> float | None:
        ours = results.get((work, OURS))
        return ours.cpu_us / before_us if ours and ours.counts else None

    return find


def _of(
    work: str, peer: str, ratio: Callable[[Result, Result], float]
) -> Callable[[Results], float | None]:
    def find(results: Results) -> float | None:
        ours, theirs = results.get((work, OURS)), results.get((work, peer))
        if ours is None or theirs is None or not (ours.counts and theirs.counts):
            return None
        return ratio(ours, theirs)

    return find


GOALS = (
    Goal(WARM, "CPU per event, to plain Spark", 0.5, cpu_against(WARM, PLAIN_SPARK)),
    Goal(WARM, "CPU per event, to Flink SQL", 0.8, cpu_against(WARM, "Flink SQL")),
    Goal(WARM, "events/s, to plain Spark", 1.8, speed_against(WARM, PLAIN_SPARK), at_least=True),
    Goal(COLD, "events/s, to plain Spark", 1.3, speed_against(COLD, PLAIN_SPARK), at_least=True),
    Goal(
        EARLY_WRITER,
        "events/s, to plain transformWithState",
        30,
        speed_against(EARLY_WRITER, TRANSFORM_WITH_STATE),
        at_least=True,
    ),
    Goal(
        EARLY_WRITER,
        f"CPU per event, to {_EARLY_WRITER_BEFORE_US:g} µs before",
        0.2,
        cpu_before(EARLY_WRITER, _EARLY_WRITER_BEFORE_US),
    ),
    Goal(EARLY_WRITER, "CPU per event, to Bytewax", 1.5, cpu_against(EARLY_WRITER, "Bytewax")),
    Goal(
        EARLY_WRITER_WARM,
        "events/s, to plain transformWithState",
        30,
        speed_against(EARLY_WRITER_WARM, TRANSFORM_WITH_STATE),
        at_least=True,
    ),
    Goal(
        EARLY_WRITER_WARM,
        "CPU per event, to Bytewax",
        1.5,
        cpu_against(EARLY_WRITER_WARM, "Bytewax"),
    ),
    Goal(
        ARCHIVE,
        f"CPU per record, to {_ARCHIVE_BEFORE_US:g} µs before",
        0.25,
        cpu_before(ARCHIVE, _ARCHIVE_BEFORE_US),
    ),
    Goal(ARCHIVE, "CPU per record, to the delta-rs loop", 2, cpu_against(ARCHIVE, LOOP)),
    Goal(ARCHIVE_WARM, "CPU per record, to the delta-rs loop", 2, cpu_against(ARCHIVE_WARM, LOOP)),
    Goal(
        ARCHIVE,
        "CPU of reading an hour, to Spark's sink",
        1.1,
        figure_against(ARCHIVE, _DELTA_SINK, READ_HOUR),
    ),
)
