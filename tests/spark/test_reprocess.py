"""A range over a real archive into real tables and files: what is written, replaced and said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from ebbtide.archive.facts import read_archive
from ebbtide.archive.layout import archive_of
from ebbtide.config import Settings
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.pipeline import Delta, Files, Pipeline
from ebbtide.reprocessing.compare import compare_rows
from ebbtide.reprocessing.events import RunFinished
from ebbtide.reprocessing.journal import ReprocessRun, ReprocessSummary, create_run, load_run
from ebbtide.reprocessing.logic import Logic
from ebbtide.reprocessing.plan import plan_reprocess
from ebbtide.reprocessing.ranges import EventTimeRange, Shape
from ebbtide.reprocessing.request import ReprocessPlan, ReprocessRequest
from ebbtide.reprocessing.run import run_chunks
from ebbtide.reprocessing.shape import find_shape
from ebbtide.systems import find_pipeline
from ebbtide.systems.stream_reprocessor.pipeline import count_by_window
from tests.archives import fill_archive

COUNTER = find_pipeline("visits-counter")
FAR = {"visit_id": 9, "event_time": "2025-09-05T00:00:00Z"}
"""Closes every window of the day before."""
VISITS = [*(f"07:0{m}" for m in range(3)), "07:10", "07:33", "07:34", "07:35", "08:06"]
SCHEMA = "visit_id BIGINT, page STRING, event_time TIMESTAMP, other TIMESTAMP"


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2025-09-04T{text}:00").replace(tzinfo=timezone.utc)


def events(*times: str, visit: int = 1) -> list[dict[str, Any] | bytes]:
    return [{"visit_id": visit, "event_time": at(time).isoformat()} for time in times]


def prepare(
    spark: SparkSession, home: Path, pipeline: Pipeline, visits: Sequence[dict[str, Any] | bytes]
) -> Logic:
    settings = Settings(home=home)
    return Logic.of(
        spark, pipeline, settings, fill_archive(spark, pipeline, settings, [[*visits, FAR]])
    )


@pytest.fixture(scope="module")
def archived_visits(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of an archive of VISITS and of two records that are none."""
    settings = Settings(home=tmp_path_factory.mktemp("archived"))
    visits, others = [*events(*VISITS), FAR], [b"no json", b'{"visit_id": 1}']
    return Path(fill_archive(spark, COUNTER, settings, [visits, others]).path)


Prepare = Callable[[Pipeline], Logic]


@pytest.fixture
def visits_in(spark: SparkSession, archived_visits: Path, tmp_path: Path) -> Prepare:
    """A pipeline over a copy of that table in a home of its own: making one takes seconds."""

    def prepare_copy(pipeline: Pipeline) -> Logic:
        settings = Settings(home=tmp_path)
        _, table = archive_of(pipeline)
        shutil.copytree(archived_visits, settings.table(table.path))
        return Logic.of(spark, pipeline, settings, read_archive(pipeline, settings))

    return prepare_copy


def plan(logic: Logic, start: str, end: str, **more: Any) -> ReprocessPlan:
    return plan_reprocess(
        logic, ReprocessRequest("test:pipeline", EventTimeRange(at(start), at(end)), **more)
    )


def execute(logic: Logic, run: ReprocessRun, *, write: bool = True) -> ReprocessSummary:
    *_, finished = run_chunks(logic, run, write=write)
    assert isinstance(finished, RunFinished)
    return finished.summary


def run(logic: Logic, start: str, end: str, **more: Any) -> ReprocessSummary:
    made = plan(logic, start, end, **more)
    made.require()
    began = made.begin()
    create_run(logic.settings, began)
    return execute(logic, began)


def counts(unchanged: int, changed: int, new: int, gone: int) -> dict[str, int]:
    return {"unchanged": unchanged, "changed": changed, "new": new, "gone": gone}


def in_table(spark: SparkSession, path: Path, column: str = "window") -> dict[str, int]:
    rows = spark.read.format("delta").load(str(path)).select(F.col(f"{column}.start"), "count")
    return {f"{row['start']:%H:%M}": row["count"] for row in rows.collect()}


def to_table(path: Path, **more: Any) -> Pipeline:
    return replace(COUNTER, sink=Delta(str(path)), **more)


