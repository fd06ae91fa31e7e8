"""Which records are broken, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide import Delta, Kafka
from ebbtide.archive.layout import COLUMNS
from ebbtide.archive.write import to_rows
from ebbtide.connectors.spark.records import Decoder, parse_schema, used_fields
from ebbtide.errors import UsageError
from ebbtide.local.visits import BROKEN_SHAPES
from tests.unit.test_pipeline import PIPELINE

SCHEMA = "event_id STRING, visit_id INT, event_time TIMESTAMP, page STRING"
TIME = b'"event_time":"2025-09-04T07:00:00"'

GOOD = {
    "whole": b'{"event_id":"a","visit_id":1,' + TIME + b',"page":"home"}',
    "others missing": b"{" + TIME + b"}",
    "others null": b'{"visit_id":null,' + TIME + b',"page":null}',
    "unknown fields": b'{"colour":"red",' + TIME + b"}",
    "white space after": b"{" + TIME + b"} \r\n",
    "time with a zone": b'{"event_time":"2025-09-04T09:00:00+02:00"}',
    "900 KB": b"{" + TIME + b',"page":"' + b"x" * 900_000 + b'"}',
    "an object in it": b'{"page":{"name":"home"},' + TIME + b"}",
    "lists of objects in it": b'{"page":[{"a":[{}]}, {}],' + TIME + b',"more":[{} ]}\n',
    "braces in a string": b'{"page":"}{",' + TIME + b',"more":"}]}"}',
    "not a number": b'{"page":"}","more":NaN,' + TIME + b"}",
    "as deep as it can be": b'{"page":"}","more":' + b"[" * 999 + b"]" * 999 + b"," + TIME + b"}",
    "not ASCII": '{"page":"żółw 🐢",'.encode() + TIME + b"}",
}
BROKEN: dict[str, tuple[bytes | None, str]] = {
    "null": (None, "null value"),
    "empty": (b"", "empty value"),
    "blank": (b"  ", "not a JSON object"),
    "not JSON": (b"GET /", "not a JSON object"),
    "unclosed": (b"{" + TIME, "not a JSON object"),
    "an array": (b"[{" + TIME + b"}]", "not a JSON object"),
    "a number": (b"7", "not a JSON object"),
    "JSON null": (b"null", "not a JSON object"),
    "something after it": (b"{" + TIME + b"} and more", "not a JSON object"),
    "two objects": (b"{" + TIME + b"}{" + TIME + b"}", "not a JSON object"),
    "two lines": (b"{" + TIME + b"}\n{" + TIME + b"}", "not a JSON object"),
    "a second brace": (b"{" + TIME + b"}}", "not a JSON object"),
    "an end of a list": (b"{" + TIME + b"}]}", "not a JSON object"),
    "a second element": (b"{" + TIME + b"},{}", "not a JSON object"),
    "a second element that ends a list": (b"{" + TIME + b"},{}]}", "not a JSON object"),
    "a second field": (b"{" + TIME + b'},"more":{}}', "not a JSON object"),
    "text with a brace": (b"{" + TIME + b"} and more}", "not a JSON object"),
    "two objects with others in them": (b'{"a":{},' + TIME + b'}{"a":[{}]}', "not a JSON object"),
    "nested too deep": (BROKEN_SHAPES["nested too deep"](1), "not a JSON object"),
    "900 KB": (b"x" * 900_000, "not a JSON object"),
    "invalid UTF-8": (b'{"page":"\xff",' + TIME + b"}", "not valid UTF-8"),
    "UTF-16": ("{}".encode("utf-16"), "not valid UTF-8"),
    "time of a wrong type": (b'{"event_time":{"at":1}}', "field event_time does not convert"),
    "no time in it": (b'{"event_time":"yesterday"}', "field event_time does not convert"),
    "time missing": (b'{"visit_id":1}', "no event time (field event_time)"),
    "time null": (b'{"event_time":null}', "no event time (field event_time)"),
}
WRONG_VISIT = {
    "a string": b'{"visit_id":"x",' + TIME + b"}",
    "a fraction": b'{"visit_id":1.5,' + TIME + b"}",
    "too large": b'{"visit_id":5000000000,' + TIME + b"}",
}


def raw(spark: SparkSession, records: dict[str, bytes | None]) -> DataFrame:
    rows = [(name, None if value is None else bytearray(value)) for name, value in records.items()]
    return spark.createDataFrame(rows, "name STRING, value BINARY")


def decoder(*used: str) -> Decoder:
    return Decoder(parse_schema(SCHEMA, "event_time", "the test"), used, "event_time")


def test_good_records_become_rows(spark: SparkSession) -> None:
    rows = decoder("event_id", "visit_id", "page").decode(raw(spark, dict(GOOD))).collect()
    assert len(rows) == len(GOOD)
    assert {str(row.event_time) for row in rows} == {"2025-09-04 07:00:00"}
    assert rows[0].asDict()["event_id"] == "a"
    assert rows[0].asDict()["visit_id"] == 1


def test_broken_records_are_counted_and_explained(spark: SparkSession) -> None:
    every = dict(GOOD) | {name: value for name, (value, _) in BROKEN.items()}
    # the good 900 KB gave way to the broken one of the same name
    found = decoder().broken(raw(spark, every)).collect()
    assert {row["name"] for row in found} == set(BROKEN)
    for row in found:
        value, reason = BROKEN[row["name"]]
        assert row.reason.startswith(reason), row["name"]
        assert (None if row.value is None else bytes(row.value)) == value
    assert decoder().decode(raw(spark, every)).count() == len(every) - len(BROKEN)


def test_the_count_comes_in_the_same_pass(spark: SparkSession) -> None:
    every = dict(GOOD) | {f"broken {name}": value for name, (value, _) in BROKEN.items()}
    decoded = decoder().decode(raw(spark, every))
    plan = decoded._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Scan") == 1
    assert "CollectMetrics ebbtide" in plan


def test_a_record_is_judged_alike_in_the_archive(spark: SparkSession) -> None:
    every = dict(GOOD) | {f"broken {name}": value for name, (value, _) in BROKEN.items()}
    unset = {name: F.lit(None).cast(kind) for name, kind in COLUMNS.items()}
    records = raw(spark, every).withColumns({k: v for k, v in unset.items() if k != "value"})
    visits = replace(PIPELINE, source=Kafka("visits", schema=SCHEMA), archive=Delta("visits"))
    rows = to_rows(records.drop("event_time"), visits)
    assert rows.where("event_time IS NOT NULL").count() == len(GOOD)


def test_each_shape_of_the_generator_is_broken(spark: SparkSession) -> None:
    found = decoder().broken(raw(spark, {name: make(7) for name, make in BROKEN_SHAPES.items()}))
    assert sorted(row["name"] for row in found.select("name").collect()) == sorted(BROKEN_SHAPES)


def test_a_field_counts_only_if_the_pipeline_uses_it(spark: SparkSession) -> None:
    wrong = raw(spark, dict(WRONG_VISIT))
    assert decoder("page").broken(wrong).count() == 0
    assert decoder("page").decode(wrong).count() == len(WRONG_VISIT)
    reasons = {row.reason for row in decoder("visit_id").broken(wrong).collect()}
    assert reasons == {"field visit_id does not convert to INT"}


@pytest.mark.parametrize(
    ("query", "used"),
    [
        (lambda rows: rows, ["event_id", "visit_id", "event_time", "page"]),
        (lambda rows: rows.groupBy(F.window("event_time", "1 hour")).count(), ["event_time"]),
        (lambda rows: rows.where("visit_id > 3").select("page"), ["visit_id", "page"]),
        (lambda rows: rows.select(F.col("page").alias("visit_id")), ["page"]),
        (lambda rows: rows.select(F.to_json(F.struct("page"))), ["page"]),
        (
            lambda rows: (
                rows.withWatermark("event_time", "1 hour")
                .dropDuplicatesWithinWatermark(["visit_id"])
                .select("event_id")
            ),
            ["event_id", "visit_id", "event_time"],
        ),
    ],
)
def test_spark_tells_which_fields_a_pipeline_uses(
    spark: SparkSession, query: Callable[[DataFrame], DataFrame], used: list[str]
) -> None:
    schema = parse_schema(SCHEMA, "event_time", "the test")
    assert used_fields(spark, schema, query) == used


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("event_time TIMESTMP", "does not parse: .*TIMESTMP"),
        ("event_time", "does not parse"),
        ("visit_id INT", "event_time TIMESTAMP as event time, but it is not in it"),
        ("event_time STRING", "but it is STRING"),
    ],
)
@pytest.mark.usefixtures("spark")
def test_a_wrong_schema_is_explained(ddl: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_schema(ddl, "event_time", "pipeline x")


def test_observation_is_not_disturbed_by_ours(spark: SparkSession) -> None:
    theirs = Observation()
    rows = decoder().decode(raw(spark, dict(GOOD))).observe(theirs, F.count("*").alias("n"))
    assert rows.count() == len(GOOD)
    assert theirs.get == {"n": len(GOOD)}
