"""The console as a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.checks import Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors.base import Connector, SinkConnector, SinkPlace
from ebbtide.connectors.streams import Provenance, SparkSink
from ebbtide.pipeline import Console, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class ConsoleSink(SinkConnector[Console]):
    """It shows whatever it is given."""

    spark_name = "ConsoleTable"

    def place(self, sink: Console, settings: Settings) -> SinkPlace:
        return SinkPlace(sink.kind, "the console")

    def format_replay(self, sink: Console, batches: str, check: Check) -> str:
        return f"the console shows the output of {batches} again"

    def check_reprocess(self, sink: Console, pipeline: Pipeline, *, dated: bool = True) -> Check:
        return CheckKind.OUTPUT.ok("the console shows the results")


class ConsoleOutput(SparkSink[Console]):
    """The console as Spark writes it."""

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        writer = rows.writeStream.format("console").option("numRows", self.sink.rows)
        return writer.option("truncate", self.sink.truncate)

    def write_chunk(self, rows: DataFrame, by: Provenance, number: int) -> None:
        rows.show(self.sink.rows, self.sink.truncate)


SINK = ConsoleOutput
CONNECTOR = Connector("console", "the console", sink=ConsoleSink(), streams=__name__)
