"""A function of the user as a sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ebbtide.checks import Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors.base import Connector, SinkConnector, SinkPlace
from ebbtide.connectors.streams import SparkSink
from ebbtide.pipeline import ForeachBatch, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class ForeachBatchSink(SinkConnector[ForeachBatch]):
    """A function of which nobody knows what it writes, and where."""

    spark_name = "ForeachBatchSink"

    hint = "If it writes a Delta table, name that with --sink-table."

    def place(self, sink: ForeachBatch, settings: Settings) -> SinkPlace:
        return SinkPlace(sink.kind, "its foreachBatch function")

    def recognize(self, name: str, options: Mapping[str, str]) -> SinkPlace | None:
        matches = name.replace("_", "") == "foreachbatch"
        return SinkPlace("foreach-batch", "its foreachBatch function") if matches else None

    def lacks_place(self, place: SinkPlace) -> bool:
        return True

    def format_replay(self, sink: ForeachBatch, batches: str, check: Check) -> str:
        return f"the foreachBatch function gets {batches} again"

    def check_reprocess(
        self, sink: ForeachBatch, pipeline: Pipeline, *, dated: bool = True
    ) -> Check:
        return CheckKind.OUTPUT.refuse("a function of the pipeline's own, which gets batches only")


class ForeachBatchOutput(SparkSink[ForeachBatch]):
    """A function as Spark calls it; what it reads of its batch is not its output."""

    is_output = False

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        return rows.writeStream.foreachBatch(self.sink.write)

    def write_batch(self, rows: DataFrame, number: int, headers: Mapping[str, str]) -> None:
        self.sink.write(rows, number)


SINK = ForeachBatchOutput
CONNECTOR = Connector(
    "foreach-batch", "its foreachBatch function", sink=ForeachBatchSink(), streams=__name__
)
