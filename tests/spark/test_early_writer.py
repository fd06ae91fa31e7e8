"""Scenario 5 and its corners without a broker: the real job, on real Spark and real state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.config import Settings
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.pipeline import Files, Kafka, Sessions
from ebbtide.reprocessing.events import RunFinished
from ebbtide.reprocessing.logic import Logic
from ebbtide.reprocessing.plan import plan_reprocess
from ebbtide.reprocessing.ranges import EventTimeRange, cut
from ebbtide.reprocessing.request import ReprocessRequest
from ebbtide.reprocessing.run import run_chunks
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.systems.early_writer.adapter import read_open_visits
from ebbtide.systems.early_writer.fold import GAP
from ebbtide.systems.early_writer.pipeline import pipeline
from ebbtide.testing import Crash, Rehearsal, RehearsedBatch, run_batch
from tests import cells
from tests.archives import fill_archive

Report = tuple[int | None, int, bool]


@pytest.fixture
def rehearsal(spark: SparkSession, tmp_path: Path) -> Iterator[Rehearsal]:
    with Rehearsal(pipeline, spark, tmp_path) as found:
        yield found


def visit(id_: int | None, minute: float, event: str = "click") -> dict[str, Any]:
    at = datetime(2025, 9, 4, 7) + timedelta(minutes=minute)
    return {"event_id": event, "visit_id": id_, "event_time": at.isoformat(), "page": "home"}


def said(batches: list[RehearsedBatch]) -> dict[int, list[Report]]:
    """What each batch reported; those that said nothing left out."""
    rows = {batch.id: [tuple(row.values()) for row in batch.rows] for batch in batches}
    return {number: sorted(found, key=str) for number, found in rows.items() if found}


def test_scenario_5(rehearsal: Rehearsal) -> None:
    steps: list[tuple[dict[str, Any], dict[int, list[Report]]]] = [
        (visit(1, 0), {0: [(1, 1, False)]}),
        (visit(1, 1), {2: [(1, 2, False)]}),
        (visit(1, 2), {4: [(1, 3, False)]}),
        (visit(1, 0), {6: [(1, 4, False)]}),
        (visit(2, 10), {7: [(2, 1, False)]}),
        (
            {"event_id": "stop", "visit_id": 1, "event_time": "2026-12-29T07:49:15.189575"},
            {9: [(1, 5, False)], 10: [(1, 5, True), (2, 1, True)]},
        ),
    ]
    for event, expected in steps:
        assert said(rehearsal.feed(event)) == expected
    assert [batch.id for batch in rehearsal.batches] == list(range(11))


def test_what_comes_late_or_strange(rehearsal: Rehearsal, spark: SparkSession) -> None:
    # two events of one visit with the same time, and events without a visit
    assert said(rehearsal.feed(visit(1, 0), visit(1, 0), visit(None, 0), visit(None, 1))) == {
        0: [(1, 2, False), (None, 2, False)]
    }
    # the watermark is at the one timer, 07:10, and not yet at 07:11, that of those without a visit
    assert [b.rows for b in rehearsal.move_watermark("2025-09-04T07:10:00")][-1] == [
        {"visit_id": 1, "visited_pages": 2, "is_finished": True}
    ]
    # older than the watermark: too late, whether its visit is open or not
    assert said(rehearsal.feed(visit(1, 9), visit(None, 9))) == {}
    # newer than the watermark: the ended visit begins anew
    (again,) = said(rehearsal.feed(visit(1, 11))).values()
    assert again == [(1, 1, False)]
    found = read_open_visits(spark, str(rehearsal.checkpoint)).by_id()
    until = _ms("07:20:00")
    assert found[1] == (1, until)
    assert sorted(pages for pages, _ in found.values()) == [1, 2]


def test_an_event_far_in_the_future_ends_all_and_itself(
    rehearsal: Rehearsal, spark: SparkSession
) -> None:
    rehearsal.feed(visit(1, 0), visit(2, 3))
    last_day = {"visit_id": 3, "event_time": "9999-12-31T23:59:59"}
    assert (3, 1, True) in map(tuple, map(dict.values, run_batch(pipeline, spark, [last_day])))
    *_, last = said(rehearsal.feed(last_day)).values()
    assert last == [(1, 1, True), (2, 1, True), (3, 1, True)]
    assert len(read_open_visits(spark, str(rehearsal.checkpoint))) == 0
    # nothing that is not as far in the future is heard again: the watermark does not go back
    assert said(rehearsal.feed(visit(1, 20))) == {}


def test_a_visit_that_never_ends(rehearsal: Rehearsal) -> None:
    """A page every nine minutes: the timer is renewed, however long it goes on."""
    reports = [said(rehearsal.feed(visit(1, 9 * n), visit(100 + n, 9 * n))) for n in range(5)]
    own = [r for batches in reports for found in batches.values() for r in found if r[0] == 1]
    assert own == [(1, n, False) for n in range(1, 6)]
    others = {r for batches in reports for found in batches.values() for r in found if r[2]}
    assert others == {(100 + n, 1, True) for n in range(4)}


def test_a_crash_changes_nothing(rehearsal: Rehearsal) -> None:
    rehearsal.feed(visit(1, 0))
    rehearsal.crash("after write")
    with pytest.raises(Crash):
        rehearsal.feed(visit(1, 1), visit(2, 2))
    assert said(rehearsal.resume()) == {2: [(1, 2, False), (2, 1, False)]}
    *_, last = rehearsal.move_watermark("2025-09-04T08:00:00")
    assert said([last]) == {last.id: [(1, 2, True), (2, 1, True)]}


def test_a_rewind_among_open_visits(spark: SparkSession, tmp_path: Path) -> None:
    """State and timers come back: the same event again, and the visits end when they should."""
    with Rehearsal(pipeline, spark, tmp_path) as first:
        for event in (visit(1, 0), visit(2, 5), visit(1, 7)):
            first.feed(event)
    assert said(first.batches) == {0: [(1, 1, False)], 2: [(2, 1, False)], 4: [(1, 2, False)]}
    checkpoint = str(first.checkpoint)
    before = read_open_visits(spark, checkpoint, 3).by_id()
    assert before == {1: (1, _ms("07:10:00")), 2: (1, _ms("06:55:00"))}
    assert read_open_visits(spark, checkpoint).by_id()[1] == (2, _ms("07:00:00"))
    cells.forget_state(spark)
    apply_rewind(
        plan_rewind(RewindRequest(checkpoint, ToBatch(4), assume_stopped=True)), assume_stopped=True
    )
    assert read_open_visits(spark, checkpoint).by_id() == before
    with Rehearsal(pipeline, spark, tmp_path) as again:
        assert said(again.resume()) == {4: [(1, 2, False)]}
        # at 06:58 the one timer has fired, and not yet the other
        assert said(again.feed(visit(3, 13))) == {6: [(3, 1, False)], 7: [(2, 1, True)]}
        assert said(again.feed(visit(3, 15))) == {8: [(3, 2, False)], 9: [(1, 2, True)]}


@pytest.mark.parametrize("how", ["stream", "batch"])
def test_finished_visits_as_a_stream_and_as_a_batch(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    """One body for both: what ended visits were, when the stream has seen them whole."""
    events = [visit(1, 0), visit(2, 1), visit(1, 4), visit(None, 5), visit(2, 9), visit(3, 9)]
    if how == "batch":
        rows = run_batch(pipeline, spark, events)
    else:
        with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
            rehearsal.feed(*events[:3])
            rehearsal.feed(*events[3:])
            rehearsal.move_watermark("2025-09-04T09:00:00")
            rows = [row for batch in rehearsal.batches for row in batch.rows]
    ended = sorted((tuple(row.values()) for row in rows if row["is_finished"]), key=str)
    assert ended == [(1, 2, True), (2, 2, True), (3, 1, True), (None, 1, True)]


def _ms(clock: str) -> int:
    at = datetime.fromisoformat(f"2025-09-04T{clock}").replace(tzinfo=timezone.utc)
    return int(at.timestamp() * 1000)


def test_a_wider_key_finds_its_visits_again(spark: SparkSession, tmp_path: Path) -> None:
    """A schema that is changed from INT to BIGINT keeps the state: so must the buckets."""
    with Rehearsal(pipeline, spark, tmp_path) as first:
        first.feed(visit(1, 0), visit(1, 0))
    wide = Kafka("visits", schema="visit_id BIGINT, event_time TIMESTAMP")
    with Rehearsal(replace(pipeline, source=wide), spark, tmp_path) as again:
        assert list(said(again.feed(visit(1, 1))).values()) == [[(1, 3, False)]]


def test_sessions_are_by_a_field_that_is_used(spark: SparkSession, tmp_path: Path) -> None:
    home = Settings(home=tmp_path)
    job = replace(pipeline, sessions=Sessions("page", GAP))
    archive = fill_archive(spark, job, home, [[visit(1, 0)]])
    with pytest.raises(UsageError, match="sessions by page, a field that its transform does not"):
        Logic.of(spark, job, home, archive)


def test_visits_are_told_apart_by_whole_numbers(spark: SparkSession) -> None:
    named = Kafka("visits", schema="visit_id STRING, event_time TIMESTAMP")
    with pytest.raises(UsageError, match="identified by visit_id, which is STRING"):
        run_batch(replace(pipeline, source=named), spark, [visit(1, 0)])


def sessions_of(events: list[dict[str, Any]]) -> list[tuple[int | None, datetime, datetime, int]]:
    """Visit, start, end and pages, found the plainest way."""
    found = []
    for id_ in {event["visit_id"] for event in events}:
        times = sorted(moment(event) for event in events if event["visit_id"] == id_)
        start, last, pages = times[0], times[0], 0
        for time in times:
            if time - last >= GAP:
                found.append((id_, start, last + GAP, pages))
                start, pages = time, 0
            last, pages = time, pages + 1
        found.append((id_, start, last + GAP, pages))
    return found


def moment(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["event_time"]).replace(tzinfo=timezone.utc)


def test_a_range_has_every_visit_of_it_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever came late, wherever chunks cut: the visits that reach into the range, no other."""
    chance = random.Random(seed := random.randrange(2**32))
    home = Settings(home=tmp_path)
    ids: list[int | None] = [1, 2, 3, None]
    events = [visit(chance.choice(ids), chance.randint(0, 720) / 4) for _ in range(60)]
    archive = fill_archive(spark, pipeline, home, [events[::2], events[1::2]])
    logic = Logic.of(spark, pipeline, home, archive)
    start = chance.randint(0, 120)
    asked = EventTimeRange(at_minute(start), at_minute(start + chance.randint(1, 60)))
    found = [
        tuple(row)
        for chunk in cut(asked, logic.shape, asked.length / 2)
        for row in logic.chunk_results(chunk).collect()
    ]
    due = [
        (id_, pages, True)
        for id_, begin, end, pages in sessions_of(events)
        if begin < asked.end and end > asked.start
    ]
    assert sorted(found, key=str) == sorted(due, key=str), seed


