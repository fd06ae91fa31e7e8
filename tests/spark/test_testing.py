"""The helpers that we ship for tests of pipelines."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState

from ebbtide import Files, ForeachBatch, Kafka, Pipeline
from ebbtide.errors import UsageError
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.testing import Crash, Record, Rehearsal, RehearsedBatch, run_batch

SCHEMA = "page STRING, event_time TIMESTAMP"


def by_window(visits: DataFrame) -> DataFrame:
    return (
        visits.groupBy(F.window("event_time", "10 minutes"), "page")
        .count()
        .select(F.date_format("window.start", "HH:mm").alias("start"), "page", "count")
    )


WINDOWS = Pipeline(
    "windows",
    source=Kafka("visits", schema=SCHEMA),
    event_time="event_time",
    watermark="5 minutes",
    transform=by_window,
    sink=Kafka("windows"),
    conf={"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g"},
)


def visit(at: str, page: str = "home") -> dict[str, Any]:
    return {"page": page, "event_time": f"2025-09-04T{at}:00"}


def window(start: str, count: int, page: str = "home") -> dict[str, Any]:
    return {"start": start, "page": page, "count": count}


def moment(at: str) -> datetime:
    return datetime.fromisoformat(f"2025-09-04T{at}:00").replace(tzinfo=timezone.utc)


def test_batches_step_and_the_watermark_closes_a_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    with Rehearsal(WINDOWS, spark, tmp_path) as rehearsal:
        first = rehearsal.feed(visit("07:00"), b"broken", visit("07:06"), b"\xff")
        # its own rows brought the watermark, with which an empty batch ran
        assert first == [RehearsedBatch(0, []), RehearsedBatch(1, [], moment("07:01"))]
        assert rehearsal.feed(visit("07:09")) == [
            RehearsedBatch(2, [], moment("07:01")),
            RehearsedBatch(3, [], moment("07:04")),
        ]
        moved = rehearsal.move_watermark("2025-09-04T07:10:00Z")
        assert moved == [
            RehearsedBatch(4, [], moment("07:04")),
            RehearsedBatch(5, [window("07:00", 3)], moment("07:10")),
        ]
        # it is too late for a closed window, and the clock is no row that anyone counts
        rehearsal.feed(visit("07:08"), visit("07:11"))
        moved = rehearsal.move_watermark(moment("08:00"))
        assert moved[-1].rows == [window("07:10", 1)]
        assert rehearsal.batches[-1] == moved[-1]
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
    assert spark.conf.get("spark.sql.streaming.multipleWatermarkPolicy") == "min"


def test_a_batch_that_crashed_after_its_write_runs_again_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    written: list[int] = []
    sink = ForeachBatch(lambda rows, number: written.extend([number] * rows.count()))
    update = replace(WINDOWS, output_mode="update", sink=sink)
    with Rehearsal(update, spark, tmp_path) as rehearsal:
        rehearsal.feed(visit("07:00"))
        rehearsal.crash("after write")
        with pytest.raises(Crash, match=r"Batch 2 of windows crashed after write, as asked\."):
            rehearsal.feed(visit("07:01"), visit("07:02", "about"))
        again = rehearsal.resume()
        both = [window("07:00", 1, "about"), window("07:00", 2)]
        assert sorted(again[0].rows, key=lambda row: row["page"]) == both
        assert [batch.id for batch in rehearsal.batches] == [0, 1, 2, 2, 3]
        assert written == [0, 2, 2, 2, 2]
        assert rehearsal.feed(visit("07:03"))[0].rows == [window("07:00", 3)]
        with pytest.raises(UsageError, match="There is no crash 'soon'"):
            rehearsal.crash("soon")  # type: ignore[arg-type]


def test_what_the_sink_raises_comes_out_of_feed(spark: SparkSession, tmp_path: Path) -> None:
    def fail(_rows: DataFrame, number: int) -> None:
        raise ZeroDivisionError(number)

    pipeline = replace(WINDOWS, sink=ForeachBatch(fail))
    with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
        with pytest.raises(ZeroDivisionError):
            rehearsal.feed(visit("07:00"))
        assert rehearsal.batches == []


def test_wrong_logic_rewind_right_logic(spark: SparkSession, tmp_path: Path) -> None:
    """On the store that is not the default, which keeps its latest versions in memory."""
    store = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    conf = {**WINDOWS.conf, "spark.sql.streaming.stateStore.providerClass": store}
    right = replace(WINDOWS, output_mode="update", conf=conf)
    twice = F.explode(F.array(F.lit(1), F.lit(2)))
    wrong = replace(right, transform=lambda rows: by_window(rows.select("*", twice)))
    with Rehearsal(right, spark, tmp_path) as rehearsal:
        rehearsal.feed(visit("07:00"))
    with Rehearsal(wrong, spark, tmp_path) as rehearsal:
        assert rehearsal.feed(visit("07:01"))[0].rows == [window("07:00", 3)]
        rehearsal.stop()
        plan = plan_rewind(
            RewindRequest(str(rehearsal.checkpoint), ToBatch(2), assume_stopped=True)
        )
        apply_rewind(plan, assume_stopped=True)
    with Rehearsal(right, spark, tmp_path) as rehearsal:
        again = rehearsal.resume()
        assert (again[0].id, again[0].rows) == (2, [window("07:00", 2)])
        assert rehearsal.feed(visit("07:02"))[0].rows == [window("07:00", 3)]


PAGE = Path(__file__).parents[2] / "docs" / "guide" / "testing.md"


@pytest.mark.parametrize("test", ["test_time_passes", "test_crash_and_rewind"])
def test_what_the_page_about_testing_shows(test: str, spark: SparkSession, tmp_path: Path) -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, PAGE.name, "exec"), names)
    names[test](spark, tmp_path)


@pytest.mark.parametrize("run", ["stream", "batch"])
def test_a_batch_says_what_the_stream_says(run: str, spark: SparkSession, tmp_path: Path) -> None:
    rows: list[Record] = [visit("07:00"), b"[1]", {"page": None, "event_time": moment("07:03")}]
    pipeline = replace(WINDOWS, output_mode="complete")
    if run == "batch":
        found = run_batch(pipeline, spark, rows)
    else:
        with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
            found = rehearsal.feed(*rows)[0].rows
    pages = sorted((row["start"], row["page"] or "", row["count"]) for row in found)
    assert pages == [("07:00", "", 1), ("07:00", "home", 1)]


def test_a_filter_of_the_transform_and_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    """Spark pushes the filter below the watermark, here as in production, but not to the clock."""
    pipeline = replace(WINDOWS, transform=lambda rows: by_window(rows.where("page = 'home'")))
    with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
        rehearsal.feed(visit("07:00"), visit("09:00", "about"))
        assert rehearsal.batches[-1].watermark == moment("06:55")
        moved = rehearsal.move_watermark("2025-09-04 08:00")
        assert moved[-1] == RehearsedBatch(3, [window("07:00", 1)], moment("08:00"))


def count_until_timeout(
    key: tuple[str], pages: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        yield pd.DataFrame({"page": [key[0]], "count": [state.get[0]]})
        state.remove()
        return
    count = (state.get[0] if state.exists else 0) + sum(map(len, pages))
    state.update((count,))
    state.setTimeoutTimestamp(int(moment("07:20").timestamp() * 1000))


def by_page(visits: DataFrame) -> DataFrame:
    return visits.groupBy("page").applyInPandasWithState(
        count_until_timeout, "page STRING, count INT", "count INT", "append", "EventTimeTimeout"
    )


def test_the_clock_fires_timers_and_is_no_row(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = replace(WINDOWS, transform=by_page)
    with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
        rehearsal.feed(visit("07:00"), visit("07:01"))
        rehearsal.move_watermark("2025-09-04T07:19")
        assert [batch.rows for batch in rehearsal.batches] == [[]] * 4
        moved = rehearsal.move_watermark("2025-09-04T07:30")
        assert moved[-1].rows == [{"page": "home", "count": 2}]


def test_one_batch_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = replace(WINDOWS, scope="batch", transform=lambda rows: rows.groupBy("page").count())
    with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
        for _ in range(2):
            assert rehearsal.feed(visit("07:00"))[0].rows == [{"page": "home", "count": 1}]
        with pytest.raises(UsageError, match="windows has no watermark that could move"):
            rehearsal.move_watermark("2025-09-04T07:30")


def test_a_pipeline_without_a_watermark(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = replace(WINDOWS, watermark=None, transform=lambda rows: rows.select("page"))
    with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
        assert rehearsal.feed(visit("07:00")) == [RehearsedBatch(0, [{"page": "home"}])]
        with pytest.raises(UsageError, match="windows has no watermark that could move"):
            rehearsal.move_watermark("2025-09-04T07:30")


def test_rows_of_files_and_times_in_the_sessions_zone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        pipeline = replace(
            WINDOWS, source=Files("nowhere", schema=SCHEMA), transform=lambda rows: rows
        )
        seven = datetime(2025, 9, 4, 7)
        row = {"page": "home", "event_time": seven}
        assert run_batch(pipeline, spark, [row]) == [row]
        with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
            assert rehearsal.feed(row)[0].rows == [row]
            with pytest.raises(PySparkException, match="has no event_time"):
                rehearsal.feed({"page": "home"})
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_rehearsal_is_as_strict_as_production(spark: SparkSession, tmp_path: Path) -> None:
    """The pipeline's settings hold while its query is planned, and its key must be there."""
    tokyo = replace(
        WINDOWS,
        transform=lambda rows: rows.select(F.hour("event_time").alias("hour")),
        conf={"spark.sql.session.timeZone": "Asia/Tokyo"},
    )
    event = {"event_time": "2025-09-04T07:00:00Z"}
    with Rehearsal(tokyo, spark, tmp_path / "tokyo") as rehearsal:
        (first, *_) = rehearsal.feed(event)
    assert first.rows == [{"hour": 16}] == run_batch(tokyo, spark, [event])
    keyed = replace(WINDOWS, sink=Kafka("counts", key="no_such_column"))
    with Rehearsal(keyed, spark, tmp_path / "keyed") as rehearsal:
        with pytest.raises(AnalysisException, match="no_such_column"):
            rehearsal.feed(event)
    with pytest.raises(TypeError, match="has no form in JSON"):
        run_batch(WINDOWS, spark, [{"payload": {1, 2}}])
