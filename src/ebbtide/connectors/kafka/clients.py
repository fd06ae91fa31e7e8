"""Build librdkafka clients for a connection, and raise their errors as ours."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException

from ebbtide.connections import KafkaConnection
from ebbtide.errors import BrokerError

ANSWER_SECONDS = 8


def client_settings(connection: KafkaConnection, **more: Any) -> dict[str, Any]:
    """The settings of a client that logs nothing: its errors are raised."""
    quiet: dict[str, Any] = {"log_level": 2, "error_cb": lambda _error: None}
    return {**connection.client_settings(), **quiet, **more}


@contextmanager
def open_consumer(connection: KafkaConnection, **more: Any) -> Iterator[Consumer]:
    """A consumer without a group of its own to commit to, closed at the end of the block."""
    settings: dict[str, Any] = {
        "group.id": f"ebbtide-{uuid.uuid4()}",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": 1_000_000,
    }
    consumer = Consumer(client_settings(connection, **settings | more))
    try:
        yield consumer
    finally:
        consumer.close()


@contextmanager
def broker_errors(
    connection: KafkaConnection, problem: str, next_step: str = "Check the broker, then try again."
) -> Iterator[None]:
    """Raise Kafka's errors as ours: what failed at which address, and why."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0].str()
        raise BrokerError(f"{problem} at {connection}: {cause}.", next_step) from None
