"""Send records to a topic."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ebbtide.connections import KafkaConnection
from ebbtide.connectors.kafka.admin import list_topics
from ebbtide.connectors.kafka.clients import explain, make_client
from ebbtide.errors import EbbtideError

_TOGETHER = 1_000
_POLL_SECONDS = 0.05
"""Under 0.2 s, or the client polls several times and may lose a fatal error in between."""
_SILENT = logging.getLogger(f"{__name__}.silent")
"""For what librdkafka logs at any level: a fatal error, which it raises as well."""
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
_SETTINGS = {
    "linger.ms": 20,
    "batch.size": 512 * 1024,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 * 1024,
    "message.max.bytes": 16 * 1024 * 1024,
    "enable.idempotence": True,
    "message.timeout.ms": 60_000,
}


class Sender:
    """Sends records to one topic and, on leaving the block, waits until every one is stored.

    Up to a thousand records without a key that come together go to one partition in one request,
    so that a reader sees all of them or none.
    """

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        self.sent = 0
        self._topic, self._connection = topic, connection
        self._stored = 0
        self._failed: list[KafkaError] = []
        self._producer = make_client(Producer, connection, **_SETTINGS, logger=_SILENT)
        # the producer itself is asked: one that sends before it is connected waits half a second
        self._partitions = max(1, list_topics(connection, self._producer).get(topic, 0))
        self._turn = random.randrange(self._partitions) * _TOGETHER

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            with suppress(KafkaException):
                self._wait(1)
            return
        with self._fatal_errors():
            self._wait(60)
        if self._stored < self.sent:
            raise self._not_sent(self._failed[0] if self._failed else None)

    def _wait(self, seconds: float) -> None:
        """Wait until each record is stored or has failed.

        `Producer.flush` would lose a fatal error if another callback follows it; one short poll
        ends with the error.
        """
        deadline = time.monotonic() + seconds
        while len(self._producer) and time.monotonic() < deadline:
            self._producer.poll(_POLL_SECONDS)

    def _not_sent(self, error: KafkaError | None) -> EbbtideError:
        cause, next_step = "the broker did not answer", "Check the broker, then send them again."
        if error is not None:
            cause, next_step = explain(error, self._connection, next_step)
        records = max(1, self.sent - self._stored)
        return EbbtideError(
            f"{records} of {max(records, self.sent)} records did not reach topic {self._topic}:"
            f" {cause}.",
            next_step,
        )

    @contextmanager
    def _fatal_errors(self) -> Iterator[None]:
        """Raise an error after which nothing can be sent any more as ours."""
        try:
            yield
        except KafkaException as error:
            raise self._not_sent(self._which(error.args[0])) from None

    def _which(self, error: KafkaError) -> KafkaError:
        """The error itself, where the client says only that there was a fatal one."""
        if error.code() == KafkaError._FATAL:
            try:
                self._producer.poll(_POLL_SECONDS)
            except KafkaException as fatal:
                error = fatal.args[0]
        return error

    def send(self, value: bytes | None, key: bytes | None = None, partition: int = -1) -> None:
        """Queue one record; without a key or a partition it goes where its neighbours go."""
        if key is None and partition < 0:
            partition = self._turn // _TOGETHER % self._partitions
            self._turn += 1
        with self._fatal_errors():
            while True:
                try:
                    self._producer.produce(
                        self._topic, value, key, partition, on_delivery=self._delivered
                    )
                    break
                except BufferError:  # the queue is full: let some of it go
                    self._producer.poll(_POLL_SECONDS)
            self.sent += 1
            self._producer.poll(0)

    def send_all(self, messages: list[dict[str, Any]], partition: int = -1) -> None:
        """Queue many records, each a dictionary with `value` and `key`; the fastest way.

        The client takes one partition for all of them: it ignores that of a message.
        """
        with self._fatal_errors():
            while messages:
                self._producer.produce_batch(
                    self._topic, messages, partition, on_delivery=self._delivered
                )
                refused = [message for message in messages if message.pop("_error", None)]
                self.sent += len(messages) - len(refused)
                self._producer.poll(_POLL_SECONDS if refused else 0)
                messages = refused

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._stored += 1
        else:
            self._failed.append(error)
