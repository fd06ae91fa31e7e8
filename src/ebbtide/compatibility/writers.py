"""What a function of the user's returned, and what a writer that was not started would do."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.compatibility.plans import items, private_field
from ebbtide.connectors import SinkPlace, streams


@dataclass(frozen=True)
class Written:
    """The rows of a query, and where a writer would write them."""

    rows: DataFrame
    output_mode: str | None = None
    sink: SinkPlace | None = None
    functions: tuple[str, ...] = ()
    is_pipeline: bool = False


def describe_written(result: DataFrame | DataStreamWriter) -> Written:
    """Take apart rows or a writer."""
    if isinstance(result, DataFrame):
        return Written(result)
    writer = result._jwrite
    options = {
        str(pair._1()).lower(): str(pair._2())
        for pair in items(private_field(writer, "extraOptions").toSeq())
    }
    source = str(private_field(writer, "source")).lower()
    mode = str(private_field(writer, "outputMode").toString()).lower()
    functions = ("foreach",) if source.startswith("foreach") else ()
    return Written(result._df, mode, streams.recognize_write(source, options), functions)
