"""The batch reprocessor: write the number of visits per ten minutes of event time to a topic."""

from __future__ import annotations

from ebbtide.pipeline import Delta, Kafka, Pipeline
from ebbtide.systems.stream_reprocessor.pipeline import count_by_window

pipeline = Pipeline(
    "visits-counter",
    source=Kafka(
        "visits", schema="event_id STRING, visit_id BIGINT, event_time TIMESTAMP, page STRING"
    ),
    event_time="event_time",
    watermark="10 minutes",
    transform=count_by_window,
    sink=Kafka("visits_counter", key="window.start"),
    archive=Delta("visits"),
    output_mode="append",
)
