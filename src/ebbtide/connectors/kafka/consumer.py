"""Read records from a topic: as they come, whole ranges of offsets, or a sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from ebbtide.connections import KafkaConnection
from ebbtide.connectors.kafka.admin import list_topics
from ebbtide.connectors.kafka.clients import ANSWER_SECONDS, open_consumer
from ebbtide.connectors.kafka.records import Record
from ebbtide.errors import BrokerError


def consume(
    connection: KafkaConnection,
    topic: str,
    *,
    from_beginning: bool = False,
    max_records: int | None = None,
    silence_seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Record]:
    """Records of a topic as they come, until `max_records` or some seconds without one."""
    topics = list_topics(connection)
    if topic not in topics:
        unseen = " that this user may see" if connection.options else ""
        raise BrokerError(
            f"There is no topic {topic} at {connection}.",
            f"There are: {', '.join(sorted(topics)) or 'none'}{unseen}.",
        )
    start = OFFSET_BEGINNING if from_beginning else OFFSET_END
    seen, last = 0, time.monotonic()
    with open_consumer(connection, f"Topic {topic} cannot be read") as consumer:
        consumer.assign([TopicPartition(topic, p, start) for p in range(topics[topic])])
        while not stop() and (max_records is None or seen < max_records):
            wanted = 500 if max_records is None else min(500, max_records - seen)
            for record in _poll(consumer, wanted):
                seen, last = seen + 1, time.monotonic()
                yield record
            if silence_seconds is not None and time.monotonic() - last > silence_seconds:
                return


def consume_range(
    connection: KafkaConnection, topic: str, start: Mapping[int, int], end: Mapping[int, int]
) -> Iterator[Record]:
    """The records of offset ranges."""
    left = {p: last for p, last in end.items() if last > start.get(p, 0)}
    heard = time.monotonic()
    with open_consumer(connection, f"Topic {topic} cannot be read") as consumer:
        consumer.assign([TopicPartition(topic, p, start.get(p, 0)) for p in left])
        while left:
            for record in _poll(consumer, 500, timeout=0.2):
                heard = time.monotonic()
                if record.partition not in left or record.offset >= left[record.partition]:
                    left.pop(record.partition, None)
                else:
                    yield record
            for position in consumer.position([TopicPartition(topic, p) for p in left]):
                # the range may end in offsets without a record: aborted or compacted
                if position.offset >= left.get(position.partition, position.offset + 1):
                    left.pop(position.partition, None)
            if time.monotonic() - heard > ANSWER_SECONDS * 4:
                raise BrokerError.unreachable(connection.address, ANSWER_SECONDS * 4)


def take(
    connection: KafkaConnection, topic: str, ranges: Mapping[int, tuple[int, int]], count: int
) -> list[Record]:
    """The first records of offset ranges, partition by partition, `count` at most; in seconds.

    Of a range that is not kept any more, what is left of it.
    """
    records: list[Record] = []
    deadline = time.monotonic() + ANSWER_SECONDS
    # little ahead of what is asked for: values may be large
    few = {"queued.min.messages": 1, "fetch.wait.max.ms": 50}
    with open_consumer(connection, f"Topic {topic} cannot be read", **few) as consumer:
        for partition, (start, end) in sorted(ranges.items()):
            if len(records) >= count or time.monotonic() >= deadline:
                break
            place = TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=ANSWER_SECONDS)
            first, last = max(start, low), min(end, high)
            if first < last:
                consumer.assign([TopicPartition(topic, partition, first)])
                records += _take(consumer, place, last, count - len(records), deadline)
    return records


def _take(
    consumer: Consumer, place: TopicPartition, end: int, count: int, deadline: float
) -> Iterator[Record]:
    """The records of the one partition that is assigned, up to an offset."""
    while count > 0 and time.monotonic() < deadline:
        for record in _poll(consumer, count):
            if record.offset >= end:
                return
            count -= 1
            yield record
        # the range may end in offsets without a record: aborted or compacted
        if consumer.position([place])[0].offset >= end:
            return


def _poll(consumer: Consumer, count: int, timeout: float = 0.1) -> Iterator[Record]:
    """The records that come within a time; raises the error of a partition."""
    for message in consumer.consume(count, timeout=timeout):
        if (error := message.error()) is not None:
            if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # its group is a name only: partitions are assigned, nothing is committed
            raise KafkaException(error)
        yield _record(message)


def _record(message: Message) -> Record:
    headers: Any = message.headers() or []
    return Record(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp_ms=message.timestamp()[1],
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in headers),
    )


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
