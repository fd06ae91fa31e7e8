"""Decode records into rows and write dead letters, for all connectors that use Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.lazy import load_on_use

if TYPE_CHECKING:
    from ebbtide.connectors.spark import digests, late, rows
    from ebbtide.connectors.spark.dead_letters import configure_topics, open_dead_letter_sink
    from ebbtide.connectors.spark.records import (
        Decoder,
        event_time_span,
        make_decoder,
        parse_schema,
    )

__all__ = [
    "Decoder",
    "configure_topics",
    "digests",
    "event_time_span",
    "late",
    "make_decoder",
    "open_dead_letter_sink",
    "parse_schema",
    "rows",
]
if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # each connector's own half of Spark imports from here, and some of this from a connector
    __getattr__ = load_on_use(
        __name__,
        dead_letters="configure_topics open_dead_letter_sink",
        digests="digests",
        late="late",
        records="Decoder event_time_span make_decoder parse_schema",
        rows="rows",
    )
