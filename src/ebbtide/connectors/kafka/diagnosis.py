"""Find out why no broker answers: the network, TLS, a certificate, or who logs in.

librdkafka says for every bad certificate that it could not be verified, and nothing at all where a
client without TLS meets a broker with it. So we shake hands once ourselves.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone

from confluent_kafka import KafkaError

from ebbtide.connections import KafkaConnection
from ebbtide.errors import BrokerError, EbbtideError

HANDSHAKE_SECONDS = 2.5
TRIED = 2
"""Of the bootstrap servers; the first may be down."""
_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_HOST = (62, 64)
_NOISE = re.compile(r"^\S+://?\S+: |^\S+/bootstrap: | \(after .*|\.$")
_ALERT = "SSL alert number"
_IDENTITY = ("ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location")
_NETWORK = re.compile(
    r"(Connection refused|Connection timed out|No route to host|Failed to resolve)"
)


def is_final(errors: Iterable[KafkaError]) -> bool:
    """Whether every broker has refused us for a reason that no waiting changes."""
    by_code = {error.code(): error.str() for error in errors}
    reasons = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE}
    refused = bool(by_code.keys() & reasons) or any(_ALERT in text for text in by_code.values())
    return refused and KafkaError._ALL_BROKERS_DOWN in by_code


def diagnose(
    connection: KafkaConnection, errors: Iterable[KafkaError], waited_seconds: float
) -> BrokerError:
    """Why no broker answered, from what the client has said and from a handshake of our own."""
    texts = {error.code(): error.str() for error in errors}
    if (refused := texts.get(KafkaError._AUTHENTICATION)) is not None:
        return _login_refused(connection, _NOISE.sub("", _NOISE.sub("", refused)))
    for host, port in _addresses(connection)[:TRIED]:
        try:
            problem = _shake_hands(connection, host, port, " ".join(texts.values()))
        except (OSError, EbbtideError, UnicodeError):
            continue
        if problem is not None:
            return problem
    cause = _NETWORK.search(" ".join(texts.values()))
    return BrokerError.unreachable(str(connection), waited_seconds, cause[1] if cause else "")


def _login_refused(connection: KafkaConnection, why: str) -> BrokerError:
    why = connection.redact(why)
    check = f"Check sasl.mechanism and security.protocol in {connection.origin}."
    if "mechanism handshake failed" in why:
        return BrokerError(f"Kafka at {connection} does not take this login: {why}.", check)
    if "OAUTHBEARER token" in why:
        return BrokerError(
            f"There is no token for Kafka at {connection}: {why}.",
            "Check sasl.oauthbearer.token.endpoint.url, the client id and the client secret in "
            f"{connection.origin}.",
        )
    who = f"user {connection.user}" if connection.user else "the login"
    return BrokerError(
        f"Kafka at {connection} refused {who}: {why}.",
        f"Check the user name, the password and the mechanism in {connection.origin}.",
    )


def _addresses(connection: KafkaConnection) -> list[tuple[str, int]]:
    """Hosts and ports of the bootstrap servers; those that make no sense are left out."""
    found = []
    for server in connection.address.split(","):
        host, _, port = server.strip().rpartition(":")
        with suppress(ValueError):
            found.append((host.rpartition("//")[2].strip("[]"), int(port)))
    return found


def _shake_hands(
    connection: KafkaConnection, host: str, port: int, said: str
) -> BrokerError | None:
    """What is wrong with TLS at an address; raises `OSError` if nobody is there."""
    settings = connection.client_settings()
    wants_tls = "SSL" in str(settings.get("security.protocol", "")).upper()
    where, context = f"{host}:{port}", _context(settings)
    with socket.create_connection((host, port), HANDSHAKE_SECONDS) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host):
                pass
        except ssl.SSLCertVerificationError as error:
            return _bad_certificate(connection, where, error) if wants_tls else _speaks_tls(where)
        except TimeoutError:
            return None  # it may speak anything
        except OSError:
            return _speaks_no_tls(connection, where) if wants_tls else None
    if not wants_tls:
        return _speaks_tls(where)
    if _ALERT in said:
        return _client_refused(connection, settings, where, said)
    if "SASL" not in str(settings["security.protocol"]).upper():
        return BrokerError(
            f"Kafka at {where} takes TLS and then hangs up: it may ask for a user and a password.",
            f"Set security.protocol to SASL_SSL, and sasl.mechanism, in {connection.origin}.",
        )
    return None


def _context(settings: dict[str, object]) -> ssl.SSLContext:
    """The trust of a client, as Python sees it; it presents no certificate of its own."""
    context = ssl.create_default_context()
    if "ssl.ca.pem" in settings or "ssl.ca.location" in settings:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        text, file = settings.get("ssl.ca.pem"), settings.get("ssl.ca.location")
        context.load_verify_locations(
            cafile=str(file) if file else None, cadata=str(text) if text else None
        )
    context.check_hostname = settings.get("ssl.endpoint.identification.algorithm") != "none"
    return context


def _speaks_tls(where: str) -> BrokerError:
    return BrokerError(
        f"Kafka at {where} speaks TLS, and this client does not.",
        "Name a properties file with security.protocol=SASL_SSL or SSL: --kafka-config FILE",
    )


def _speaks_no_tls(connection: KafkaConnection, where: str) -> BrokerError:
    return BrokerError(
        f"Kafka at {where} speaks no TLS, and {connection.origin} asks for it.",
        "Check the port, or set security.protocol to PLAINTEXT or SASL_PLAINTEXT.",
    )


def _bad_certificate(
    connection: KafkaConnection, where: str, error: ssl.SSLCertVerificationError
) -> BrokerError:
    begin = f"The certificate of Kafka at {where}"
    if error.verify_code == _EXPIRED:
        return BrokerError(f"{begin} has expired.", "Ask for a new one for the broker.")
    if error.verify_code == _NOT_YET_VALID:
        return BrokerError(f"{begin} is not valid yet.", "Check the clocks of both machines.")
    if error.verify_code in _OTHER_HOST:
        return BrokerError(
            f"{begin} is another host's: {error.verify_message.rstrip('.')}.",
            "Use the host name of the certificate in bootstrap.servers.",
        )
    return BrokerError(
        f"{begin} is not trusted: {error.verify_message.rstrip('.')}.",
        f"Name the authority that signed it in ssl.truststore.location, in {connection.origin}.",
    )


def _client_refused(
    connection: KafkaConnection, settings: dict[str, object], where: str, said: str
) -> BrokerError:
    if not any(name in settings for name in _IDENTITY):
        return BrokerError(
            f"Kafka at {where} asks for a certificate of this client.",
            f"Add ssl.keystore.location (PEM, PKCS12 or JKS) to {connection.origin}.",
        )
    ended = connection.certificate_end()
    if ended is not None and ended < datetime.now(timezone.utc):
        return BrokerError(
            f"Kafka at {where} refused the certificate of this client: it expired on "
            f"{ended:%Y-%m-%d}.",
            f"Renew the one that {connection.origin} names.",
        )
    alert = re.search(r"alert ([a-z ]+)", said)
    return BrokerError(
        f"Kafka at {where} refused the certificate of this client"
        f"{': ' + alert[1].strip() if alert else ''}.",
        f"Check that the one in {connection.origin} is still valid and that the cluster trusts "
        "its issuer.",
    )
