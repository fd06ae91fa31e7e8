"""The connector of Kafka."""

from ebbtide.connectors.base import Connector
from ebbtide.connectors.kafka.sink import KafkaSink
from ebbtide.connectors.kafka.source import KafkaSource

CONNECTOR = Connector(
    "kafka", "Kafka", KafkaSource(), KafkaSink(), "ebbtide.connectors.kafka.spark"
)
