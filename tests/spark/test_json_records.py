"""Whatever Ebbtide's decoder reads is what Spark decodes, value by value."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from ebbtide import Kafka
from ebbtide.connectors.progress import METRICS
from ebbtide.connectors.spark import json_records as json_reader
from ebbtide.connectors.spark.json_records import SETTING, choose_reader
from ebbtide.connectors.spark.records import Decoder, make_decoder, parse_schema
from ebbtide.errors import UsageError
from tests import json_records
from tests.decoding import compare, decoder
from tests.unit.test_pipeline import PIPELINE

_COUNT = int(os.environ.get("EBBTIDE_RECORDS", "20000"))
"""How many records are generated; `make records` generates 600,000."""
_AT_ONCE = 20_000


@pytest.fixture
def set_conf(spark: SparkSession) -> Iterator[Any]:
    before: dict[str, str | None] = {}

    def set_(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield set_
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture
def compiled(set_conf: Any) -> None:
    """As in a user's session: ours interprets expressions, which is another path in Spark."""
    set_conf("spark.sql.codegen.wholeStage", "true")
    set_conf("spark.sql.codegen.factoryMode", "CODEGEN_ONLY")


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris"])
def test_what_is_read_is_what_spark_decodes(spark: SparkSession, set_conf: Any, zone: str) -> None:
    set_conf("spark.sql.session.timeZone", zone)
    read = 0
    for seed in range(max(1, _COUNT // _AT_ONCE)):
        records = list(json_records.records(seed, min(_COUNT, _AT_ONCE)))
        read += compare(spark, records, label=f"seed {seed}, {zone}")
    # the usual half, and some of the others
    assert read > 0.5 * _COUNT


@pytest.mark.usefixtures("compiled")
def test_a_field_that_may_not_be_null_is_null_as_from_json_gives_it(spark: SparkSession) -> None:
    kinds = ("STRING", "TINYINT", "INT", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP")
    fields = ", ".join(f"f{n} {kind} NOT NULL" for n, kind in enumerate(kinds))
    schema = parse_schema(f"event_time TIMESTAMP NOT NULL, {fields}", "event_time", "the test")
    plain = Decoder(schema, tuple(schema.names), "event_time")
    records = [b'{"event_time":"2025-09-04T07:00:00Z"}', b'{"event_time":null}', b"{}"]
    raw = spark.createDataFrame([(bytearray(each),) for each in records], "value BINARY")
    rows = [each.decode(raw.repartition(2)).collect() for each in (plain, plain.with_reader(spark))]
    assert rows[0] == rows[1]
    assert [list(row)[1:] for row in rows[1]] == [[None] * len(kinds)]


def test_a_field_keeps_its_comment(spark: SparkSession) -> None:
    """A table that a pipeline writes has it."""
    ddl = "event_time TIMESTAMP COMMENT 'when', page STRING COMMENT 'which page', id INT NOT NULL"
    schema = parse_schema(ddl, "event_time", "the test")
    plain = Decoder(schema, ("page", "id"), "event_time")
    ours, raw = plain.with_reader(spark), spark.createDataFrame([], "value BINARY")
    assert ours.reader is not None
    decoded = ours.decode(raw).schema
    assert decoded["page"].metadata == {"comment": "which page"}
    assert decoded.json() == plain.decode(raw).schema.json()


@pytest.mark.usefixtures("compiled")
def test_what_is_not_read_is_decoded_by_spark(spark: SparkSession) -> None:
    records = [(None if v is None else bytearray(v),) for v in json_records.records(7, 600)]
    raw = spark.createDataFrame(records, "value BINARY").repartition(3)
    ours = decoder().with_reader(spark)
    plan = ours.decode(raw)._jdf.queryExecution().executedPlan().toString()
    assert "JsonRecords" in plan
    # a far year does not fit into Python's times
    text = F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("text")
    texts = [
        sorted(row.text for row in each.decode(raw).select(text).collect())
        for each in (decoder(), ours)
    ]
    assert texts[0] == texts[1]
    assert 0 < len(texts[0]) < len(records)


@pytest.mark.parametrize(
    ("record", "is_read"),
    [
        (b'{"event_time":"2025-09-04T07:00:00Z"}', True),
        (b'{ "event_time" : "2025-09-04 07:00:00.5+02:00" , "id":7}', True),
        (b'{"event_time":"2025-09-04T07:00:00Z","name":"\\u00e9\\ud83d\\ude00\\/\\n"}', True),
        (b'{"event_time":"2025-09-04T07:00:00Z","other":{"a":[1,{"b":"}"}],"c":null}}', True),
        ('{"event_time":"2025-09-04T07:00:00Z","name":"żółw"}'.encode(), True),
        (b'{"event_time":"2025-09-04T07:00:00Z","price":0.1,"tiny":-128}', True),
        (b'{"event_time":"2025-09-04T07:00:00Z","price":12345678901234567890e-5}', True),
        (b'{"event_time":"2025-09-04T07:00:00Z","name":7}', False),
        (b'{"event_time":"2025-09-04T07:00:00Z","tiny":128}', False),
        (b'{"event_time":"2025-09-04T07:00:00Z","id":01}', False),
        (b'{"event_time":"2025-09-04T07:00:00Z","id":1,"id":2}', False),
        (b'{"event_time":"2025-09-04T07:00:00Z","\\u0069d":1}', False),
        (b'{"event_time":"2025-09-04T07:00:00Z","price":-0}', False),
        (b'{"event_time":"2025-09-04T07:00:00Z","name":"\\ud800"}', False),
        (b'{"event_time":"2025-09-04T07:00:00Z","name":"\xff"}', False),
        (b'{"event_time":"2025-09-04T07:00:00Z","other":\'x\'}', False),
        (b'{"event_time":"2025-09-04T07:00:00Z"} ', False),
        (b'{"event_time":"2025-09-04T07:00:00Z"}{}', False),
        (b'{"event_time":"2025-09-04"}', False),
        (b'{"event_time":null}', False),
        (b"{}", False),
        (b"", False),
        (None, False),
    ],
)
def test_what_is_read(spark: SparkSession, record: bytes | None, is_read: bool) -> None:
    """Too strict would be slow, and nothing else would show it."""
    reader = decoder().with_reader(spark).reader
    assert reader is not None
    frame = spark.createDataFrame([(record,)], "value BINARY")
    assert frame.select(reader.isNotNull()).collect()[0][0] == is_read


def test_a_checkpoint_goes_on_with_the_other_decoder(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    plain = decoder()
    counts: list[int] = []

    def collect(batch: DataFrame, _number: int) -> None:
        counts.extend(row["count"] for row in batch.collect())

    for number, chosen in enumerate((plain, plain.with_reader(spark), plain)):
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
        ("event_time TIMESTAMP, " + ", ".join(f"f{n} INT" for n in range(64)), {}, False),
    ],
)
def test_the_reader_is_chosen_where_it_can_be_exact(
    spark: SparkSession, set_conf: Any, schema: str, conf: dict[str, str], chosen: bool
) -> None:
    for name, value in conf.items():
        set_conf(name, value)
    pipeline = replace(PIPELINE, source=Kafka("visits", schema=schema), transform=lambda rows: rows)
    assert (make_decoder(spark, pipeline, pipeline.query).reader is not None) == chosen


def test_a_choice_that_cannot_be_met_is_refused(spark: SparkSession, set_conf: Any) -> None:
    lists = parse_schema("event_time TIMESTAMP, tags ARRAY<STRING>", "event_time", "x")
    set_conf(SETTING, "ebbtide")
    with pytest.raises(UsageError, match=r"field tags is ARRAY<STRING>.*Leave spark.ebbtide"):
        choose_reader(spark, lists, "event_time")
    set_conf(SETTING, "fast")
    with pytest.raises(UsageError, match="Use auto, ebbtide or spark"):
        choose_reader(spark, StructType(), "event_time")


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("Constructor ebbtide.JsonRecords([class java.lang.Integer]) does not exist"),
        TypeError("'JavaPackage' object is not callable"),
    ],
)
def test_spark_decodes_where_its_classes_or_our_jar_are_others(
    spark: SparkSession,
    set_conf: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """Such as a company's Spark, or a jar of another version named to spark-submit."""

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(json_reader, "_read_fields", fail)
    schema = parse_schema("event_time TIMESTAMP", "event_time", "x")
    assert choose_reader(spark, schema, "event_time") is None
    assert "Spark decodes all records itself" in caplog.text
    set_conf(SETTING, "ebbtide")
    with pytest.raises(UsageError, match="does not fit"):
        choose_reader(spark, schema, "event_time")
