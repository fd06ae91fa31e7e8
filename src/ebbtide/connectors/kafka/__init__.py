"""Kafka: the connection to a cluster, its topics and offsets, and the records in them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ebbtide.connectors.base import Connector
from ebbtide.connectors.kafka.connection import KafkaConnection
from ebbtide.connectors.kafka.records import DEFAULT_PARTITIONS, Record, Topic
from ebbtide.connectors.kafka.sink import KafkaSink
from ebbtide.connectors.kafka.source import KafkaSource

if TYPE_CHECKING:
    from ebbtide.connectors.kafka.admin import (
        answers,
        create_missing_topics,
        list_topics,
        require_broker,
        retained_offsets,
        topic_ids,
    )
    from ebbtide.connectors.kafka.consumer import consume, consume_range, take
    from ebbtide.connectors.kafka.producer import Sender

__all__ = [
    "CONNECTOR",
    "DEFAULT_PARTITIONS",
    "KafkaConnection",
    "Record",
    "Sender",
    "Topic",
    "answers",
    "consume",
    "consume_range",
    "create_missing_topics",
    "list_topics",
    "require_broker",
    "retained_offsets",
    "take",
    "topic_ids",
]
CONNECTOR = Connector("kafka", "Kafka", KafkaSource(), KafkaSink(), f"{__name__}.spark")
_MODULES = {"Sender": "producer"} | dict.fromkeys(("consume", "consume_range", "take"), "consumer")


def __getattr__(name: str) -> Any:
    """Import confluent_kafka with the first name that needs it: most commands need none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'admin')}"), name)
    globals()[name] = value
    return value
