"""Report each visit while it is open and when it has ended: ours, and what else could do it."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.contenders import FLINK_NOTE, flink, in_python, ours, plain_spark
from benchmarks.contest import Contender, Contest, Turn, differences, open_stage
from benchmarks.events import OpenedVisits
from benchmarks.measure import Result

WORK, PART = "early writer", "early writer, a tenth"
TRANSFORM_WITH_STATE = "transformWithState"
_BYTEWAX = "event time has no timers there, so visits end with the input, not by the last event"


def run(*, quick: bool) -> Iterator[str | Result]:
    """100,000 visits of 5 events, all open until the last event closes them"""
    visits, repeats = (2_000, 1) if quick else (100_000, 2)
    yield from compare(_contenders(visits), OpenedVisits(visits), WORK, repeats)
    # plain Spark's state costs so much for each key that it runs once
    plain = plain_spark(TRANSFORM_WITH_STATE, visits, TRANSFORM_WITH_STATE)
    yield from compare([plain], OpenedVisits(visits), WORK, 1)
    part = visits // 10
    yield from compare(_slow_contenders(part), OpenedVisits(part), PART, 1)


def _contenders(visits: int) -> list[Contender]:
    """With each batch of Spark there is one event of each visit, so all write as many reports."""
    return [
        ours("run", "visits", visits),
        flink("VisitReports", "Flink", f"keyed process function; {FLINK_NOTE}"),
        in_python("bytewax", "bytewax_flows.py", "visits", name="Bytewax", note=_BYTEWAX),
    ]


def _slow_contenders(visits: int) -> list[Contender]:
    """Those that would take longer with all visits than all others together."""
    return [
        ours("run", "visits", visits),
        plain_spark("applyInPandasWithState", visits, "applyInPandasWithState"),
    ]


def compare(
    chosen: list[Contender], visits: OpenedVisits, work: str, repeats: int
) -> Iterator[str | Result]:
    """The results of some contenders."""
    with open_stage() as stage:
        topic = f"opened-{visits.visits}"
        yield from stage.fill(topic, visits)

        def check(turn: Turn) -> str:
            finals: dict[int, int] = {}
            for report in stage.read(turn.out):
                if report["is_finished"] and report["visit_id"] < visits.visits:
                    # a second final report of a visit is as wrong as a wrong number of pages
                    twice = report["visit_id"] in finals
                    finals[report["visit_id"]] = -1 if twice else report["visited_pages"]
            return differences(visits.finals, finals)

        contest = Contest(stage, topic, chosen, check, timeout_seconds=3_600)
        yield from contest.go(repeats)
    for contender in chosen:
        yield contest.result(work, "event", visits.count, contender)
