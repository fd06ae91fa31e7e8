"""Let a query report more about its batches than Spark does by itself."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import TimestampNTZType, TimestampType

from ebbtide.connectors import progress
from ebbtide.connectors.spark import digests, event_time_span
from ebbtide.connectors.spark import rows as row_names
from ebbtide.errors import UsageError


def observe(rows: DataFrame, event_time: str | None = None) -> DataFrame:
    """The same rows; each batch's progress then has their event times, or their digest."""
    if event_time is None:
        return digests.observe_output(digests.with_hash(rows)).drop(digests.HASH)
    kinds = {field.name: field.dataType for field in rows.schema}
    if not isinstance(kinds.get(event_time), TimestampType | TimestampNTZType):
        names = [name for name, kind in kinds.items() if kind.typeName().startswith("timestamp")]
        raise UsageError(
            f"{event_time} is no timestamp column of these rows.",
            f"Name one of: {', '.join(names)}." if names else "They have none.",
        )
    return rows.observe(
        progress.METRICS, *event_time_span(F.col(row_names.quote_column(event_time)))
    )
