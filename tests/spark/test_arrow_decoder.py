"""Whatever Arrow decodes is what Spark decodes, value by value."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from ebbtide import Kafka
from ebbtide.connectors.progress import METRICS
from ebbtide.connectors.spark.arrow_choice import SETTING, choose_arrow
from ebbtide.connectors.spark.arrow_json import ArrowJson
from ebbtide.connectors.spark.records import Decoder, make_decoder, parse_schema
from ebbtide.errors import UsageError
from tests import json_records
from tests.unit.test_pipeline import PIPELINE

_COUNT = int(os.environ.get("EBBTIDE_RECORDS", "6000"))
"""How many records are generated; `make records` generates 600,000."""
_AT_ONCE, _BATCH = 6_000, 300


@pytest.fixture
def set_conf(spark: SparkSession) -> Iterator[Any]:
    before: dict[str, str | None] = {}

    def set_(name: str, value: str) -> None:
        before[name] = spark.conf.get(name, None)
        spark.conf.set(name, value)

    yield set_
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def decoder() -> Decoder:
    schema = parse_schema(json_records.SCHEMA, "event_time", "the test")
    return Decoder(schema, tuple(schema.names), "event_time")


def arrow(decoder: Decoder, *, is_utc: bool = True) -> ArrowJson:
    fields = tuple((name, decoder.schema[name].dataType.simpleString()) for name in decoder.parsed)
    return ArrowJson(fields, "event_time", is_utc)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris"])
def test_arrow_decodes_what_spark_decodes(spark: SparkSession, set_conf: Any, zone: str) -> None:
    set_conf("spark.sql.session.timeZone", zone)
    proven = 0
    for seed in range(max(1, _COUNT // _AT_ONCE)):
        records = list(json_records.records(seed, min(_COUNT, _AT_ONCE)))
        proven += _compare(spark, records, is_utc=zone == "UTC", label=f"seed {seed}, {zone}")
    # of the usual half, but for times without a zone elsewhere than in UTC
    assert proven > (0.35 * _COUNT if zone == "UTC" else 0)


def _compare(spark: SparkSession, records: list[bytes | None], *, is_utc: bool, label: str) -> int:
    """How many rows are proven; each of them must be Spark's, and good."""
    parser = arrow(decoder(), is_utc=is_utc)
    parts = [
        parser.parse(pa.array(records[at : at + _BATCH], pa.binary()))
        for at in range(0, len(records), _BATCH)
    ]
    proven = np.concatenate([part.proven for part in parts])
    rows = [(None if value is None else bytearray(value),) for value in records]
    fields = [F.col("_ebbtide_record")[name] for name in decoder().schema.names]
    micros = [
        F.unix_micros(field) if name in ("at", "event_time") else field
        for name, field in zip(decoder().schema.names, fields, strict=True)
    ]
    judged = decoder().judge(spark.createDataFrame(rows, "value BINARY"))
    theirs = judged.select(F.col("_ebbtide_time").isNotNull(), *micros).collect()
    columns = [
        pa.chunked_array(each).to_pylist()
        for each in zip(*(part.columns for part in parts), strict=True)
    ]
    for number in proven.nonzero()[0].tolist():
        good, *expected = theirs[number]
        assert good, (label, records[number])
        found = [column[number] for column in columns]
        assert list(map(_bits, found)) == list(map(_bits, expected)), (label, records[number])
    return int(proven.sum())


def _bits(value: object) -> object:
    return struct.pack("d", value) if isinstance(value, float) else value


def test_what_arrow_does_not_prove_is_decoded_by_spark(spark: SparkSession) -> None:
    records = [(None if v is None else bytearray(v),) for v in json_records.records(7, 600)]
    raw = spark.createDataFrame(records, "value BINARY").repartition(3)
    by_arrow = replace(decoder(), arrow=arrow(decoder()))
    plan = by_arrow.decode(raw)._jdf.queryExecution().executedPlan().toString()
    assert "MapInArrow" in plan
    # a far year does not fit into Python's times
    text = F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("text")
    texts = [
        sorted(row.text for row in each.decode(raw).select(text).collect())
        for each in (decoder(), by_arrow)
    ]
    assert texts[0] == texts[1]
    assert 0 < len(texts[0]) < len(records)


def test_a_checkpoint_goes_on_with_the_other_decoder(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    plain = decoder()
    counts: list[int] = []

    def collect(batch: DataFrame, _number: int) -> None:
        counts.extend(row["count"] for row in batch.collect())

    for number, chosen in enumerate((plain, replace(plain, arrow=arrow(plain)), plain)):
        text = "\n".join(f'{{"event_time":"2025-09-04T07:0{m}:00Z"}}' for m in range(number + 1))
        (tmp_path / "in" / f"{number}.json").write_text(text)
        raw = spark.readStream.text(str(tmp_path / "in")).select(F.col("value").cast("binary"))
        rows = chosen.decode(raw).withWatermark("event_time", "1 hour")
        query = (
            rows.groupBy(F.window("event_time", "10 minutes"))
            .count()
            .writeStream.foreachBatch(collect)
            .outputMode("update")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        observed = [each["observedMetrics"][METRICS]["records"] for each in query.recentProgress]
        assert sum(observed) == number + 1
    assert counts == [1, 3, 6]


@pytest.mark.parametrize(
    ("schema", "conf", "chosen"),
    [
        ("event_time TIMESTAMP, page STRING", {}, True),
        ("event_time TIMESTAMP, page STRING", {SETTING: "spark"}, False),
        ("event_time TIMESTAMP, page ARRAY<STRING>", {}, False),
        ("event_time TIMESTAMP, page DECIMAL(10,2)", {}, False),
        ("event_time TIMESTAMP_NTZ", {}, False),
        ("event_time TIMESTAMP", {"spark.sql.legacy.timeParserPolicy": "Legacy"}, False),
        ("event_time TIMESTAMP", {"spark.sql.execution.arrow.useLargeVarTypes": "True"}, False),
        ("event_time TIMESTAMP", {"spark.sql.execution.arrow.maxBytesPerBatch": "32m"}, True),
        ("event_time TIMESTAMP", {"spark.sql.execution.arrow.maxBytesPerBatch": "1500m"}, False),
    ],
)
def test_arrow_is_chosen_where_it_can_be_exact(
    spark: SparkSession, set_conf: Any, schema: str, conf: dict[str, str], chosen: bool
) -> None:
    for name, value in conf.items():
        set_conf(name, value)
    pipeline = replace(PIPELINE, source=Kafka("visits", schema=schema), transform=lambda rows: rows)
    assert (make_decoder(spark, pipeline, pipeline.query).arrow is not None) == chosen


def test_a_choice_that_cannot_be_met_is_refused(spark: SparkSession, set_conf: Any) -> None:
    lists = parse_schema("event_time TIMESTAMP, tags ARRAY<STRING>", "event_time", "x")
    set_conf(SETTING, "arrow")
    with pytest.raises(UsageError, match=r"field tags is ARRAY<STRING>.*Leave spark.ebbtide"):
        choose_arrow(spark, PIPELINE, lists)
    set_conf(SETTING, "fast")
    with pytest.raises(UsageError, match="Use auto, arrow or spark"):
        choose_arrow(spark, PIPELINE, StructType())
