"""Kafka's properties files and JAAS logins, and what becomes of them on both sides."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ebbtide.connections import (
    KafkaConnection,
    jaas,
    parse_properties,
    read_properties,
    stores,
)
from ebbtide.errors import EbbtideError
from tests.fuzz.target import Target, scratch


def _read_properties(data: bytes) -> None:
    file = scratch() / "client.properties"
    file.write_bytes(data)
    options = read_properties(file)
    connection = KafkaConnection("kafka:9093", options)
    repr(connection)
    _ = connection.user, connection.redact("kafka:9093 says no")
    connection.client_settings()
    connection.spark_options()


def _parse_properties(data: bytes) -> None:
    parse_properties(data.decode("iso-8859-1"))


def _parse_login(data: bytes) -> None:
    jaas.parse_login(data.decode("utf-8", "replace")).to_text()


_SCRAM = b"org.apache.kafka.common.security.scram.ScramLoginModule"
_LOGIN = _SCRAM + b' required username="visits" password="se\\"cret\\\\" tokenauth=true;'
_FILE = (
    b"# a comment\r\nbootstrap.servers = kafka:9093,\\\n   other:9093\n"
    b"security.protocol: SASL_SSL\nsasl.mechanism SCRAM-SHA-512\nsasl.jaas.config=" + _LOGIN
)
_TLS = (
    b"security.protocol=SSL\nssl.truststore.type=PEM\nssl.ca.pem=-----BEGIN CERTIFICATE-----\n"
    b"ssl.endpoint.identification.algorithm=\npath=C:\\\\keys\\u00e9\\ud83d\\ude00"
)
_OAUTH = (
    b"sasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=https://idp/token\n"
    b"sasl.oauthbearer.client.id=a\nsasl.oauthbearer.client.secret=b\nclient.id=visits"
)
_PARTS = b"a=" + b"b\\\n " * 100
_STORES = Path(__file__).parents[2] / "fixtures" / "stores"


def _read_store(data: bytes) -> None:
    """A PEM or JKS store; a PKCS12 one is read by a library."""
    file = scratch() / "store"
    file.write_bytes(data)
    if stores.store_type(str(file), "ssl.truststore.location") == stores.PKCS12:
        return
    text = data.decode("ascii", "replace")
    stores.normalize_pem(text)
    stores.read_end(text)
    for read in (_trusted, _identity, _for_java):
        with suppress(EbbtideError):
            read(str(file))


def _trusted(file: str) -> None:
    stores.read_trusted(file, None, "ssl.truststore.location")


def _identity(file: str) -> None:
    stores.read_jks_identity(file, None, "changeit", "ssl.keystore.location")


def _for_java(file: str) -> None:
    stores.convert_for_java(stores.read_text(file, "ssl.keystore.location"), None)


TARGETS = (
    Target(
        "store",
        lambda: [
            *(file.read_bytes() for file in sorted(_STORES.iterdir()) if file.suffix != ".p12"),
            b"-----BEGIN CERTIFICATE----- MIIF AAAA -----END CERTIFICATE-----",
            b"-----BEGIN A-----" * 200,
        ],
        _read_store,
        share=10,
        largest=1 << 18,
    ),
    Target(
        "kafka-properties",
        lambda: [
            _FILE,
            _TLS,
            _OAUTH,
            b"security.protocol=SSL\nssl.truststore.location=/none\\u0000\nssl.keystore.location=/none",
            b"sasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=p\nsecurity.protocol=SASL_SSL",
        ],
        _read_properties,
        share=30,
        largest=1 << 18,
    ),
    Target(
        "properties",
        lambda: [_FILE, _PARTS],
        _parse_properties,
        share=40,
        largest=1 << 18,
    ),
    Target(
        "jaas",
        lambda: [
            _LOGIN,
            b"a.B required /* why */ x='\\101' // not\n y=z;",
            _SCRAM + b" sufficient;",
            b"a.B required" + b" y=z" * 100 + b";",
        ],
        _parse_login,
        share=40,
        largest=1 << 18,
    ),
)