def at_minute(minute: float) -> datetime:
    return moment(visit(1, minute))


def test_reprocess_compares_and_writes_finished_visits(spark: SparkSession, tmp_path: Path) -> None:
    home = Settings(home=tmp_path)
    output = Files(str(tmp_path / "out"))
    job = replace(pipeline, sink=output)
    archive = fill_archive(
        spark, job, home, [[visit(1, 0), visit(1, 3), visit(2, 4), visit(3, 50)], [visit(1, 1)]]
    )
    # the stream has not seen the event that came late
    held = [(1, 2, True), (2, 1, True)]
    schema = "visit_id INT, visited_pages INT, is_finished BOOLEAN"
    spark.createDataFrame(held, schema).coalesce(1).write.json(output.path)
    logic = Logic.of(spark, job, home, archive)
    asked = EventTimeRange(at_minute(0), at_minute(30))
    plan = plan_reprocess(logic, ReprocessRequest("visits-early-writer", asked))
    plan.require()
    # at 07:50 visit 3 has not ended, and what it has seen so far is not for the last word
    early = plan_reprocess(
        logic, ReprocessRequest("visits-early-writer", EventTimeRange(asked.start, at_minute(60)))
    )
    with pytest.raises(EbbtideError, match="sessions of the range may not have ended"):
        early.require()
    assert plan.to_dict()["shape"] == "sessions that a gap of 10 min ends"
    *_, finished = run_chunks(logic, plan.begin())
    assert isinstance(finished, RunFinished)
    summary = finished.summary
    assert (summary.status, summary.diff.counts["changed"]) == ("success", 1)
    written = spark.read.option("recursiveFileLookup", "true").json(f"{output.path}-reprocessed")
    columns = ("visit_id", "visited_pages", "is_finished")
    assert sorted(map(tuple, written.select(*columns).collect())) == [(1, 3, True), (2, 1, True)]
