"""A Kafka connection: what clients and Spark get of it, what is shown, what a guess means."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka import KafkaConnection, admin
from ebbtide.connectors.kafka.records import Topic
from ebbtide.connectors.kafka.source import ask_topics
from ebbtide.errors import BrokerError
from ebbtide.local import broker
from ebbtide.local.broker import EmbeddedBroker, find_connection, require_connection

PLAIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "ssl.truststore.location": "/etc/trust.jks",
    "ssl.keystore.location": "/etc/keys.jks",
    "ssl.keystore.type": "JKS",
}
SECRET = [
    "sasl.jaas.config",
    "sasl.password",
    "ssl.truststore.password",
    "ssl.key.password",
    "ssl.keystore.key",
    "ssl.key.pem",
    "sasl.oauthbearer.client.secret",
    "my.Token",
]


@pytest.mark.parametrize("name", SECRET)
def test_no_secret_is_shown(name: str) -> None:
    connection = KafkaConnection("kafka:9093", PLAIN | {name: "hunter2"})
    for shown in (repr(connection), str(connection), f"{[connection]}", f"{connection!r}"):
        assert "hunter2" not in shown
        assert "kafka:9093" in shown
    assert f"{name}=***" in repr(connection)
    assert all(f"{known}={value}" in repr(connection) for known, value in PLAIN.items())


def test_clients_and_spark_get_every_option() -> None:
    connection = KafkaConnection(
        "kafka:9093", {"security.protocol": "SSL", "ssl.key.password": "x"}
    )
    assert connection.client_settings() == {
        "bootstrap.servers": "kafka:9093",
        "security.protocol": "SSL",
        "ssl.key.password": "x",
    }
    assert connection.spark_options() == {
        "kafka.bootstrap.servers": "kafka:9093",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.key.password": "x",
    }


def test_settings_give_the_connection(tmp_path: Path) -> None:
    assert Settings(bootstrap_servers="k:1").kafka == KafkaConnection("k:1")
    with pytest.raises(BrokerError, match="embedded broker is not running"):
        _ = Settings(home=tmp_path).kafka


def test_only_the_broker_that_nobody_named_is_a_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_connection(Settings(home=tmp_path)) is None
    named = Settings(home=tmp_path, bootstrap_servers="127.0.0.1:1")
    assert find_connection(named) == KafkaConnection("127.0.0.1:1")
    monkeypatch.setattr(broker, "find_broker", lambda _folder: EmbeddedBroker(1, 1.0, 9092, 9093))
    guess = KafkaConnection("127.0.0.1:9092", guessed=True)
    assert find_connection(Settings(home=tmp_path)) == guess
    quick = lambda connection: admin.find_problem(connection, 0.2)  # noqa: E731
    monkeypatch.setattr(kafka, "find_problem", quick)
    assert require_connection(Settings(home=tmp_path)) == guess, "a guess is not required to answer"
    with pytest.raises(BrokerError, match=r"No Kafka broker answers at 127\.0\.0\.1:1 "):
        require_connection(named)


def test_a_guessed_broker_without_the_topics_counts_as_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = SimpleNamespace(positions={("visits", 0): 3})
    checkpoint: Any = SimpleNamespace(logs=SimpleNamespace(batches=[batch]))
    topics: dict[str, Topic] = {}
    monkeypatch.setattr(admin, "describe_topics", lambda *_: topics)
    named = KafkaConnection("k:1")
    assert ask_topics(checkpoint, None) is None
    assert ask_topics(checkpoint, replace(named, guessed=True)) is None
    assert ask_topics(checkpoint, named) == {}
    topics["visits"] = Topic("visits", "", {0: (0, 3)})
    assert ask_topics(checkpoint, replace(named, guessed=True)) == topics


def test_the_face_does_not_import_the_client_library() -> None:
    code = (
        "import sys; from ebbtide.connectors import kafka; from ebbtide.config import Settings; "
        "Settings(bootstrap_servers='k:1').kafka; assert 'confluent_kafka' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_face_has_every_name_that_it_lists() -> None:
    assert all(getattr(kafka, name) is not None for name in kafka.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(kafka, "nothing")  # noqa: B009
