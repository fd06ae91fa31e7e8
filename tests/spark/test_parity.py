"""Whatever the order and the lateness: a range reprocessed is what a stream without delay says.

Every job that can be reprocessed is a case here.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.config import Settings
from ebbtide.pipeline import Pipeline
from ebbtide.reprocessing.compare import belongs
from ebbtide.reprocessing.logic import Logic
from ebbtide.reprocessing.ranges import EventTimeRange, cut, whole_results
from ebbtide.systems import find_pipeline
from tests.archives import fill_archive

START = datetime(2025, 9, 4, 6, tzinfo=timezone.utc)
WORLDS = int(os.environ.get("EBBTIDE_PARITY", "2"))


def sessions(visits: DataFrame) -> DataFrame:
    found = visits.groupBy("visit_id", F.session_window("event_time", "5 minutes")).count()
    # what the transform then leaves out must not cut a session
    return found.where("count > 1")


def sliding(visits: DataFrame) -> DataFrame:
    window = F.window("event_time", "20 minutes", "8 minutes", "3 minutes")
    return visits.groupBy(window.alias("w"), "visit_id").agg(F.max("event_id").alias("last"))


def pages(visits: DataFrame) -> DataFrame:
    return visits.where("visit_id <> 2").select("event_id", F.col("event_time").alias("at"))


COUNTER = find_pipeline("visits-counter")
CASES = [
    COUNTER,
    replace(COUNTER, name="sessions", transform=sessions),
    replace(COUNTER, name="sliding", transform=sliding),
    replace(COUNTER, name="pages", transform=pages),
    find_pipeline("browser-stats-stateful"),
]


@dataclass(frozen=True)
class World:
    """Events in the order of their arrival, where the archive's batches end, and a range."""

    events: list[tuple[int, int]]
    cut: int
    range: tuple[int, int]
    chunks: int


def world(chance: random.Random) -> World:
    """Whole minutes more often than not: windows begin and end there."""

    def second(most: int) -> int:
        return chance.choice([chance.randint(0, most) * 60, chance.randint(0, most * 60)])

    start = second(50)
    return World(
        events=[(chance.randint(1, 2), second(50)) for _ in range(chance.randint(20, 40))],
        cut=chance.randint(0, 40),
        range=(start, start + max(1, second(20))),
        chunks=chance.randint(1, 2),
    )


@pytest.mark.parametrize("pipeline", CASES, ids=lambda pipeline: pipeline.name)
def test_a_range_is_what_the_stream_says(
    spark: SparkSession, tmp_path: Path, pipeline: Pipeline
) -> None:
    """Each world on a day of its own, so that one stream and one archive show them all."""
    seed = random.randrange(2**32)
    worlds = [world(random.Random(seed + n)) for n in range(WORLDS)]
    compare(spark, pipeline, tmp_path, worlds)


def compare(spark: SparkSession, pipeline: Pipeline, folder: Path, worlds: list[World]) -> None:
    """Each world's range, over one archive that got all events as they came."""
    home = Settings(home=folder)
    days = [rows_of(world, day) for day, world in enumerate(worlds)]
    # some of each world comes in the second batch, whatever its event time
    early = [row for world, rows in zip(worlds, days, strict=True) for row in rows[: world.cut]]
    late = [row for world, rows in zip(worlds, days, strict=True) for row in rows[world.cut :]]
    archive = fill_archive(spark, pipeline, home, [early, late])
    logic = Logic.of(spark, pipeline, home, archive)
    said = stream(spark, logic, folder, [row for rows in days for row in rows]).persist()
    for day, world in enumerate(worlds):
        asked = EventTimeRange(at(world.range[0], day), at(world.range[1], day))
        owned = whole_results(asked, logic.shape)
        chunks = cut(owned, logic.shape, owned.length / world.chunks)
        found = [text for chunk in chunks for text in as_json(logic.chunk_results(chunk))]
        assert sorted(found) == sorted(as_json(said.where(belongs(logic.shape, owned)))), world


def at(second: int, day: int = 0) -> datetime:
    return START + timedelta(days=day, seconds=second)


def rows_of(world: World, day: int) -> list[dict[str, Any]]:
    return [
        row_of(f"e-{n:02}", visit, at(second, day))
        for n, (visit, second) in enumerate(world.events)
    ]


def row_of(event: str, visit: int, time: datetime) -> dict[str, Any]:
    """An event with the fields that all cases together have; each schema takes its own."""
    return {
        "event_id": event,
        **dict.fromkeys(("visit_id", "userId"), visit),
        **{name: time.isoformat() for name in ("event_time", "eventTime")},
        "browser": f"browser-{visit}",
    }


def stream(
    spark: SparkSession, logic: Logic, folder: Path, events: list[dict[str, Any]]
) -> DataFrame:
    """All results of a stream that got the events in time."""
    schema = logic.decoder.schema
    name = logic.pipeline.event_time
    ordered = sorted(events, key=lambda row: str(row[name]))
    middle = len(ordered) // 2
    # the last event closes every window
    far = row_of("far", 9, datetime(2026, 1, 1, tzinfo=timezone.utc))
    for number, part in enumerate([ordered[:middle], ordered[middle:], [far]]):
        rows = spark.createDataFrame(
            [{**row, name: datetime.fromisoformat(row[name])} for row in part], schema
        )
        rows.coalesce(1).write.mode("append").parquet(str(folder / "in" / str(number)))
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    query = (
        logic.pipeline.query(source.parquet(str(folder / "in" / "*")))
        .writeStream.format("memory")
        .queryName("truth")
        .outputMode("append")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table("truth")


def as_json(rows: DataFrame) -> list[str]:
    return [row[0] for row in rows.select(F.to_json(F.struct("*"))).collect()]


def test_sessions_are_followed_as_far_as_they_go(spark: SparkSession, tmp_path: Path) -> None:
    """One visit that never pauses for five minutes: the look-back finds its beginning."""
    pipeline = CASES[1]
    home = Settings(home=tmp_path)
    visit = [{"visit_id": 1, "event_time": at(60 * 4 * n).isoformat()} for n in range(60)]
    other = [{"visit_id": 2, "event_time": at(60 * n).isoformat()} for n in (120, 122, 200)]
    logic = Logic.of(
        spark,
        pipeline,
        home,
        fill_archive(spark, pipeline, home, [visit[::2], other + visit[1::2]]),
    )
    asked = EventTimeRange(at(60 * 120), at(60 * 121))
    (chunk,) = cut(asked, logic.shape)
    reach = logic.reach(chunk).reads
    assert reach.start < at(0) - timedelta(minutes=5)
    assert reach.end == at(60 * 4 * 59) + timedelta(minutes=5)
    found = logic.chunk_results(chunk).select("visit_id", "count").collect()
    assert sorted(map(tuple, found)) == [(1, 60), (2, 2)]
