"""What the connectors share in Spark: how records become rows, and where broken ones go."""

from ebbtide.connectors.dead_letter_sinks import configure_topics, open_dead_letter_sink
from ebbtide.connectors.spark.digests import EXACT, HASH
from ebbtide.connectors.spark.records import Decoder, make_decoder, parse_schema
from ebbtide.connectors.spark.rows import ORDER, to_json

__all__ = [
    "EXACT",
    "HASH",
    "ORDER",
    "Decoder",
    "configure_topics",
    "make_decoder",
    "open_dead_letter_sink",
    "parse_schema",
    "to_json",
]
