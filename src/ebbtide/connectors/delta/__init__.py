"""Delta tables as sources and sinks."""

from ebbtide.connectors.base import Connector
from ebbtide.connectors.delta.sink import DeltaSink
from ebbtide.connectors.delta.source import DeltaSource

__all__ = ["CONNECTOR"]
CONNECTOR = Connector(
    "delta", "Delta", DeltaSource(), DeltaSink(), f"{__name__}.spark", "delta-spark"
)
