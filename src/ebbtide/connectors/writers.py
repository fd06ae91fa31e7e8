"""A query's rows in, a stream writer out: how Spark writes Kafka, Delta, files and the console."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.config import Settings
from ebbtide.connectors.digests import HASH, observe_output, with_hash
from ebbtide.connectors.kafka import spark_sink as kafka
from ebbtide.pipeline import Console, Delta, Files, ForeachBatch, Kafka, Pipeline, Sink


def writer(
    rows: DataFrame, pipeline: Pipeline, settings: Settings, timeline: str
) -> DataStreamWriter:
    """A writer of the pipeline's results; checkpoint, trigger and output mode are the runner's.

    The rows are results already, unless the pipeline sees one batch at a time. `timeline` is the
    checkpoint's: records in Kafka carry its name.
    """
    headers = {kafka.PIPELINE_HEADER: pipeline.name, kafka.TIMELINE_HEADER: timeline}
    if pipeline.scope == "stream":
        return _stream_writer(observed(rows, pipeline, headers), pipeline.sink, settings)

    def write(batch: DataFrame, number: int) -> None:
        said = headers | {kafka.BATCH_HEADER: str(number)}
        _write_batch(pipeline.query(batch), number, pipeline.sink, settings, said)

    return rows.writeStream.foreachBatch(write)


def observed(
    rows: DataFrame, pipeline: Pipeline, headers: Mapping[str, str] | None = None
) -> DataFrame:
    """What the sink gets; where that is the output, its digest is in each batch's progress.

    What a function of the user's reads of its batch, in part or twice, is not its output.
    """
    sink = pipeline.sink
    if pipeline.scope == "batch" or isinstance(sink, ForeachBatch):
        return rows
    if not isinstance(sink, Kafka):
        return observe_output(with_hash(rows)).drop(HASH)
    # the headers go below, and the hash stays, which Kafka's writer passes over: so each batch has
    # one step less to plan, to compile and to run
    records = with_hash(kafka.to_records(rows, sink))
    return observe_output(kafka.with_headers(records, headers) if headers else records)


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
