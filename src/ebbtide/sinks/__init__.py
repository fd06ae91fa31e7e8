"""A query's rows in, a stream writer out: how Spark writes Kafka, Delta, files and the console."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.config import Settings
from ebbtide.pipeline import Console, Delta, Files, ForeachBatch, Kafka, Pipeline, Sink
from ebbtide.sinks import kafka


def writer(
    rows: DataFrame, pipeline: Pipeline, settings: Settings, timeline: str
) -> DataStreamWriter:
    """A writer of the pipeline's results; checkpoint, trigger and output mode are the runner's.

    The rows are results already, unless the pipeline sees one batch at a time. `timeline` is the
    checkpoint's: records in Kafka carry its name.
    """
    headers = {kafka.PIPELINE_HEADER: pipeline.name, kafka.TIMELINE_HEADER: timeline}
    if pipeline.scope == "stream":
        return _stream_writer(rows, pipeline.sink, settings, headers)

    def write(batch: DataFrame, number: int) -> None:
        said = headers | {kafka.BATCH_HEADER: str(number)}
        _write_batch(pipeline.query(batch), number, pipeline.sink, settings, said)

    return rows.writeStream.foreachBatch(write)


def _write_batch(
    rows: DataFrame, number: int, sink: Sink, settings: Settings, headers: Mapping[str, str]
) -> None:
    match sink:
        case Kafka():
            kafka.write(rows, sink, settings, headers)
        case ForeachBatch(write=write):
            write(rows, number)
        case _:
            raise AssertionError(sink)


def _stream_writer(
    rows: DataFrame, sink: Sink, settings: Settings, headers: Mapping[str, str]
) -> DataStreamWriter:
    match sink:
        case Kafka():
            return kafka.writer(rows, sink, settings, headers)
        case Delta():
            path = settings.table(sink.path)
            return rows.writeStream.format("delta").option("path", path).options(**sink.options)
        case Files():
            files = rows.writeStream.format(sink.format).option("path", sink.location)
            return files.options(**sink.options)
        case ForeachBatch(write=write):
            return rows.writeStream.foreachBatch(write)
        case Console():
            return (
                rows.writeStream.format("console")
                .option("numRows", sink.rows)
                .option("truncate", sink.truncate)
            )
