"""Count events per ten minutes of event time: ours, and what else a team could run."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.contenders import flink, in_python, ours, plain_spark
from benchmarks.contest import (
    Contender,
    Contest,
    Stage,
    Turn,
    differences,
    open_stage,
    sum_windows,
    warm_result,
)
from benchmarks.events import Visits
from benchmarks.measure import Result

COLD, WARM = "windowed count, cold", "windowed count, warm"
CONSUME = "consume only"
_BATCH = 1_000_000


def contenders() -> list[Contender]:
    """All of them."""
    return [
        ours("run", "windows", _BATCH),
        plain_spark("windows", _BATCH),
        flink("WindowedCount", "Flink SQL"),
        in_python("bytewax", "bytewax_flows.py", "windows", name="Bytewax"),
        in_python("loop", "loop.py", "windows", name="hand loop", note="no state on disk"),
        in_python("loop", "loop.py", "consume", name=CONSUME, note="no work at all: the limit"),
    ]


def run(*, quick: bool) -> Iterator[str | Result]:
    """cold: start-up and 3 million events; warm: what 7 million more add to that"""
    short, long, repeats = (200_000, 600_000, 1) if quick else (3_000_000, 10_000_000, 2)
    yield from compare(contenders(), short, long, repeats)


def compare(chosen: list[Contender], short: int, long: int, repeats: int) -> Iterator[str | Result]:
    """The results of some contenders: of the short topic, and of what the long one has more."""
    with open_stage() as stage:
        contests = []
        for count in (short, long):
            topic = f"visits-{count}"
            yield from stage.fill(topic, Visits(count))
            contest = contest_of(stage, topic, chosen)
            yield from contest.go(repeats)
            contests.append(contest)
    cold, whole = contests
    for contender in chosen:
        yield cold.result(COLD, "event", short, contender)
    for contender in chosen:
        yield warm_result(cold, whole, contender, WARM, "event", long - short)


def contest_of(stage: Stage, topic: str, chosen: list[Contender]) -> Contest:
    """The contest over a topic with visits, checked against their truth."""
    visits = stage.filled[topic]
    assert isinstance(visits, Visits)

    def check(turn: Turn) -> str:
        return differences(visits.counts, sum_windows(stage.read(turn.out)))

    def check_number(turn: Turn) -> str:
        read = sum(record["count"] for record in stage.read(turn.out))
        return differences({"all": visits.count}, {"all": read})

    return Contest(stage, topic, chosen, check, checks={CONSUME: check_number})
