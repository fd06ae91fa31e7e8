"""What the connectors share on Spark's side: how records become rows, and what is said of output."""

from ebbtide.connectors.spark.digests import DIGEST, EXACT, HASH
from ebbtide.connectors.spark.records import (
    EARLIEST,
    LATEST,
    METRICS,
    Decoder,
    make_decoder,
    parse_schema,
)
from ebbtide.connectors.spark.rows import ORDER, TIMESTAMP_FORMAT, quote_column, to_json

__all__ = [
    "DIGEST",
    "EARLIEST",
    "EXACT",
    "HASH",
    "LATEST",
    "METRICS",
    "ORDER",
    "TIMESTAMP_FORMAT",
    "Decoder",
    "make_decoder",
    "parse_schema",
    "quote_column",
    "to_json",
]
