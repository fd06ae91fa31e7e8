"""What a running query keeps about its batches, and the digest of what they wrote."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide import Console, Files, ForeachBatch, Kafka, Pipeline
from ebbtide.checkpoint import Timeline, read_checkpoint
from ebbtide.config import Settings
from ebbtide.connectors import connector_of
from ebbtide.connectors.kafka.spark import to_records
from ebbtide.connectors.progress import DIGEST, read_output
from ebbtide.connectors.spark.digests import HASH, observe_output, with_hash
from ebbtide.history import Entry, Output, kept_entries, read_history
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.runtime.stream import BatchReport, StreamOptions, run_stream
from ebbtide.storage import open_folder
from ebbtide.systems.early_writer.adapter import report_visits
from tests import cells
from tests.trees import in_the_way_of

SCHEMA = "visit_id INT, event_time TIMESTAMP"


def digest(rows: DataFrame) -> Output | None:
    """Of rows at rest."""
    seen = Observation()
    looked_at = observe_output(with_hash(rows), seen)
    looked_at.write.format("noop").mode("overwrite").save()
    return read_output({"observedMetrics": {DIGEST: seen.get}}) if looked_at is not rows else None


def test_the_order_of_rows_does_not_count(spark: SparkSession) -> None:
    rows = spark.range(100).selectExpr("id", "id % 7 AS day", "string(id) AS name")
    first = digest(rows)
    assert first is not None
    assert first.rows == 100
    assert digest(rows.orderBy(F.desc("name")).repartition(5)) == first
    assert digest(rows.where("id < 99")) != first
    assert digest(rows.where("id < 99").unionAll(rows.where("id = 98"))) != first, "a row twice"
    assert digest(rows.withColumnRenamed("day", "Day2")) != first, "another column"
    assert digest(rows.withColumn("day", F.col("day").cast("int"))) != first, "another type"
    none = digest(rows.where("id < 0"))
    assert none is not None
    assert none.rows == 0
    assert none == digest(rows.where("id > 100"))
    assert none == digest(rows.where("id < 0").select("id")), "no row has other columns"


def test_rows_that_are_all_the_same_do_not_overflow_their_sum(spark: SparkSession) -> None:
    same = digest(spark.range(100_000).select(F.lit("the same").alias("page")))
    assert same is not None
    assert same.rows == 100_000


SEVEN = datetime(2025, 9, 4, 7, tzinfo=timezone.utc)
STRUCT = "a STRUCT<x: INT, y: INT>"
DIFFERENT: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {
    "null beside a value": ("a INT, b INT", (None, 1), (1, None)),
    "null and an empty text": ("a STRING", ("",), (None,)),
    "null in a structure": (STRUCT, ((None, 1),), ((1, None),)),
    "an empty structure": (STRUCT, (None,), ((None, None),)),
    "null in a list": ("a ARRAY<INT>", ([None, 1],), ([1],)),
    "an empty list": ("a ARRAY<INT>", ([],), (None,)),
    "neighbouring lists": (
        "a ARRAY<STRING>, b ARRAY<STRING>",
        (["a"], ["b", "c"]),
        (["a", "b"], ["c"]),
    ),
    "a map": ("a MAP<STRING, INT>", ({"k": 1},), ({"k": 2},)),
    "a map in a list": ("a ARRAY<MAP<STRING, INT>>", ([{"k": 1}],), ([{"k": None}],)),
    "a microsecond in a list": (
        "a ARRAY<TIMESTAMP>",
        ([SEVEN],),
        ([SEVEN + timedelta(microseconds=1)],),
    ),
    "bytes": ("a BINARY", (b"\x00",), (b"\x01",)),
    "an amount": ("a DECIMAL(10, 2)", (Decimal("1.10"),), (Decimal("1.11"),)),
    "neighbouring texts": ("a STRING, b STRING", ("ab", "c"), ("a", "bc")),
}


def test_other_rows_have_another_digest(spark: SparkSession) -> None:
    alike = {
        name
        for name, (schema, first, second) in DIFFERENT.items()
        if digest(spark.createDataFrame([first, first], schema))
        == digest(spark.createDataFrame([first, second], schema))
    }
    assert alike == set()


def test_every_type_and_name_has_a_digest(spark: SparkSession) -> None:
    kinds = spark.sql(
        """SELECT 1Y AS a, 2S AS b, 3 AS c, 4L AS d, 5.5F AS e, 6.5D AS f, 7.77 AS g, true AS h,
        date'2025-09-04' AS i, timestamp'2025-09-04 07:00:00' AS j,
        timestamp_ntz'2025-09-04 07:00:00' AS k, interval 1 day AS l, interval 1 month AS m,
        x'ff' AS n, 'text' AS o, null AS p, parse_json('{"k": [1]}') AS q,
        struct(map('k', array(1)) AS `s.t`, null AS u) AS v,
        time'07:00:00' AS x, array(time'07:00:00') AS y, 'text' COLLATE UTF8_LCASE AS z,
        1 AS `dotted.name`, 2 AS `tick``ed`, 3 AS `Grüße`, char(65) AS w"""
    )
    assert digest(kinds) == digest(kinds.repartition(2))
    assert digest(spark.sql("SELECT 1 AS a, 2 AS A")) is None, "they cannot be told apart"
    assert digest(spark.sql("SELECT named_struct('a', 1, 'A', 2) AS s")) is None
    point = "st_geomfromwkb(x'0101000000000000000000F03F0000000000000040')"
    for shape in (point, f"array({point})", f"struct({point} AS p)", f"map(1, {point})"):
        assert digest(spark.sql(f"SELECT {shape} AS p")) is None, "the query runs without"
    # more nulls than a number has bits
    nulls = dict.fromkeys((f"c{n}" for n in range(66)), "null")
    wide = [nulls | {name: "1"} for name in ("c0", "c61", "c62", "c65")]
    rows = [", ".join(f"INT({value}) AS {name}" for name, value in row.items()) for row in wide]
    assert len({digest(spark.sql(f"SELECT {row}")) for row in rows}) == 4


def test_the_order_of_a_maps_entries_does_not_count(spark: SparkSession) -> None:
    maps = [
        "map('a', array(1), 'b', null)",
        "map('b', null, 'a', array(1))",
        "map('b', array(1), 'a', null)",
        "map('a', array(1))",
        "null",
        "map()",
    ]
    kind = "map<string, array<int>>"
    found = [digest(spark.sql(f"SELECT CAST({one} AS {kind}) AS m")) for one in maps]
    assert found[0] == found[1]
    assert len(set(found)) == 5


def test_of_records_what_is_sent_counts(spark: SparkSession) -> None:
    rows = spark.range(3)
    keys = (None, "id", "id % 2")
    assert len({digest(to_records(rows, Kafka("t", key=key))) for key in keys}) == 3

    def hashes(rows: DataFrame, key: str | None, headers: dict[str, str]) -> list[int]:
        sink = Kafka("t", key=key)
        found = connector_of(sink).open_sink(sink, Settings()).observed(rows, headers)
        assert found.columns == [*records.columns, HASH, *(["headers"] if headers else [])]
        return [row[HASH] for row in found.collect()]

    records = rows.selectExpr("string(id) AS key", "'{\"id\":' || id || '}' AS value")
    expected = [row[HASH] for row in with_hash(records).collect()]
    assert len(set(expected)) == 3
    # whether made here or brought along; that another timeline sends them is no difference
    for timeline in ({}, {"timeline": "a"}, {"timeline": "b"}):
        assert hashes(rows, "id", timeline) == expected == hashes(records, None, timeline)


KINDS = {
    **{
        name: (shape.build, shape.mode)
        for name, shape in cells.QUERIES.items()
        if name != "partitions"
    },
    "sessions": (
        lambda streams: report_visits(
            streams[0]
            .selectExpr("value AS visit_id", "at AS event_time")
            .withWatermark("event_time", "15 minutes"),
            "visit_id",
            "event_time",
        ),
        "update",
    ),
}
"""Every kind of query with state: a look at what it writes must not be what Spark refuses."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("fresh_stores")
def test_every_kind_of_query_is_seen(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    cells.write_input(tmp_path / "in", range(12))
    build, mode = KINDS[kind]
    written: dict[int, int] = {}

    def keep(batch: DataFrame, number: int) -> None:
        written[number] = len(batch.collect())

    with cells._settings(spark, {**cells.ROCKSDB, "spark.sql.shuffle.partitions": "2"}):
        streams = [cells._read(spark, tmp_path / "in", 12, False) for _ in range(2)]
        query = (
            observe_output(with_hash(build(streams)))
            .writeStream.outputMode(mode)
            .option("checkpointLocation", str(tmp_path / "c"))
            .foreachBatch(keep)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    reports = [json.loads(report.json) for report in query.recentProgress]
    outputs = {report["batchId"]: read_output(report) for report in reports}
    assert {number: output and output.rows for number, output in outputs.items()} == written
    assert sum(written.values()) > 0


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, minutes in enumerate([(0, 5, 12), (31, 8), (59,)]):
        lines = [
            json.dumps({"visit_id": n, "event_time": f"2025-09-04T07:{m:02d}:00"})
            for n, m in enumerate(minutes)
        ]
        (folder / f"{number}.json").write_text("\n".join(lines))
        os.utime(folder / f"{number}.json", (number, number))  # in this order
    return folder


def pipeline(visits: Path, sink: Any, **more: Any) -> Pipeline:
    return replace(
        Pipeline(
            "visits-copy",
            source=Files(str(visits), schema=SCHEMA, options={"maxFilesPerTrigger": "1"}),
            event_time="event_time",
            transform=count,
            watermark="1 minute",
            sink=sink,
        ),
        **more,
    )


def count(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("event_time", "10 minutes")).count()


def run(pipe: Pipeline, settings: Settings, checkpoint: Path) -> list[str]:
    said: list[str] = []
    options = StreamOptions(str(checkpoint), available_now=True)
    run_stream(pipe, settings, options, say=said.append)
    return said


def entries(checkpoint: Path) -> dict[int, Entry]:
    return dict(kept_entries(read_checkpoint(str(checkpoint))))


@pytest.mark.usefixtures("one_session")
def test_each_batch_is_kept_as_it_ran(
    spark: SparkSession, settings: Settings, visits: Path, tmp_path: Path
) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "c"
    pipe = pipeline(visits, Files(str(out), "parquet"))
    assert run(pipe, settings, checkpoint) == []
    found = entries(checkpoint)
    logged = read_checkpoint(str(checkpoint)).logs
    assert list(found) == [batch.id for batch in logged.batches]
    assert [entry.rows for entry in found.values()][:3] == [3, 2, 1]
    assert [entry.watermark for entry in found.values()][:3] == [
        None,
        "2025-09-04T07:11:00.000Z",
        "2025-09-04T07:30:00.000Z",
    ]
    assert {entry.timeline for entry in found.values()} == {"origin"}
    for batch, entry in found.items():
        assert entry.started < entry.ended
        assert json.loads(entry.sources[0] or "") == {"logOffset": min(batch, 2)}
        assert entry.durations["addBatch"] > 0
        assert entry.state[0]["operator"] == "stateStoreSave"
        assert entry.versions["spark"] == spark.version
        assert len(entry.code) == 16
    # what the sink holds of each batch has the digest that the history says
    for batch, entry in found.items():
        _, *added = (out / "_spark_metadata" / str(batch)).read_text().splitlines()
        paths = [json.loads(line)["path"] for line in added]
        assert digest(spark.read.parquet(*paths)) == entry.output, batch
    assert sum(entry.output.rows for entry in found.values() if entry.output) == 3


@pytest.mark.usefixtures("one_session")
def test_a_replay_has_the_same_digests_under_another_timeline(
    settings: Settings, visits: Path, tmp_path: Path
) -> None:
    checkpoint, pipe = tmp_path / "c", pipeline(visits, Console())
    run(pipe, settings, checkpoint)
    first = entries(checkpoint)
    apply_rewind(
        plan_rewind(RewindRequest(str(checkpoint), ToBatch(1), assume_stopped=True)),
        assume_stopped=True,
    )
    run(pipe, settings, checkpoint)
    again = entries(checkpoint)
    # the source has one batch now where it had two, so compare the one that kept its offsets
    assert again[1].output == first[1].output
    assert again[1].code == first[1].code
    name = Timeline.read(open_folder(str(checkpoint))).name
    assert [again[batch].timeline for batch in (0, 1, 2)] == ["origin", name, name]
    assert read_history(open_folder(str(checkpoint))).of(Timeline()) == first


@pytest.mark.usefixtures("one_session")
def test_what_a_function_reads_is_not_its_output(
    settings: Settings, visits: Path, tmp_path: Path
) -> None:
    """It may read its batch twice or in part: how many rows it wrote nobody knows."""

    def read_twice(rows: DataFrame, _number: int) -> None:
        rows.count()
        rows.head()

    run(pipeline(visits, ForeachBatch(read_twice)), settings, tmp_path / "c")
    assert {entry.output for entry in entries(tmp_path / "c").values()} == {None}


@pytest.mark.usefixtures("one_session")
def test_a_stream_goes_on_if_its_history_cannot_be_written(
    settings: Settings, visits: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "c" / ".ebbtide"
    notes.mkdir(parents=True)
    (notes / "history").write_text("in the way")
    said = run(pipeline(visits, Console()), settings, tmp_path / "c")
    (warned,) = [line for line in said if "history" in line]
    assert warned.startswith("Warning: The history cannot be written: ")
    assert "The stream continues" in warned
    assert (tmp_path / "c" / "commits" / "2").exists()


@pytest.mark.usefixtures("one_session")
def test_what_a_full_disk_did_not_take_is_written_later(
    settings: Settings, visits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.rewind.lease._RENEW_SECONDS", 0)
    said: list[str] = []
    with ExitStack() as full_disk:

        def fill_and_free(batch: BatchReport) -> None:
            if batch.id == 0:
                full_disk.enter_context(in_the_way_of(tmp_path / "c" / ".ebbtide"))
            elif batch.id == 2:
                full_disk.close()

        options = StreamOptions(str(tmp_path / "c"), available_now=True)
        pipe = pipeline(visits, Console())
        run_stream(pipe, settings, options, on_batch=fill_and_free, say=said.append)
    assert sorted(entries(tmp_path / "c")) == [0, 1, 2, 3]
    warnings = [line.split(":")[1].strip() for line in said if line.startswith("Warning")]
    assert len(warnings) == len(set(warnings))
    assert "The history cannot be written" in warnings
    assert "The history is written again." in said
