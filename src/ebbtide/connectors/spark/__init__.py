"""What the connectors share in Spark: how records become rows, and digests of what is written."""

from ebbtide.connectors.spark.digests import DIGEST, EXACT, HASH
from ebbtide.connectors.spark.records import (
    EARLIEST,
    LATEST,
    METRICS,
    Decoder,
    make_decoder,
    parse_schema,
)
from ebbtide.connectors.spark.rows import ORDER, quote_column, to_json
from ebbtide.connectors.streams import BatchRun, Provenance, ReplacedRange, WrittenRows

__all__ = [
    "DIGEST",
    "EARLIEST",
    "EXACT",
    "HASH",
    "LATEST",
    "METRICS",
    "ORDER",
    "BatchRun",
    "Decoder",
    "Provenance",
    "ReplacedRange",
    "WrittenRows",
    "make_decoder",
    "parse_schema",
    "quote_column",
    "to_json",
]
