"""Connect pipelines to external systems: one folder for each, all with the same interface."""

from ebbtide.connectors import base, progress, sinks, sources, streams
from ebbtide.connectors.base import SinkPlace, SinkPlan
from ebbtide.connectors.progress import Output
from ebbtide.connectors.registry import connector_of, connector_of_offset, register
from ebbtide.connectors.sources import check_sources

__all__ = [
    "Output",
    "SinkPlace",
    "SinkPlan",
    "base",
    "check_sources",
    "connector_of",
    "connector_of_offset",
    "progress",
    "register",
    "sinks",
    "sources",
    "streams",
]
