"""The stream reprocessor: print the number of visits per ten minutes of event time."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.pipeline import Console, Delta, Kafka, Pipeline
from ebbtide.runtime import session


def count_by_window(visits: DataFrame) -> DataFrame:
    """The number of visits in each ten-minute window of event time."""
    return visits.groupBy(F.window("event_time", "10 minutes")).count()


pipeline = Pipeline(
    "visits-windows-counter",
    source=Kafka(
        "visits", schema="event_id STRING, visit_id INT, event_time TIMESTAMP, page STRING"
    ),
    event_time="event_time",
    watermark="20 minutes",
    transform=count_by_window,
    sink=Console(),
    archive=Delta("visits"),
    output_mode="update",
    conf={
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": session.ROCKSDB,
    },
)
