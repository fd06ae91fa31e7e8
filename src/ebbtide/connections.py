"""The connection to a Kafka cluster: its address and security options, as one value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ebbtide.errors import mask

_SECRET = re.compile(r"password|passphrase|secret|jaas|token|credential|key", re.IGNORECASE)
_PLAIN = (".location", ".type")
"""How the name of an option ends that says where a key lies or what kind it is."""


@dataclass(frozen=True, repr=False)
class KafkaConnection:
    """Where a Kafka cluster is and how to authenticate; neither `repr` nor `str` shows a secret.

    >>> KafkaConnection("kafka:9093", {"security.protocol": "SSL", "ssl.key.password": "x"})
    KafkaConnection('kafka:9093', security.protocol=SSL, ssl.key.password=***)
    """

    address: str
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """By Kafka's own names, such as `security.protocol`: without Spark's prefix `kafka.`."""
    guessed: bool = False
    """Nobody named it: it is the embedded broker of the home, which may have other topics."""

    def __repr__(self) -> str:
        options = [f"{name}={_mask_option(name, self.options[name])}" for name in self.options]
        return f"KafkaConnection({', '.join([repr(mask(self.address)), *options])})"

    def __str__(self) -> str:
        return mask(self.address)

    def client_settings(self) -> dict[str, Any]:
        """The settings of a librdkafka client, which calls most options as Kafka does."""
        return {**self.options, "bootstrap.servers": self.address}

    def spark_options(self) -> dict[str, str]:
        """The options of Spark's Kafka source and sink.

        >>> KafkaConnection("kafka:9092", {"sasl.mechanism": "PLAIN"}).spark_options()
        {'kafka.sasl.mechanism': 'PLAIN', 'kafka.bootstrap.servers': 'kafka:9092'}
        """
        return {f"kafka.{name}": value for name, value in self.client_settings().items()}


def _mask_option(name: str, value: str) -> str:
    secret = _SECRET.search(name) and not name.endswith(_PLAIN)
    return "***" if secret else mask(value)
