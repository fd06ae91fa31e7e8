"""Build librdkafka clients for a connection, and raise their errors as ours."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException

from ebbtide.connections import KafkaConnection
from ebbtide.errors import BrokerError, UsageError, first_line

ANSWER_SECONDS = 8
Client = TypeVar("Client")
_RIGHTS = (
    "Ask for the rights: Describe and Read for a topic that is read, Describe and Write for one "
    "that is written, Create for one that does not exist yet."
)
_UNAUTHORIZED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


def make_client(
    kind: Callable[[dict[str, Any]], Client], connection: KafkaConnection, **more: Any
) -> Client:
    """A client that raises its errors instead of logging them; wrong properties are refused."""
    quiet: dict[str, Any] = {"log_level": 2, "error_cb": lambda _error: None}
    try:
        return kind({**connection.client_settings(), **quiet, **more})
    except KafkaException as error:
        why = _simplify(connection.redact(first_line(error.args[0].str())))
        raise UsageError(
            f"The Kafka client for {connection} cannot be made: {why}.", _correct(why, connection)
        ) from None


@contextmanager
def open_consumer(connection: KafkaConnection, problem: str, **more: Any) -> Iterator[Consumer]:
    """A consumer that commits to no group, closed at the end of the block.

    Kafka's errors in the block are raised as ours, with the `problem`.
    """
    settings: dict[str, Any] = {
        "group.id": f"ebbtide-{uuid.uuid4()}",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": 1_000_000,
    }
    with (
        broker_errors(connection, problem),
        closing(make_client(Consumer, connection, **settings | more)) as consumer,
    ):
        yield consumer


@contextmanager
def broker_errors(
    connection: KafkaConnection,
    problem: str,
    next_step: str = "Check the broker, then try again.",
    *,
    ignored: int | None = None,
) -> Iterator[None]:
    """Raise Kafka's errors as ours: what failed at which address, and why.

    The error with the code `ignored` ends the block silently.
    """
    try:
        yield
    except KafkaException as exception:
        error = exception.args[0]
        if error.code() == ignored:
            return
        cause, next_step = explain(error, connection, next_step)
        raise BrokerError(f"{problem} at {connection}: {cause}.", next_step) from None


def explain(error: KafkaError, connection: KafkaConnection, next_step: str) -> tuple[str, str]:
    """Why a request failed, and what to do about it."""
    if error.code() in _UNAUTHORIZED:
        who = f"user {connection.user}" if connection.user else "this client"
        return f"{who} is not authorized ({error.name()})", _RIGHTS
    return connection.redact(error.str().rstrip(".")), next_step


def _correct(why: str, connection: KafkaConnection) -> str:
    """What to do; of a wrong password, OpenSSL says no more than which of its parts failed."""
    if "ssl.key" in why and ": error:" in why:
        return f"Check ssl.key.password and ssl.keystore.password in {connection.origin}."
    return f"Correct {connection.origin}."


def _simplify(why: str) -> str:
    """What librdkafka says, without which of its objects it was making."""
    return re.sub(r"^Failed to create \w+( \w+)?: ", "", why)
