"""Connect to a Kafka cluster: its topics, their offsets and records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbtide.connections import KafkaConnection
from ebbtide.connectors.base import Connector
from ebbtide.connectors.kafka.records import DEFAULT_PARTITIONS, Record
from ebbtide.connectors.kafka.sink import KafkaSink
from ebbtide.connectors.kafka.source import KafkaSource
from ebbtide.lazy import load_on_use

if TYPE_CHECKING:
    from ebbtide.connectors.kafka import spark
    from ebbtide.connectors.kafka.admin import (
        create_missing_topics,
        find_problem,
        require_brokers,
        retained_offsets,
    )
    from ebbtide.connectors.kafka.consumer import consume, consume_range, take
    from ebbtide.connectors.kafka.producer import Sender

__all__ = [
    "DEFAULT_PARTITIONS",
    "KafkaConnection",
    "Record",
    "Sender",
    "consume",
    "consume_range",
    "create_missing_topics",
    "find_problem",
    "require_brokers",
    "retained_offsets",
    "spark",
    "take",
]
CONNECTOR = Connector(
    "kafka", "Kafka", KafkaSource(), KafkaSink(), f"{__name__}.spark", "spark-sql-kafka-0-10"
)
if not TYPE_CHECKING:  # so that the type checker sees which names there are
    # most commands need neither confluent_kafka nor Spark
    __getattr__ = load_on_use(
        __name__,
        admin="create_missing_topics find_problem require_brokers retained_offsets",
        consumer="consume consume_range take",
        producer="Sender",
        spark="spark",
    )
