"""Events in, a real archive of them out, as the archive's stream writes it, without a broker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.archive.facts import Archive, read_archive
from ebbtide.archive.layout import archive_of, properties
from ebbtide.archive.write import create_table, to_rows
from ebbtide.config import Settings
from ebbtide.pipeline import Pipeline

_RAW = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def fill_archive(
    spark: SparkSession,
    pipeline: Pipeline,
    settings: Settings,
    batches: Iterable[Sequence[dict[str, Any] | bytes]],
) -> Archive:
    """The archive of a pipeline after so many batches; events as JSON, bytes as they are."""
    _, table = archive_of(pipeline)
    path = settings.table(table.path)
    create_table(spark, path, properties(pipeline, settings, f"{path}-checkpoint"))
    offset = 0
    for batch in batches:
        raw: list[tuple[Any, ...]] = []
        for event in batch:
            value = event if isinstance(event, bytes) else json.dumps(event, default=str).encode()
            raw.append((None, value, "visits", 0, offset, datetime(2025, 9, 4), 0, []))
            offset += 1
        rows = to_rows(spark.createDataFrame(raw, _RAW), pipeline)
        rows.coalesce(1).write.format("delta").mode("append").save(path)
    return read_archive(pipeline, settings)
