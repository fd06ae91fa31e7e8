"""What a function of the user's returned, and what a writer that was not started would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.connectors import SinkPlace
from ebbtide.storage import open_folder

_FILES = ("parquet", "json", "csv", "orc", "text", "avro")
_FOREACH = {"foreachbatch": "foreach-batch", "foreach_batch": "foreach-batch"}


@dataclass(frozen=True)
class Written:
    """The rows of a query, and where a writer would write them."""

    rows: DataFrame
    output_mode: str | None = None
    sink: SinkPlace | None = None
    functions: tuple[str, ...] = ()


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
    functions = ("foreachBatch",) if source in _FOREACH else ()
    return Written(result._df, mode, _find_sink(source, options), functions)


def _find_sink(source: str, options: dict[str, str]) -> SinkPlace:
    path = options.get("path", "")
    place = open_folder(path).url if path else ""
    if source in _FILES:
        return SinkPlace("files", f"{source} files {path}".strip(), place)
    if source == "delta":
        return SinkPlace("delta", f"Delta {path}".strip(), place)
    if source == "kafka":
        topic = options.get("topic", "")
        return SinkPlace("kafka", f"topic {topic}" if topic else "topics by row", topic)
    kind = _FOREACH.get(source, source)
    return SinkPlace(kind, "foreachBatch" if kind == "foreach-batch" else source)


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _private(writer: Any, name: str) -> Any:
    """A field of Spark's writer, which shows none, by Java's reflection."""
    field = writer.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer)
