"""The connector of Delta."""

from ebbtide.connectors.base import Connector
from ebbtide.connectors.delta.sink import DeltaSink
from ebbtide.connectors.delta.source import DeltaSource

CONNECTOR = Connector(
    "delta", "Delta", DeltaSource(), DeltaSink(), "ebbtide.connectors.delta.spark"
)
