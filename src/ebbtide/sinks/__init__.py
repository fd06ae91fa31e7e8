"""Result rows in, a stream writer out: how Spark writes Kafka, Delta, files and the console."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.config import Settings
from ebbtide.pipeline import Console, Delta, Files, Kafka, Sink
from ebbtide.sinks import kafka


def writer(rows: DataFrame, sink: Sink, settings: Settings) -> DataStreamWriter:
    """A writer to the sink; checkpoint, trigger and output mode are the runner's."""
    match sink:
        case Kafka():
            return kafka.writer(rows, sink, settings)
        case Delta():
            path = settings.table(sink.path)
            return rows.writeStream.format("delta").option("path", path).options(**sink.options)
        case Files():
            path = sink.path if "://" in sink.path else str(Path(sink.path).absolute())
            return rows.writeStream.format(sink.format).option("path", path).options(**sink.options)
        case Console():
            return (
                rows.writeStream.format("console")
                .option("numRows", sink.rows)
                .option("truncate", sink.truncate)
            )
