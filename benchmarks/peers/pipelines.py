"""The works as pipelines of Ebbtide: what a user writes, run with `ebbtide run` and `archive`."""

from __future__ import annotations

import os
from dataclasses import replace

from ebbtide.pipeline import Delta, Kafka
from ebbtide.systems.early_writer import pipeline as early_writer
from ebbtide.systems.stream_reprocessor import pipeline as stream_reprocessor

_SCHEMA = "event_id STRING, visit_id INT, event_time TIMESTAMP, page STRING"
_source = Kafka(os.environ["BENCH_TOPIC"], schema=_SCHEMA)
_sink = Kafka(os.environ["BENCH_OUT"])

windows = replace(
    stream_reprocessor.pipeline, name="windows", source=_source, sink=_sink, archive=Delta("visits")
)
visits = replace(early_writer.pipeline, name="visits", source=_source, sink=_sink)
