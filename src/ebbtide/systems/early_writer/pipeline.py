"""The early writer: report the pages of each visit so far, and again when the visit has ended."""

from __future__ import annotations

from pyspark.sql import DataFrame

from ebbtide.pipeline import Console, Delta, Kafka, Pipeline, Sessions
from ebbtide.runtime import session
from ebbtide.systems.early_writer.adapter import report_visits
from ebbtide.systems.early_writer.fold import GAP


def count_pages(visits: DataFrame) -> DataFrame:
    """How many pages each visit has seen, and whether it has ended."""
    return report_visits(visits, "visit_id", "event_time")


pipeline = Pipeline(
    "visits-early-writer",
    source=Kafka(
        "visits", schema="event_id STRING, visit_id INT, event_time TIMESTAMP, page STRING"
    ),
    event_time="event_time",
    watermark="15 minutes",
    transform=count_pages,
    sink=Console(rows=1_000),
    archive=Delta("visits"),
    output_mode="update",
    sessions=Sessions("visit_id", GAP),
    conf={
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": session.ROCKSDB,
    },
)
