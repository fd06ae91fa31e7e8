"""The connection to a Kafka cluster: its address and security options, as one value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ebbtide.connections import jaas, mapping, stores
from ebbtide.errors import EbbtideError, mask

_SECRET = re.compile(
    r"password|passphrase|secret|jaas|token$|credential|user\.info|\.key$|\.pem$", re.IGNORECASE
)
_SHOWN = (mapping.PROTOCOL, mapping.MECHANISM, "client.id")
_SHOWN_ENDS = (".location", ".type")
"""How the name of an option ends that says where a key lies or what kind it is."""
_SHORTEST = 4
"""A shorter secret than this cannot be told from other text."""


@dataclass(frozen=True, repr=False)
class KafkaConnection:
    """Where a Kafka cluster is and how to authenticate; neither `repr` nor `str` shows a secret.

    >>> KafkaConnection("kafka:9093", {"security.protocol": "SSL", "ssl.key.password": "x"})
    KafkaConnection('kafka:9093', security.protocol=SSL, ssl.key.password=***)
    """

    address: str
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """As Kafka's own clients or librdkafka call them, such as `security.protocol`: without Spark's
    prefix `kafka.`."""
    guessed: bool = False
    """Nobody named it: it is the embedded broker of the home, which may have other topics."""
    origin: str = field(default="your Kafka configuration", compare=False)
    """Where the options were given, for messages."""

    def __repr__(self) -> str:
        options = [f"{name}={_mask_option(name, self.options[name])}" for name in self.options]
        return f"KafkaConnection({', '.join([repr(mask(self.address)), *options])})"

    def __str__(self) -> str:
        return mask(self.address)

    @property
    def glance_seconds(self) -> float:
        """How long to wait where a command can do without Kafka; a login takes longer."""
        return 5.0 if self.options else 1.0

    def client_settings(self) -> dict[str, Any]:
        """The settings of a librdkafka client; refused if it cannot express an option."""
        return {**mapping.to_client(self.options), mapping.SERVERS: self.address}

    def spark_options(self) -> dict[str, str]:
        """The options of Spark's Kafka source and sink; refused if Java cannot express one.

        >>> KafkaConnection("kafka:9092", {"sasl.mechanisms": "PLAIN"}).spark_options()
        {'kafka.sasl.mechanism': 'PLAIN', 'kafka.bootstrap.servers': 'kafka:9092'}
        """
        java = {**mapping.to_java(self.options), mapping.SERVERS: self.address}
        return {f"kafka.{name}": value for name, value in java.items()}

    @property
    def user(self) -> str:
        """Who logs in, where a user name is given.

        >>> KafkaConnection("kafka:9093", {"sasl.username": "visits"}).user
        'visits'
        """
        with suppress(EbbtideError):
            login = jaas.parse_login(self.options.get(mapping.JAAS, ""))
            return login.options.get("username", login.options.get("clientId", ""))
        return self.options.get("sasl.username", "")

    def certificate_end(self) -> datetime | None:
        """When this client's certificate ends; None if it has none, or none that we can read."""
        settings = self.client_settings()
        certificate, store = (f"ssl.{name}.location" for name in ("certificate", "keystore"))
        if certificate in settings:
            return stores.read_end(stores.read_text(settings[certificate], certificate))
        if store in settings:
            return stores.read_pkcs12_end(settings[store], settings.get("ssl.keystore.password"))
        return stores.read_end(settings.get("ssl.certificate.pem", ""))

    def redact(self, text: str) -> str:
        """A text of another library's without any secret of this connection.

        >>> KafkaConnection("k:1", {"sasl.password": "hunter2"}).redact("not hunter2")
        'not ***'
        """
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> set[str]:
        values = {value for name, value in self.options.items() if _SECRET.search(name)}
        with suppress(EbbtideError):  # the whole text is among them
            login = jaas.parse_login(self.options.get(mapping.JAAS, ""))
            values |= {value for name, value in login.options.items() if _SECRET.search(name)}
        return {value for value in values if len(value) >= _SHORTEST}


def own_connection(options: Mapping[str, str]) -> dict[str, str]:
    """Of the options of a source or a sink, those of a connection of its own, without `kafka.`.

    >>> own_connection({"kafka.bootstrap.servers": "other:9092", "startingOffsets": "latest"})
    {'bootstrap.servers': 'other:9092'}
    >>> own_connection({"kafka.client.id": "visits"})
    {}
    """
    lower = {name.lower(): value for name, value in options.items()}
    own = {n.removeprefix("kafka."): v for n, v in lower.items() if n.startswith("kafka.")}
    return {n: v for n, v in own.items() if n.startswith((mapping.SERVERS, *mapping.SECURITY))}


def _is_shown(name: str) -> bool:
    return name in _SHOWN or name.endswith(_SHOWN_ENDS)


def _mask_option(name: str, value: str) -> str:
    return mask(value) if _is_shown(name) else "***"
