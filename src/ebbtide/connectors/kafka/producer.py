"""Send records to a topic."""

from __future__ import annotations

import random
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from ebbtide.connections import KafkaConnection
from ebbtide.connectors.kafka.admin import list_topics
from ebbtide.connectors.kafka.clients import client_settings
from ebbtide.errors import EbbtideError

_TOGETHER = 1_000
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
        self._topic = topic
        self._failed: list[str] = []
        self._producer = Producer(client_settings(connection, **_SETTINGS))
        # the producer itself is asked: one that sends before it is connected waits half a second
        self._partitions = max(1, list_topics(connection, self._producer).get(topic, 0))
        self._turn = random.randrange(self._partitions) * _TOGETHER

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._producer.flush(60 if kind is None else 1)
        waiting = len(self._producer)
        if kind is None and (self._failed or waiting):
            cause = self._failed[0] if self._failed else "the broker did not answer"
            raise EbbtideError(
                f"{len(self._failed) + waiting} of {self.sent} records did not reach topic "
                f"{self._topic}: {cause}.",
                "Check the broker, then send them again.",
            )

    def send(self, value: bytes | None, key: bytes | None = None, partition: int = -1) -> None:
        """Queue one record; without a key or a partition it goes where its neighbours go."""
        if key is None and partition < 0:
            partition = self._turn // _TOGETHER % self._partitions
            self._turn += 1
        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, partition, on_delivery=self._delivered
                )
                break
            except BufferError:  # the queue is full: let some of it go
                self._producer.poll(0.05)
        self.sent += 1
        self._producer.poll(0)

    def send_all(self, messages: list[dict[str, Any]]) -> None:
        """Queue many records, each a dictionary with `value` and `key`; the fastest way."""
        while messages:
            self._producer.produce_batch(self._topic, messages, on_delivery=self._delivered)
            refused = [message for message in messages if message.pop("_error", None)]
            self.sent += len(messages) - len(refused)
            self._producer.poll(0.05 if refused else 0)
            messages = refused

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed.append(error.str())
