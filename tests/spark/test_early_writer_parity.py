"""The early writer against Spark's own `transformWithState`, with one key for each visit."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.state_apis import visit_by_visit
from ebbtide.systems.early_writer.pipeline import pipeline
from ebbtide.testing import _settings

Event = tuple[int | None, datetime]
IDS = [1, 2, 3, -7, 2**31 - 1, None]
BATCHES = 6


def stream_of(chance: random.Random) -> list[list[Event]]:
    """Batches of events whose times are on a grid, so that timers are met exactly.

    Some events are late, some from before 1970, the others in years that pandas does not have. At
    last, one moves the watermark past all timers.
    """
    start = datetime(2300, 9, 4, tzinfo=timezone.utc)

    def event(minute: int) -> Event:
        if chance.random() < 0.05:
            return chance.choice(IDS), datetime(1969, 1, 1, tzinfo=timezone.utc)
        at = minute - chance.choice([0, 0, 0, 5, 10, 15, 20, 25, 60])
        return chance.choice(IDS), start + timedelta(minutes=at)

    minutes, batches = 0, []
    for _ in range(BATCHES):
        minutes += chance.choice([0, 5, 10, 25])
        batches.append([event(minutes) for _ in range(chance.randint(1, 12))])
    return [*batches, [(1, start + timedelta(days=400))]]


def write_files(folder: Path, batches: list[list[Event]]) -> None:
    schema = pa.schema({"visit_id": pa.int32(), "event_time": pa.timestamp("us", "UTC")})
    folder.mkdir()
    for number, batch in enumerate(batches):
        path = folder / f"{number:04}.parquet"
        columns = [list(column) for column in zip(*batch, strict=True)]
        pq.write_table(pa.table(columns, schema=schema), path)
        os.utime(path, (1_000 + number, 1_000 + number))  # Spark takes the oldest first


class Ran:
    """What a query wrote and dropped in each batch; it fails once after the batch `killed`."""

    def __init__(self, killed: int | None = None) -> None:
        self.rows: dict[int, list[tuple[Any, ...]]] = {}
        self.late: dict[int, int] = {}
        self._killed = killed

    def run(self, rows: DataFrame, checkpoint: Path) -> None:
        query = (
            rows.writeStream.foreachBatch(self._write)
            .outputMode("update")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            for progress in (json.loads(each.json()) for each in query._jsq.recentProgress()):
                (operator,) = progress["stateOperators"]
                self.late[progress["batchId"]] = operator["numRowsDroppedByWatermark"]

    def _write(self, rows: DataFrame, number: int) -> None:
        self.rows[number] = sorted(map(tuple, rows.collect()), key=str)
        if number == self._killed:
            self._killed = None
            raise RuntimeError("killed")


def test_the_same_reports_as_one_key_for_each_visit(spark: SparkSession, tmp_path: Path) -> None:
    """Batch by batch, and as many late events, through a restart and a batch that runs twice."""
    chance = random.Random(seed := random.randrange(2**32))
    write_files(tmp_path / "input", stream_of(chance))

    def rows(query: Callable[[DataFrame], DataFrame]) -> DataFrame:
        source = spark.readStream.schema("visit_id INT, event_time TIMESTAMP")
        return query(source.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "input")))

    def plain(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("event_time", str(pipeline.watermark))
        return visit_by_visit(timed.withColumn("ms", F.unix_millis("event_time")))

    due, ours = Ran(), Ran(killed=chance.randrange(BATCHES))
    with _settings(spark, pipeline.conf):
        due.run(rows(plain), tmp_path / "plain")
        with pytest.raises(StreamingQueryException, match="killed"):
            ours.run(rows(pipeline.query), tmp_path / "ours")
        ours.run(rows(pipeline.query), tmp_path / "ours")
    assert ours.rows == due.rows, seed
    assert ours.late == due.late, seed
    assert any(finished for said in due.rows.values() for _, _, finished in said), seed