def test_a_delta_output_is_replaced_for_the_range_in_one_commit(
    spark: SparkSession, tmp_path: Path, visits_in: Prepare
) -> None:
    out = tmp_path / "out"
    logic = visits_in(to_table(out))
    assert run(logic, "07:00", "08:10").diff.counts == counts(0, 0, 4, 0)
    assert in_table(spark, out) == {"07:00": 3, "07:10": 1, "07:30": 3, "08:00": 1}

    # two visits come late, and one window is in the table that never was
    stray = spark.sql(
        "SELECT window(TIMESTAMP '2025-09-04T07:20:00Z', '10 minutes') AS window, 8L AS count"
    )
    stray.write.format("delta").mode("append").save(str(out))
    rows = fill_archive(spark, logic.pipeline, logic.settings, [events("07:03", "07:04")])
    logic = replace(logic, archive=rows)
    before = DeltaTable(str(out)).version()

    # an event at exactly the range's end does not touch the next window
    found = run(logic, "07:00", "07:10", only_changed=True)
    assert [change.describe() for change in found.diff.changes] == ["count 3 → 5"]
    assert in_table(spark, out) == {
        "07:00": 5, "07:10": 1, "07:20": 8, "07:30": 3, "08:00": 1,
    }  # fmt: skip
    # three chunks, one commit, marked with the run
    found = run(logic, "07:00", "07:30", chunk=timedelta(minutes=10), max_active=2)
    assert len(found.reports) == 3
    assert found.diff.counts == counts(2, 0, 0, 1)
    assert in_table(spark, out) == {"07:00": 5, "07:10": 1, "07:30": 3, "08:00": 1}
    history = DeltaTable(str(out)).history()
    assert DeltaTable(str(out)).version() == before + 2
    assert json.loads(history[0]["userMetadata"])["ebbtide-run-id"] == found.run.id
    assert not (out / "_ebbtide").exists()

    # the same again changes nothing, and with --only-changed not even a commit is made
    again = run(logic, "07:00", "08:10", only_changed=True)
    assert again.diff.counts == counts(4, 0, 0, 0)
    assert [report.written for report in again.reports] == [0] * len(again.reports)
    assert DeltaTable(str(out)).version() == before + 2
    assert not (out / "_ebbtide").exists()


def test_a_column_with_a_backtick_is_compared(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1,)], ["a`b"])
    (compared,) = compare_rows(rows, rows, Shape("stateless")).collect()
    assert (compared["verdict"], compared["measure_new"]) == ("unchanged", 1)


def test_a_range_that_cuts_a_window_is_widened_and_said(tmp_path: Path, visits_in: Prepare) -> None:
    logic = visits_in(to_table(tmp_path / "out"))
    made = plan(logic, "07:05", "07:36")
    check = next(check for check in made.checks if check.name == "range")
    assert check.verdict == "warn"
    assert "cuts one, so it is widened to [2025-09-04T07:00:00.000Z, 2025-09-04T07:40:00" in (
        check.detail
    )
    assert (made.owned.start, made.owned.end) == (at("07:00"), at("07:40"))
    assert made.records == 7


def test_what_failed_is_run_again_and_nothing_else(
    spark: SparkSession, tmp_path: Path, visits_in: Prepare
) -> None:
    out, broken = tmp_path / "out", tmp_path / "broken"
    broken.touch()

    def fail_on_half_past(visits: DataFrame) -> DataFrame:
        if broken.exists():
            minute = F.minute("event_time")
            fault = F.raise_error(F.lit("half past")).cast("bigint")
            visits = visits.where(F.when(minute == 33, fault).otherwise(1) == 1)
        return count_by_window(visits)

    logic = visits_in(to_table(out, transform=fail_on_half_past))
    first = run(logic, "07:00", "07:50", chunk=timedelta(minutes=10), backwards=True)
    assert first.status == "partial success", first.reports
    assert [report.number for report in first.failed] == [4]
    assert "half past" in first.failed[0].error
    # not a row of it is in the table yet
    assert not (out / "_delta_log").exists()

    # meanwhile the archive grows, which a retry does not see
    broken.unlink()
    fill_archive(spark, logic.pipeline, logic.settings, [events("07:03", "07:04")])
    frozen = load_run(logic.settings, first.run.id)
    assert frozen == first.run
    second = execute(logic, frozen)
    assert (second.status, second.ran) == ("success", 1)
    assert in_table(spark, out) == {"07:00": 3, "07:10": 1, "07:30": 3}
    third = execute(logic, frozen)
    assert (third.status, third.ran) == ("success", 0)
    assert DeltaTable(str(out)).version() == 0


