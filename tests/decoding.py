"""Compare what Ebbtide's decoder reads of records with what Spark decodes, value by value."""

from __future__ import annotations

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.connectors.spark.records import Decoder, parse_schema
from tests import json_records


def decoder() -> Decoder:
    schema = parse_schema(json_records.SCHEMA, "event_time", "the test")
    return Decoder(schema, tuple(schema.names), "event_time")


def compare(spark: SparkSession, records: list[bytes | None], *, label: str) -> int:
    """How many records are read; each of them must be good, and as Spark decodes it."""
    rows = [(None if value is None else bytearray(value),) for value in records]
    frame = spark.createDataFrame(rows, "value BINARY").repartition(2)
    plain, names = decoder(), decoder().schema.names
    reader = plain.with_reader(spark).reader
    assert reader is not None
    frame = frame.withColumn("ours", reader)
    keep = {"value": F.col("value"), "ours": F.col("ours")}
    keep["spark"] = F.struct(*(F.col("_ebbtide_record")[name].alias(name) for name in names))
    judged = plain.judge(frame, keep).where(F.col("ours").isNotNull()).cache()
    try:
        is_same = F.col("_ebbtide_time").isNotNull()
        for name in names:
            ours, theirs = (_exact(F.col(side)[name], name) for side in ("ours", "spark"))
            is_same &= ours.eqNullSafe(theirs)
        wrong = judged.where(~is_same).limit(3).collect()
        assert not wrong, (label, wrong)
        return judged.count()
    finally:
        judged.unpersist()


def _exact(field: Column, name: str) -> Column:
    """A value such that two are equal only if all bits are; 0.0 and -0.0 differ as text."""
    return field.cast("string") if name == "price" else field
