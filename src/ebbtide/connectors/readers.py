"""A pipeline's source in, its rows out: how Spark reads Kafka, Delta and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from ebbtide.config import Settings
from ebbtide.connectors.delta import spark_source as delta
from ebbtide.connectors.files import spark_source as files
from ebbtide.connectors.kafka import spark_source as kafka
from ebbtide.connectors.records import (
    Decoder,
    check_event_time,
    parse_schema,
    require_event_time,
    used_fields,
)
from ebbtide.errors import UsageError
from ebbtide.pipeline import Delta, Files, ForeachBatch, Kafka, Pipeline


@dataclass(frozen=True)
class OpenSource:
    """The rows of a source and, where records can be broken, how they are decoded."""

    rows: DataFrame
    decoder: Decoder | None


def open_stream(
    spark: SparkSession,
    pipeline: Pipeline,
    settings: Settings,
    query: Callable[[DataFrame], DataFrame],
    max_offsets: int | None = None,
) -> OpenSource:
    """Open a pipeline's source as a stream; `query` is what will be asked of its rows."""
    source, whose = pipeline.source, f"pipeline {pipeline.name}"
    if not isinstance(source, Kafka) and max_offsets is not None:
        raise UsageError(
            f"--max-offsets-per-trigger is for Kafka sources; {whose} reads "
            f"{type(source).__name__.lower()}.",
            'Give the source options={"maxFilesPerTrigger": "…"} instead.',
        )
    match source:
        case Kafka():
            decoder = make_decoder(spark, pipeline, query)
            raw = kafka.read_stream(spark, source, settings, max_offsets)
            if pipeline.scope == "batch" or isinstance(pipeline.sink, ForeachBatch):
                raw = kafka.observe_read(raw)
            return OpenSource(decoder.decode(raw), decoder)
        case Files():
            schema = parse_schema(source.schema, pipeline.event_time, whose)
            rows = files.read_stream(spark, source, schema)
        case Delta():
            rows = delta.read_stream(spark, source, settings)
            check_event_time(rows.schema, pipeline.event_time, whose)
    return OpenSource(require_event_time(rows, pipeline.event_time, whose), None)


def make_decoder(
    spark: SparkSession, pipeline: Pipeline, query: Callable[[DataFrame], DataFrame]
) -> Decoder:
    """How the records of a pipeline's topic become rows; `query` says which fields it uses."""
    assert isinstance(pipeline.source, Kafka)
    schema = parse_schema(pipeline.source.schema, pipeline.event_time, f"pipeline {pipeline.name}")
    streaming = pipeline.scope == "stream"
    used = used_fields(spark, schema, query, streaming=streaming)
    return Decoder(schema, tuple(used), pipeline.event_time)
