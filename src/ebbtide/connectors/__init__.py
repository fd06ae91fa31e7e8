"""The external systems that a pipeline reads and writes: one folder for each, one protocol."""

from ebbtide.connectors.base import (
    Connector,
    Limit,
    Replayed,
    SinkConnector,
    SinkPlace,
    SinkPlan,
    SourceConnector,
)
from ebbtide.connectors.registry import connector_of, connector_of_offset, register
from ebbtide.connectors.sinks import plan_sink
from ebbtide.connectors.sources import check_sources, read_retention
from ebbtide.connectors.streams import OutputPosition

__all__ = [
    "Connector",
    "Limit",
    "OutputPosition",
    "Replayed",
    "SinkConnector",
    "SinkPlace",
    "SinkPlan",
    "SourceConnector",
    "check_sources",
    "connector_of",
    "connector_of_offset",
    "plan_sink",
    "read_retention",
    "register",
]
