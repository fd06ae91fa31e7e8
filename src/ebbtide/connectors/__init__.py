"""Connect pipelines to external systems: one folder for each, all with the same interface."""

from ebbtide.connectors import base, progress, streams
from ebbtide.connectors.base import SinkPlace, SinkPlan
from ebbtide.connectors.progress import Output
from ebbtide.connectors.registry import connector_of, connector_of_offset, register
from ebbtide.connectors.sinks import plan_sink
from ebbtide.connectors.sources import check_sources, read_retention

__all__ = [
    "Output",
    "SinkPlace",
    "SinkPlan",
    "base",
    "check_sources",
    "connector_of",
    "connector_of_offset",
    "plan_sink",
    "progress",
    "read_retention",
    "register",
    "streams",
]
