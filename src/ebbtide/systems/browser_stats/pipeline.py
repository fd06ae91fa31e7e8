"""The browser statistics: visits of each browser per five minutes, by batch or across batches."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.pipeline import Delta, Kafka, Pipeline

SOURCE = Kafka("visits", schema="userId BIGINT, page STRING, eventTime TIMESTAMP, browser STRING")
KEY = "to_json(struct(browser, window.start))"
"""The key of a message: a browser and its window, as JSON."""


def count_by_browser(visits: DataFrame) -> DataFrame:
    """How many visits each browser had in each five minutes, and when the last of them was."""
    return visits.groupBy("browser", F.window("eventTime", "5 minutes")).agg(
        F.count("*").alias("count"), F.max("eventTime").alias("last_event_time_in_window")
    )


stateless = Pipeline(
    "browser-stats-stateless",
    source=SOURCE,
    event_time="eventTime",
    scope="batch",
    transform=count_by_browser,
    sink=Kafka("browser-stats-stateless", key=KEY),
)

stateful = Pipeline(
    "browser-stats-stateful",
    source=SOURCE,
    event_time="eventTime",
    watermark="20 minutes",
    transform=count_by_browser,
    sink=Kafka("browser-stats-stateful", key=KEY),
    output_mode="update",
    archive=Delta("browser-visits"),
)
