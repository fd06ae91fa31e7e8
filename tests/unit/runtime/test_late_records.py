"""Late records: which batches are read again, and what a user is told to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ebbtide import Delta, ForeachBatch
from ebbtide.cli.pipelines import describe_late
from ebbtide.config import Settings
from ebbtide.connectors.progress import LateRecords
from ebbtide.connectors.streams import OpenSource
from ebbtide.pipeline import Pipeline
from ebbtide.runtime.late_records import LateCounter
from ebbtide.storage import open_folder
from tests.unit.test_pipeline import PIPELINE

TIMES = ("2025-09-04T07:00:00.000Z", "2025-09-04T07:20:00.000Z")
ARCHIVED = replace(PIPELINE, archive=Delta("visits"))


def progress(*operators: tuple[str, int]) -> dict[str, Any]:
    state = [{"operatorName": n, "numRowsDroppedByWatermark": rows} for n, rows in operators]
    return {"batchId": 4, "stateOperators": state, "sources": [{}]}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def counter(tmp_path: Path, said: list[str]) -> LateCounter:
    """Of a query without a session: it asks Spark only if it must, and gets no answer."""
    nothing = cast(Any, None)
    source, folder = OpenSource(nothing, None), open_folder(str(tmp_path))
    return LateCounter(nothing, PIPELINE, source, nothing, folder, said.append)


@pytest.mark.parametrize(
    ("operators", "late"),
    [
        ([], None),
        ([("stateStoreSave", 0)], LateRecords(0)),
        ([("dedupe", 7), ("stateStoreSave", 0)], LateRecords(7)),
    ],
)
def test_batches_that_combined_nothing_late_are_not_read_again(
    counter: LateCounter, operators: list[tuple[str, int]], late: LateRecords | None
) -> None:
    assert counter.count(progress(*operators)) == late


def test_what_cannot_be_counted_is_not_exact_and_said_once(
    counter: LateCounter, said: list[str]
) -> None:
    for _ in range(2):
        found = counter.count(progress(("stateStoreSave", 312)))
        assert found == LateRecords(312, exact=False)
    (warned,) = said
    assert warned.startswith("Warning: the late records of batch 4 cannot be counted")


@pytest.mark.parametrize(
    ("late", "pipeline", "says"),
    [
        (LateRecords(9, times=TIMES), ARCHIVED, "ebbtide reprocess --event-time-start=2025-09-04"),
        (LateRecords(9, times=TIMES), None, "ebbtide reprocess --event-time-start=2025-09-04"),
        (LateRecords(9, times=TIMES), PIPELINE, "give visits-raw an archive"),
        (LateRecords(9, exact=False), ARCHIVED, "about 9 late records"),
        (
            LateRecords(9, times=TIMES),
            replace(ARCHIVED, sink=ForeachBatch(lambda _rows, _number: None)),
            "A reprocess cannot add them: visits-raw hands its batches to a function",
        ),
    ],
)
def test_the_user_is_told_what_to_do(
    late: LateRecords, pipeline: Pipeline | None, says: str
) -> None:
    assert says in describe_late(late, "jobs.py:visits", pipeline, Settings(home=Path("home")))
