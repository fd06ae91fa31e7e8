"""How a pipeline's results are written as a stream, whatever the sink."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.config import Settings
from ebbtide.connectors.registry import connector_of
from ebbtide.connectors.streams import PIPELINE_HEADER, TIMELINE_HEADER
from ebbtide.pipeline import Pipeline


def write_stream(
    rows: DataFrame, pipeline: Pipeline, settings: Settings, timeline: str
) -> DataStreamWriter:
    """A writer of the pipeline's results; checkpoint, trigger and output mode are the runner's.

    The rows are results already, unless the pipeline sees one batch at a time. `timeline` is the
    checkpoint's: records in Kafka carry its name.
    """
    headers = {PIPELINE_HEADER: pipeline.name, TIMELINE_HEADER: timeline}
    sink = connector_of(pipeline.sink).open_sink(pipeline.sink, settings)
    if pipeline.scope == "stream":
        return sink.stream_writer(sink.observed(rows, headers))

    def write(batch: DataFrame, number: int) -> None:
        sink.write_batch(pipeline.query(batch), number, headers)

    return rows.writeStream.foreachBatch(write)
