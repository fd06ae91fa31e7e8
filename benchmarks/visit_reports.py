"""Report each visit while it is open and when it has ended: ours, and what else could do it."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from benchmarks.contenders import FLINK_NOTE, flink, in_python, ours, plain_spark
from benchmarks.contest import (
    Contender,
    Contest,
    Stage,
    Turn,
    differences,
    open_stage,
    warm_result,
)
from benchmarks.events import OpenedVisits
from benchmarks.measure import Result

WORK, PART, WARM = "early writer", "early writer, a tenth", "early writer, warm"
TRANSFORM_WITH_STATE = "transformWithState"
_BYTEWAX = "event time has no timers there, so visits end with the input, not by the last event"


def run(*, quick: bool) -> Iterator[str | Result]:
    """100,000 visits of 5 events, all open until the last event closes them; a tenth of them; and
    what the other nine tenths add to that
    """
    visits, repeats = (2_000, 1) if quick else (100_000, 2)
    part = visits // 10
    with open_stage() as stage:
        few = [*_contenders(part), *_plain_contenders(part)]
        short = yield from _contest(stage, part, few, 1)
        many = _contenders(visits)
        long = yield from _contest(stage, visits, many, repeats)
        # applyInPandasWithState would take longer than all others together
        slow = _plain_contenders(visits)[:1]
        once = yield from _contest(stage, visits, slow, 1)
    wholes = [
        *((long, contender) for contender in many),
        *((once, contender) for contender in slow),
    ]
    count = OpenedVisits(visits).count
    for contest, contender in wholes:
        yield contest.result(WORK, "event", count, contender)
    for contender in few:
        yield short.result(PART, "event", OpenedVisits(part).count, contender)
    more = count - OpenedVisits(part).count
    for contest, contender in wholes:
        yield warm_result(short, contest, contender, WARM, "event", more)


def _contenders(visits: int) -> list[Contender]:
    """With each batch of Spark there is one event of each visit, so all write as many reports."""
    return [
        ours("run", "visits", visits),
        flink("VisitReports", "Flink", f"keyed process function; {FLINK_NOTE}"),
        in_python("bytewax", "bytewax_flows.py", "visits", name="Bytewax", note=_BYTEWAX),
    ]


def _plain_contenders(visits: int) -> list[Contender]:
    return [
        plain_spark(TRANSFORM_WITH_STATE, visits, TRANSFORM_WITH_STATE),
        plain_spark("applyInPandasWithState", visits, "applyInPandasWithState"),
    ]


def _contest(
    stage: Stage, number: int, chosen: list[Contender], repeats: int
) -> Generator[str, None, Contest]:
    """The runs of some contenders over so many visits."""
    visits, topic = OpenedVisits(number), f"opened-{number}"
    yield from stage.fill(topic, visits)

    def check(turn: Turn) -> str:
        finals: dict[int, int] = {}
        for report in stage.read(turn.out):
            if report["is_finished"] and report["visit_id"] < number:
                # a second final report of a visit is as wrong as a wrong number of pages
                twice = report["visit_id"] in finals
                finals[report["visit_id"]] = -1 if twice else report["visited_pages"]
        return differences(visits.finals, finals)

    contest = Contest(stage, topic, chosen, check, timeout_seconds=3_600)
    yield from contest.go(repeats)
    return contest
