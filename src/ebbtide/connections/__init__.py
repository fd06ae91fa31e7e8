"""How to connect to a Kafka cluster: one value, for librdkafka and for Spark."""

from ebbtide.connections.connection import KafkaConnection, own_connection
from ebbtide.connections.mapping import SERVERS, use_java_names, without_decided
from ebbtide.connections.properties import (
    expand_home,
    flatten,
    parse_properties,
    read_properties,
)

__all__ = [
    "SERVERS",
    "KafkaConnection",
    "expand_home",
    "flatten",
    "own_connection",
    "parse_properties",
    "read_properties",
    "use_java_names",
    "without_decided",
]
