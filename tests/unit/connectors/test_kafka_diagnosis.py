"""Why a broker does not answer, where no broker is needed to find out."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ebbtide.connections import KafkaConnection
from ebbtide.connections.jaas import OAUTH, Login
from ebbtide.connectors.kafka import diagnosis, find_problem
from ebbtide.errors import UsageError
from tests.unit.web.conftest import hanging


@contextmanager
def deaf() -> Iterator[int]:
    """The port of a server that hangs up on everybody, as Kafka does on another protocol."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            try:
                while True:
                    server.accept()[0].close()
            except OSError:
                return

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_a_refused_connection_and_an_unknown_host_are_named() -> None:
    refused = str(find_problem(KafkaConnection("127.0.0.1:1"), 2))
    waited = r"\(waited [1-9]\d* s: "
    assert re.match(rf"No Kafka broker answers at 127\.0\.0\.1:1 {waited}Connection refu", refused)
    # found out long before
    unknown = str(find_problem(KafkaConnection("nobody.invalid:9092"), 60))
    assert re.search(rf"at nobody\.invalid:9092 {waited}Failed to resolve\)", unknown)


def test_an_address_that_is_none_is_no_traceback() -> None:
    for address in ("nobody", "nobody.invalid:x", "[::1]:1", "SSL://127.0.0.1:1"):
        assert "No Kafka broker answers at" in str(find_problem(KafkaConnection(address), 0.2))


def test_a_port_without_tls_is_told_from_one_that_is_closed() -> None:
    with deaf() as port:
        tls = {"security.protocol": "SSL"}
        connection = KafkaConnection(f"127.0.0.1:{port}", tls, origin="client.properties")
        said = str(find_problem(connection, 0.3))
        assert "speaks no TLS, and client.properties asks for it. Check the port" in said
        plain = str(find_problem(KafkaConnection(f"127.0.0.1:{port}"), 0.3))
        assert "No Kafka broker answers" in plain


def test_a_server_that_says_nothing_may_speak_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "HANDSHAKE_SECONDS", 0.1)
    with hanging() as port:
        for options in ({}, {"security.protocol": "SSL"}):
            connection = KafkaConnection(f"127.0.0.1:{port}", options)
            said = str(find_problem(connection, 0.2))
            assert re.search(rf"No Kafka broker answers at 127.0.0.1:{port} \(waited \d+ s\)", said)


def test_a_token_that_cannot_be_had_is_named_without_the_secret() -> None:
    login = Login(OAUTH, {"clientId": "visits", "clientSecret": "hunter2-hunter2"})
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
        "sasl.jaas.config": login.to_text(),
    }
    with deaf() as port:
        said = str(find_problem(KafkaConnection(f"127.0.0.1:{port}", options), 1.5))
    assert "There is no token for Kafka" in said
    assert "Could not connect to server. Check sasl.oauthbearer.token.endpoint.url" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("name", ["ssl.truststore.location", "ssl.keystore.location"])
def test_a_missing_store_is_named(name: str) -> None:
    options = {"security.protocol": "SSL", name: "/nowhere/store.p12"}
    problem = find_problem(KafkaConnection("127.0.0.1:1", options))
    assert isinstance(problem, UsageError)
    assert f"property {name} names /nowhere/store.p12, which cannot be read" in str(problem)
