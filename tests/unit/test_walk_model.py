"""The model that the walks compare Spark with, by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.walk.model import (
    DELAY,
    FIXED,
    OPERATORS,
    SINKS,
    STORES,
    Case,
    Entry,
    Line,
    Logged,
    case_of,
    rows_of,
)

SUMS = Case("hdfs", "aggregation", "txn", "rate")
ONCE = Case("hdfs", "deduplication", "delta", "rate")


def run(line: Line, case: Case, batches: int, factor: int = 1) -> Line:
    """So many batches more, each of one unit, as Spark would log them."""
    for _ in range(batches):
        number = line.committed
        logs = {n: batch.logged for n, batch in enumerate(line.batches)}
        if number not in logs:
            last = line.batches[-1] if line.batches else None
            end, watermark = (last.end, last.next_watermark) if last else (0, 0)
            logs[number] = Logged(end + 1, watermark, committed=True)
        logs[number] = replace(logs[number], committed=True)
        line = line.run(case, factor, logs, number)
    return line


def totals(line: Line) -> dict[str, int]:
    rows: list[dict[str, Any]] = [json.loads(text) for text in line.rows]
    return {row["key"]: row["total"] for row in rows}


def total_of(units: range) -> int:
    return sum(row["value"] for unit in units for row in rows_of(unit))


def test_every_case_is_walked() -> None:
    cases = {case_of(number) for number in range(400)}
    assert {case.sink for case in cases} == set(SINKS)
    assert {case.operator for case in cases} == set(OPERATORS)
    fixed = [case_of(number) for number in FIXED]
    assert {case.store for case in fixed} == set(STORES)
    assert {case.sink for case in fixed} == set(SINKS)


def test_a_rewound_timeline_has_nothing_of_the_old_one() -> None:
    old = run(Line(), SUMS, 4)
    assert sum(total for total, _ in old.state.values()) == total_of(range(4))
    back = old.rewind(2, replan=False, restores=True, new_id=False)
    assert (back.committed, len(back.batches), back.seen) == (2, 3, 1)
    assert back.entries == old.entries[:2]
    new = run(back, SUMS, 1, factor=10)
    wrong = sum(row["value"] for row in rows_of(2, 10))
    assert sum(total for total, _ in new.state.values()) == total_of(range(2)) + wrong
    # as it was planned, and on over what was removed
    replayed = back.replay(SUMS, 1)
    assert (replayed.rows, replayed.state) == (old.rows, old.state)


def test_late_rows_are_dropped_and_old_keys_forgotten() -> None:
    line = run(Line(), ONCE, 12)
    ids = [json.loads(text)["id"] for text in line.rows]
    assert len(ids) == len(set(ids)), "each once"
    everything = {row["id"] for unit in range(12) for row in rows_of(unit)}
    assert set(ids) < everything, "some came too late"
    latest = max(row["at"] for unit in range(11) for row in rows_of(unit))
    assert line.batches[-1].watermark == latest - DELAY
    assert min(at for _, at in line.state) > latest - DELAY


def test_a_sink_that_has_noted_a_batch_skips_it() -> None:
    line = run(Line(), ONCE, 4).lose_commit()
    again = run(line, ONCE, 1, factor=10)
    assert (again.rows, again.state) == (line.rows, line.batches[-1].state)
    assert again.batches[-1].next_watermark == again.batches[-1].watermark, "it was not run"


def test_a_table_of_two_writers() -> None:
    line = run(Line(), SUMS, 3)
    line = replace(line, entries=(*line.entries, Entry(('{"other": 1}',), foreign=True)))
    assert line.foreign_since(0)
    line = run(line, SUMS, 1)
    assert not line.foreign_since(3)


@pytest.mark.parametrize(
    ("logged", "problem"),
    [(Logged(1, 0, True), "reads nothing"), (Logged(2, 5, True), "watermark of batch 1")],
)
def test_logs_that_cannot_be(logged: Logged, problem: str) -> None:
    line = run(Line(), SUMS, 1)
    with pytest.raises(AssertionError, match=problem):
        line.run(SUMS, 1, {0: line.batches[0].logged, 1: logged}, 1)
