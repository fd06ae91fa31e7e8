"""A query's rows in, a stream writer out: how Spark writes Kafka, Delta, files and the console."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.config import Settings
from ebbtide.pipeline import Console, Delta, Files, ForeachBatch, Kafka, Pipeline, Sink
from ebbtide.sinks import kafka


def writer(rows: DataFrame, pipeline: Pipeline, settings: Settings) -> DataStreamWriter:
    """A writer of the pipeline's results; checkpoint, trigger and output mode are the runner's.

    The rows are results already, unless the pipeline sees one batch at a time.
    """
    if pipeline.scope == "stream":
        return _stream_writer(rows, pipeline.sink, settings)

    def write(batch: DataFrame, number: int) -> None:
        _write_batch(pipeline.query(batch), number, pipeline.sink, settings)

    return rows.writeStream.foreachBatch(write)


def _write_batch(rows: DataFrame, number: int, sink: Sink, settings: Settings) -> None:
    match sink:
        case Kafka():
            kafka.write(rows, sink, settings)
        case ForeachBatch(write=write):
            write(rows, number)
        case _:
            raise AssertionError(sink)


def _stream_writer(rows: DataFrame, sink: Sink, settings: Settings) -> DataStreamWriter:
    match sink:
        case Kafka():
            return kafka.writer(rows, sink, settings)
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