def sessions(visits: DataFrame) -> DataFrame:
    return visits.groupBy("visit_id", F.session_window("event_time", "5 minutes")).count()


def test_a_session_that_grows_swallows_its_parts_wherever_they_lie(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = events("07:00", "07:03", "07:12", "07:21") + events("07:13", visit=2)
    logic = prepare(spark, tmp_path, to_table(out, transform=sessions), first)
    run(logic, "07:00", "07:30")
    assert in_table(spark, out, "session_window") == {
        "07:00": 2, "07:12": 1, "07:13": 1, "07:21": 1,
    }  # fmt: skip
    # two late visits join all sessions of visit 1; visit 2 has nothing to do with it
    late = events("07:07", "07:16")
    archive = fill_archive(spark, logic.pipeline, logic.settings, [late])
    logic = replace(logic, archive=archive)
    made = plan(logic, "07:16", "07:17")
    assert "looks back" in made.checks[0].detail
    assert made.reads.start < at("07:00")
    found = run(logic, "07:16", "07:17")
    assert found.diff.counts == counts(1, 1, 0, 2)
    assert in_table(spark, out, "session_window") == {"07:00": 6, "07:13": 1}


def test_files_go_beside_the_streams_and_the_newest_counts(
    tmp_path: Path, visits_in: Prepare
) -> None:
    out = tmp_path / "out"
    pipeline = replace(COUNTER, sink=Files(str(out), "json"))
    logic = visits_in(pipeline)
    count_by_window(logic.rows(EventTimeRange(at("07:00"), at("07:20")))).write.json(str(out))
    held = sorted(path.name for path in out.iterdir())
    assert run(logic, "07:00", "07:40").diff.counts == counts(2, 0, 1, 0)
    assert sorted(path.name for path in out.iterdir()) == held
    again = run(logic, "07:00", "07:40", only_changed=True)
    assert again.diff.counts == counts(3, 0, 0, 0)
    assert [report.written for report in again.reports] == [0]


def test_rows_without_a_name_are_compared_whole(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def as_they_are(visits: DataFrame) -> DataFrame:
        return visits.select("visit_id", "event_time")

    pipeline = to_table(out, transform=as_they_are, watermark=None)
    logic = prepare(spark, tmp_path, pipeline, events("07:00", "07:00", "07:01"))
    assert run(logic, "07:00", "07:10").diff.counts["new"] == 3
    archive = fill_archive(spark, pipeline, logic.settings, [events("07:00")])
    logic = replace(logic, archive=archive)
    made = plan(logic, "07:00", "07:10", only_changed=True)
    # meanwhile the stream reads another record of the range, which the pinned archive has not
    later = spark.sql("SELECT 7L AS visit_id, TIMESTAMP '2025-09-04T07:05:00Z' AS event_time")
    later.write.format("delta").mode("append").save(str(out))
    began = made.begin()
    create_run(logic.settings, began)
    found = execute(logic, began)
    assert found.diff.counts == counts(3, 0, 1, 0)
    rows = spark.read.format("delta").load(str(out)).groupBy("visit_id").count().collect()
    assert sorted(map(tuple, rows)) == [(1, 4), (7, 1)]


def test_comparing_leaves_no_trace(tmp_path: Path, visits_in: Prepare) -> None:
    out = tmp_path / "out"
    logic = visits_in(to_table(out))
    began = plan(logic, "07:00", "08:10").begin()
    found = execute(logic, began, write=False)
    assert found.diff.counts["new"] == 4
    assert [point[2] for point in found.diff.points] == [3, 1, 3, 1]
    assert found.diff.measure == "count"
    assert not out.exists()
    assert not (logic.settings.home / "runs").exists()


def test_what_must_not_be_written_is_refused(
    spark: SparkSession, tmp_path: Path, visits_in: Prepare
) -> None:
    logic = visits_in(to_table(tmp_path / "out"))
    with pytest.raises(EbbtideError, match=r"holds no record in .*; it covers 2025-09-04T07:00:00"):
        run(logic, "03:00", "04:00")
    # the stream would write these windows a second time
    last = EventTimeRange(at("08:00"), at("08:00") + timedelta(days=2))
    with pytest.raises(EbbtideError, match="may still write results of the range a second time"):
        plan_reprocess(logic, ReprocessRequest("x", last)).require()
    blind = replace(logic.pipeline, transform=lambda rows: count_by_window(rows).select("count"))
    blind_logic = Logic.of(spark, blind, logic.settings, logic.archive)
    with pytest.raises(EbbtideError, match="do not say when they begin"):
        run(blind_logic, "07:00", "07:10")
    files = replace(blind_logic, pipeline=replace(blind, sink=Files(str(tmp_path / "files"))))
    with pytest.raises(EbbtideError, match="compared with all that is held"):
        run(files, "07:00", "07:10", only_changed=True)
    assert not (tmp_path / "out").exists()
    assert not (logic.settings.home / "runs").exists()


Transform = Callable[[DataFrame], DataFrame]
REFUSED: dict[str, tuple[Transform, str]] = {
    "all keys": (lambda d: d.groupBy("visit_id").count(), "over all events that ever were"),
    "duplicates": (lambda d: d.dropDuplicates(["visit_id"]), "drops duplicates"),
    "self join": (
        lambda d: d.join(d.select("visit_id", F.col("event_time").alias("t")), "visit_id"),
        "joins the stream with itself",
    ),
    "other time": (
        lambda d: d.groupBy(F.window("other", "10 minutes")).count(),
        "windows over other, not over its event time",
    ),
    "two levels": (
        lambda d: d.groupBy(F.window("event_time", "10 minutes"))
        .count()
        .groupBy(F.window(F.window_time("window"), "1 hour"))
        .count(),
        "aggregates what it has aggregated",
    ),
    "gap by key": (
        lambda d: d.groupBy(F.session_window("event_time", F.expr("concat(visit_id, ' minutes')")))
        .count(),
        "windows over event_time and visit_id",
    ),
    "sliding, unsaid": (
        lambda d: d.groupBy(F.window("event_time", "10 minutes", "5 minutes")).count()
        .select("count"),
        "does not say in its result when a window begins",
    ),
    "limit": (lambda d: d.limit(3), "takes the first rows of all"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_transform_that_hangs_on_more_than_a_range_is_refused(
    spark: SparkSession, name: str
) -> None:
    transform, why = REFUSED[name]
    with pytest.raises(UsageError, match=f"cannot be run over a range: it .*{why}"):
        find_shape(spark, replace(COUNTER, transform=transform), schema())


def schema() -> StructType:
    found = StructType.fromDDL(SCHEMA)
    assert isinstance(found, StructType)
    return found


def test_the_shape_is_read_from_the_plan(spark: SparkSession) -> None:
    def shape(transform: Transform) -> Any:
        return find_shape(spark, replace(COUNTER, transform=transform), schema())

    renamed = shape(
        lambda d: (
            d.groupBy(F.window("event_time", "10 minutes").alias("w"), F.upper("page"))
            .count()
            .select(F.col("w.start").alias("since"), F.col("upper(page)").alias("p"), "count")
        )
    )
    assert (renamed.start, renamed.end, renamed.identity) == ("`since`", None, ("`since`", "`p`"))
    sliding = shape(
        lambda d: d.groupBy(F.window("event_time", "10 minutes", "4 minutes", "1 minute")).count()
    )
    assert sliding.describe() == "windows of 10 min every 4 min"
    assert sliding.offset == timedelta(minutes=1)
    session = shape(lambda d: d.groupBy(F.session_window("event_time", "90 seconds")).count())
    assert session.describe() == "sessions that a gap of 90 s ends"
    plain = shape(lambda d: d.select(F.col("event_time").alias("at")))
    assert (plain.kind, plain.start) == ("stateless", "`at`")
