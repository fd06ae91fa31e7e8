"""The stream runner without a broker: files and Delta in, files, Delta and the console out."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide import Console, Delta, Files, ForeachBatch, Kafka, Pipeline
from ebbtide.config import Settings
from ebbtide.connectors.kafka.spark import to_records
from ebbtide.errors import BatchFailedError, EbbtideError, UsageError
from ebbtide.rewind.lease import read_lease
from ebbtide.runtime.stream import BatchReport, StreamOptions, run_stream
from ebbtide.storage import open_writable
from tests.leases import ELSEWHERE, plant

SCHEMA = "visit_id INT, event_time TIMESTAMP"


pytestmark = pytest.mark.usefixtures("one_session")


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder, "1.json", [(1, "07:00"), (2, "07:05"), (3, "07:12")])
    return folder


def write(folder: Path, name: str, rows: list[tuple[int, str]]) -> None:
    lines = [json.dumps({"visit_id": n, "event_time": f"2025-09-04T{at}:00"}) for n, at in rows]
    (folder / f".{name}").write_text("\n".join(lines))
    (folder / f".{name}").rename(folder / name)


def pipeline(source: Any, sink: Any, **more: Any) -> Pipeline:
    return replace(
        Pipeline(
            "visits-copy",
            source=source,
            event_time="event_time",
            transform=lambda rows: rows,
            sink=sink,
        ),
        **more,
    )


def run(pipe: Pipeline, settings: Settings, checkpoint: Path, **options: Any) -> list[BatchReport]:
    reports: list[BatchReport] = []
    run_stream(
        pipe,
        settings,
        StreamOptions(str(checkpoint), available_now=True, **options),
        on_batch=reports.append,
    )
    return reports


def test_files_to_files(
    spark: SparkSession, settings: Settings, visits: Path, tmp_path: Path
) -> None:
    pipe = pipeline(Files(str(visits), schema=SCHEMA), Files(str(tmp_path / "out"), "parquet"))
    assert [(r.id, r.rows) for r in run(pipe, settings, tmp_path / "c")] == [(0, 3)]
    write(visits, "2.json", [(4, "07:30")])
    assert [(r.id, r.rows) for r in run(pipe, settings, tmp_path / "c")] == [(1, 1)]
    assert spark.read.parquet(str(tmp_path / "out")).count() == 4


def test_files_to_delta_to_delta(
    spark: SparkSession, settings: Settings, visits: Path, tmp_path: Path
) -> None:
    first = pipeline(Files(str(visits), schema=SCHEMA), Delta("copied"))
    run(first, settings, tmp_path / "c1")
    second = pipeline(
        Delta("copied"),
        Delta(str(tmp_path / "counted")),
        watermark="10 minutes",
        output_mode="complete",
        transform=lambda rows: rows.groupBy(F.window("event_time", "10 minutes")).count(),
    )
    run(second, settings, tmp_path / "c2")
    counted = spark.read.format("delta").load(str(tmp_path / "counted")).orderBy("window")
    assert [row["count"] for row in counted.collect()] == [2, 1]


def test_a_failing_batch_is_named_and_runs_again(
    settings: Settings, visits: Path, tmp_path: Path
) -> None:
    @F.udf("int")
    def fails(visit: int) -> int:
        if visit == 3:
            raise ValueError(f"visit {visit} is odd")
        return visit

    good = pipeline(Files(str(visits), schema=SCHEMA), Files(str(tmp_path / "out"), "parquet"))
    bad = replace(good, transform=lambda rows: rows.withColumn("visit_id", fails("visit_id")))
    with pytest.raises(BatchFailedError) as caught:
        run(bad, settings, tmp_path / "c")
    assert str(caught.value).startswith(
        "Batch 0 of visits-copy failed: ValueError: visit 3 is odd. The next start runs it again."
    )
    assert "\n" not in str(caught.value)
    assert [(r.id, r.rows) for r in run(good, settings, tmp_path / "c")] == [(0, 3)]


def test_a_row_without_event_time_fails_its_batch(
    settings: Settings, visits: Path, tmp_path: Path
) -> None:
    (visits / "2.json").write_text('{"visit_id": 5}')
    pipe = pipeline(Files(str(visits), schema=SCHEMA), Files(str(tmp_path / "out"), "parquet"))
    with pytest.raises(BatchFailedError, match="pipeline visits-copy reads has no event_time"):
        run(pipe, settings, tmp_path / "c")


def test_a_file_that_does_not_fit_fails_its_batch(
    settings: Settings, visits: Path, tmp_path: Path
) -> None:
    (visits / "2.json").write_text('{"visit_id": "x", "event_time": "2025-09-04T07:00:00"}')
    pipe = pipeline(Files(str(visits), schema=SCHEMA), Files(str(tmp_path / "out"), "parquet"))
    with pytest.raises(BatchFailedError, match="Batch 0 of visits-copy failed"):
        run(pipe, settings, tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (
            {"transform": lambda rows: rows.select("colour")},
            {},
            "does not run as a stream: .*colour",
        ),
        (
            {"transform": lambda rows: rows.groupBy("visit_id").count()},
            {},
            "does not run as a stream",
        ),
        ({}, {"max_offsets_per_trigger": 5}, "for Kafka sources"),
        ({"source": Files("nowhere", schema=SCHEMA)}, {}, "There is no folder nowhere"),
        ({"source": Delta("nowhere")}, {}, "no Delta table to read at"),
        ({"source": Files("x", schema="a INT")}, {}, "event_time TIMESTAMP as event time"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(
    settings: Settings,
    visits: Path,
    tmp_path: Path,
    change: dict[str, Any],
    options: dict[str, Any],
    says: str,
) -> None:
    pipe = pipeline(Files(str(visits), schema=SCHEMA), Console())
    with pytest.raises(EbbtideError, match=says) as caught:
        run(replace(pipe, **change), settings, tmp_path / "c", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_lease_counts_until_the_end_of_a_long_last_batch(
    settings: Settings,
    visits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_taken: bool,
) -> None:
    """It is renewed meanwhile; if another host takes it, the query is stopped and the run fails."""
    monkeypatch.setattr("ebbtide.rewind.lease._RENEW_SECONDS", 0.1)
    folder = open_writable(str(tmp_path / "c"))

    def renewals() -> int:
        return getattr(read_lease(folder), "renewals", 0)

    def last(_rows: DataFrame, _number: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)  # by then nothing but the end of this batch is waited for
        if is_taken:
            held = read_lease(folder)
            assert held is not None
            plant(folder, replace(ELSEWHERE, number=held.number + 1))
            time.sleep(2)
            return
        before, deadline = renewals(), time.monotonic() + 30
        while renewals() < before + 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert renewals() >= before + 3

    pipe = pipeline(Files(str(visits), schema=SCHEMA), ForeachBatch(last))
    options = StreamOptions(str(tmp_path / "c"))
    if not is_taken:
        assert run_stream(pipe, settings, options).last_batch == 0
        return
    with pytest.raises(EbbtideError, match="was taken over by a process on host elsewhere"):
        run_stream(pipe, settings, options)
    # whether Spark had begun to commit by then, nobody can say (docs/adr/020)
    assert read_lease(folder).host == "elsewhere"  # type: ignore[union-attr]


def test_two_triggers_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        StreamOptions(available_now=True, trigger="5 seconds")


def test_kafka_records(spark: SparkSession) -> None:
    rows: DataFrame = spark.sql(
        "SELECT named_struct('start', TIMESTAMP '2025-09-04 07:00:00') AS window, 3 AS count"
    )
    record = to_records(rows, Kafka("out", key="window.start")).collect()[0]
    assert record.key == "2025-09-04T07:00:00.000Z"
    assert record.value == '{"window":{"start":"2025-09-04T07:00:00.000Z"},"count":3}'
    assert to_records(rows, Kafka("out", key="count")).collect()[0].key == "3"
    assert to_records(rows, Kafka("out")).columns == ["value"]
    ready = spark.sql("SELECT 'k' AS key, 'v' AS value")
    assert to_records(ready, Kafka("out")).collect()[0].value == "v"
