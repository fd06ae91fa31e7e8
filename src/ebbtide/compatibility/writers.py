"""What a function of the user's returned, and what a writer that was not started would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.connectors import SinkPlace, streams


@dataclass(frozen=True)
class Written:
    """The rows of a query, and where a writer would write them."""

    rows: DataFrame
    output_mode: str | None = None
    sink: SinkPlace | None = None
    functions: tuple[str, ...] = ()
    is_pipeline: bool = False


def describe(result: DataFrame | DataStreamWriter) -> Written:
    """Take apart rows or a writer."""
    if isinstance(result, DataFrame):
        return Written(result)
    writer = result._jwrite
    options = {
        str(pair._1()).lower(): str(pair._2())
        for pair in _items(_private(writer, "extraOptions").toSeq())
    }
    source = str(_private(writer, "source")).lower()
    mode = str(_private(writer, "outputMode").toString()).lower()
    functions = ("foreach",) if source.startswith("foreach") else ()
    return Written(result._df, mode, streams.recognize_write(source, options), functions)


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _private(writer: Any, name: str) -> Any:
    """A field of Spark's writer, which shows none, by Java's reflection."""
    field = writer.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer)
