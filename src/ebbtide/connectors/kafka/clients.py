"""Build librdkafka clients for a connection, and raise their errors as ours."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException

from ebbtide.connections import KafkaConnection
from ebbtide.errors import BrokerError

ANSWER_SECONDS = 8


def client_settings(connection: KafkaConnection, **more: Any) -> dict[str, Any]:
    """The settings of a client that raises its errors instead of logging them."""
    quiet: dict[str, Any] = {"log_level": 2, "error_cb": lambda _error: None}
    return {**connection.client_settings(), **quiet, **more}


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
        closing(Consumer(client_settings(connection, **settings | more))) as consumer,
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
    except KafkaException as error:
        if error.args[0].code() == ignored:
            return
        cause = error.args[0].str()
        raise BrokerError(f"{problem} at {connection}: {cause}.", next_step) from None
