"""An address in, a Kafka broker's answers out: topics, offsets, records; librdkafka, no JVM."""

from __future__ import annotations

import json
import random
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
)
from confluent_kafka.cimpl import NewTopic

from ebbtide.errors import BrokerError, EbbtideError

DEFAULT_PARTITIONS = 2
_ANSWER_SECONDS = 8
MOMENT_SECONDS = 1.0
"""How long a broker may take to answer where nobody wants to wait for it."""
_HALF_MEBIBYTE = 1 << 19
_TOGETHER = 1_000
_NO_ID = "A" * 22
"""How an id that is all zeros reads."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it lies in a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())

    def to_json(self) -> str:
        """One JSON line; bytes that are not UTF-8 stand as base64 under `<name>_base64`.

        >>> print(Record("t", 0, 7, 1, None, b"hi").to_json()[:40])
        {"topic": "t", "partition": 0, "offset":
        """
        row: dict[str, Any] = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            **_text("key", self.key),
            **_text("value", self.value),
        }
        headers: dict[str, Any] = {}
        for name, value in self.headers:
            headers |= _text(name, value)
        return json.dumps(row | {"headers": headers}, ensure_ascii=False)


@dataclass(frozen=True)
class Topic:
    """What a broker says of a topic."""

    name: str
    id: str
    """Another one for each topic that is made, whatever its name; empty before Kafka 2.8."""
    partitions: Mapping[int, tuple[int, int]]
    """For each the earliest offset that is still there and the next one to come."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Its settings, as far as we may read them."""

    @property
    def compacted(self) -> bool:
        """Whether of records with the same key only the last is kept."""
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def retention_ms(self) -> int | None:
        """How long a record is kept; None if for ever, or if that is not known."""
        return self._limit("retention.ms")

    @property
    def retention_bytes(self) -> int | None:
        """How much of a partition is kept; None if all of it, or if that is not known."""
        return self._limit("retention.bytes")

    def _limit(self, name: str) -> int | None:
        """A limit of the time or size kept.

        >>> Topic("t", "", {}, {"cleanup.policy": "delete", "retention.ms": "1000"}).retention_ms
        1000
        """
        deletes = "delete" in self.config.get("cleanup.policy", "")
        limit = int(self.config.get(name, -1)) if deletes else -1
        return None if limit < 0 else limit


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode("ascii")}


def _settings(bootstrap_servers: str, **more: Any) -> dict[str, Any]:
    quiet: dict[str, Any] = {"log_level": 2, "error_cb": lambda _error: None}
    return {"bootstrap.servers": bootstrap_servers, **quiet, **more}


def answers(bootstrap_servers: str, timeout_seconds: float = _ANSWER_SECONDS) -> bool:
    """Whether a broker answers at the address within the time."""
    try:
        AdminClient(_settings(bootstrap_servers)).list_topics(timeout=timeout_seconds)
    except KafkaException:
        return False
    return True


def require_broker(bootstrap_servers: str) -> None:
    """Refuse, naming the address, if no broker answers."""
    if not answers(bootstrap_servers):
        raise BrokerError.unreachable(bootstrap_servers, _ANSWER_SECONDS)


def list_topics(bootstrap_servers: str) -> dict[str, int]:
    """The topics, with the number of partitions of each; Kafka's own left out."""
    return _topics_of(AdminClient(_settings(bootstrap_servers)), bootstrap_servers)


def _topics_of(client: AdminClient | Producer, bootstrap_servers: str) -> dict[str, int]:
    try:
        found = client.list_topics(timeout=_ANSWER_SECONDS)
    except KafkaException:
        raise BrokerError.unreachable(bootstrap_servers, _ANSWER_SECONDS) from None
    return {n: len(t.partitions) for n, t in found.topics.items() if not n.startswith("__")}


def create_missing_topics(
    bootstrap_servers: str,
    topics: Iterable[str],
    partitions: int = DEFAULT_PARTITIONS,
    config: Mapping[str, str] | None = None,
) -> list[str]:
    """Create those of the topics that are not there; returns their names."""
    there = list_topics(bootstrap_servers)
    missing = [topic for topic in dict.fromkeys(topics) if topic not in there]
    if not missing:
        return []
    admin = AdminClient(_settings(bootstrap_servers))
    made = admin.create_topics(
        [NewTopic(topic, num_partitions=partitions, config=dict(config or {})) for topic in missing]
    )
    for topic, future in made.items():
        try:
            future.result(timeout=_ANSWER_SECONDS)
        except KafkaException as error:  # noqa: PERF203 - each topic has its own answer
            # another process may have made it in the meantime
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerError(
                    f"Topic {topic} cannot be created at {bootstrap_servers}: "
                    f"{error.args[0].str()}.",
                    "Create it yourself, or name another.",
                ) from None
    _wait_for_leaders(admin, missing)
    return missing


def _wait_for_leaders(admin: AdminClient, topics: Iterable[str]) -> None:
    """A topic that was just made cannot be read until each partition has a leader."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    for topic in topics:
        while time.monotonic() < deadline:
            found = admin.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic]
            if found.partitions and all(p.leader >= 0 for p in found.partitions.values()):
                break
            time.sleep(0.02)


def retained_offsets(bootstrap_servers: str, topic: str) -> dict[int, tuple[int, int]]:
    """For each partition the earliest offset that is still there and the next one to come."""
    consumer = _consumer(bootstrap_servers)
    try:
        return {
            partition: consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=_ANSWER_SECONDS
            )
            for partition in range(list_topics(bootstrap_servers).get(topic, 0))
        }
    except KafkaException as error:
        raise BrokerError(
            f"The offsets of topic {topic} cannot be read at {bootstrap_servers}: "
            f"{error.args[0].str()}.",
            "Check the broker, then try again.",
        ) from None
    finally:
        consumer.close()


def offsets_since(bootstrap_servers: str, topic: str, since_ms: int) -> dict[int, tuple[int, int]]:
    """By partition: the first offset written at a time or later, and the end; none if no topic."""
    ends = retained_offsets(bootstrap_servers, topic)
    consumer = _consumer(bootstrap_servers)
    try:
        asked = [TopicPartition(topic, partition, since_ms) for partition in ends]
        found = consumer.offsets_for_times(asked, timeout=_ANSWER_SECONDS) if asked else []
    except KafkaException:
        raise BrokerError.unreachable(bootstrap_servers, _ANSWER_SECONDS) from None
    finally:
        consumer.close()
    first = {at.partition: at.offset for at in found if at.offset >= 0}
    return {p: (first.get(p, end), end) for p, (_, end) in ends.items()}


def topic_ids(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, str]:
    """The ids of those of the topics that are there; empty where the broker gives none."""
    return {name: id_ for name, (id_, _) in _described(bootstrap_servers, topics).items()}


def describe_topics(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, Topic]:
    """What the broker says of those of the topics that are there."""
    found = _described(bootstrap_servers, topics)
    if not found:
        return {}
    admin = AdminClient(_settings(bootstrap_servers))
    resources = {name: ConfigResource(ConfigResource.Type.TOPIC, name) for name in found}
    configs = admin.describe_configs(list(resources.values()), request_timeout=_ANSWER_SECONDS)
    places = [TopicPartition(name, p) for name, (_, parts) in found.items() for p in parts]
    ends = [
        admin.list_offsets(dict.fromkeys(places, spec), request_timeout=_ANSWER_SECONDS)
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
    ]
    offsets: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in found}
    try:
        for place in places:
            first, last = (end[place].result().offset for end in ends)
            offsets[place.topic][place.partition] = (first, last)
    except KafkaException as error:
        raise BrokerError(
            f"The offsets of topic {place.topic} cannot be read at {bootstrap_servers}: "
            f"{error.args[0].str()}.",
            "Check the broker, then try again.",
        ) from None
    return {
        name: Topic(name, found[name][0], offsets[name], _config(configs[resource]))
        for name, resource in resources.items()
    }


def _described(
    bootstrap_servers: str, topics: Iterable[str]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Id and partitions of those of the topics that are there."""
    admin = AdminClient(_settings(bootstrap_servers))
    asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=_ANSWER_SECONDS)
    found = {}
    for name, answer in asked.items():
        try:
            said = answer.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            raise BrokerError(
                f"Topic {name} cannot be looked at, {bootstrap_servers} says: "
                f"{error.args[0].str()}.",
                "Check the address and how you are let in.",
            ) from None
        id_ = str(said.topic_id)
        found[name] = ("" if id_ == _NO_ID else id_, tuple(part.id for part in said.partitions))
    return found


def _config(answer: Any) -> dict[str, str]:
    """A topic's settings; none where we may not read them."""
    try:
        return {name: entry.value for name, entry in answer.result().items() if entry.value}
    except KafkaException:
        return {}


def first_since(
    bootstrap_servers: str, topic: Topic, times_ms: Iterable[int]
) -> dict[int, list[tuple[int, int]]]:
    """By partition, the first record since each time, as (offset, timestamp); all asked at once."""
    admin = AdminClient(_settings(bootstrap_servers))
    places = [TopicPartition(topic.name, partition) for partition in topic.partitions]
    asked = [
        admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.for_timestamp(at)), request_timeout=_ANSWER_SECONDS
        )
        for at in times_ms
    ]
    found: dict[int, list[tuple[int, int]]] = {place.partition: [] for place in places}
    try:
        for answer in asked:
            for place, future in answer.items():
                said = future.result()
                if said.offset >= 0:
                    found[place.partition].append((said.offset, said.timestamp))
    except KafkaException as error:
        raise BrokerError(
            f"The times of topic {topic.name} cannot be read at {bootstrap_servers}: "
            f"{error.args[0].str()}.",
            "Check the broker, then try again.",
        ) from None
    return found


class Sender:
    """Sends records to one topic and, on leaving the block, waits until every one is stored.

    Up to a thousand records without a key that come together go to one partition in one request,
    so that a reader sees all of them or none.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.sent = 0
        self._topic = topic
        self._failed: list[str] = []
        self._producer = Producer(
            _settings(
                bootstrap_servers,
                **{
                    "linger.ms": 20,
                    "batch.size": _HALF_MEBIBYTE,
                    "queue.buffering.max.messages": 500_000,
                    "queue.buffering.max.kbytes": 256 * 1024,
                    "message.max.bytes": 16 * 1024 * 1024,
                    "enable.idempotence": True,
                    "message.timeout.ms": 60_000,
                },
            )
        )
        # the producer itself is asked: one that sends before it is connected waits half a second
        self._partitions = max(1, _topics_of(self._producer, bootstrap_servers).get(topic, 0))
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


def consume(
    bootstrap_servers: str,
    topic: str,
    *,
    from_beginning: bool = False,
    max_records: int | None = None,
    silence_seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Record]:
    """Records of a topic as they come, until `max_records` or so many seconds without one."""
    partitions = list_topics(bootstrap_servers).get(topic)
    if partitions is None:
        raise BrokerError(
            f"There is no topic {topic} at {bootstrap_servers}.",
            f"There are: {', '.join(sorted(list_topics(bootstrap_servers))) or 'none'}.",
        )
    start = OFFSET_BEGINNING if from_beginning else OFFSET_END
    consumer = _consumer(bootstrap_servers)
    consumer.assign([TopicPartition(topic, p, start) for p in range(partitions)])
    seen, last = 0, time.monotonic()
    try:
        while not stop() and (max_records is None or seen < max_records):
            wanted = 500 if max_records is None else min(500, max_records - seen)
            for message in consumer.consume(wanted, timeout=0.1):
                if (error := message.error()) is not None:
                    raise BrokerError(f"Topic {topic} cannot be read: {error.str()}.")
                seen, last = seen + 1, time.monotonic()
                yield _record(message)
            if silence_seconds is not None and time.monotonic() - last > silence_seconds:
                return
    finally:
        consumer.close()


def consume_range(
    bootstrap_servers: str,
    topic: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
    wanted: Callable[[int, int], bool] = lambda _partition, _offset: True,
) -> Iterator[Record]:
    """The records of offset ranges; a partition is left as soon as `wanted` says so."""
    left = {p: last for p, last in end.items() if last > start.get(p, 0)}
    consumer = _consumer(bootstrap_servers)
    consumer.assign([TopicPartition(topic, p, start.get(p, 0)) for p in left])
    heard = time.monotonic()
    try:
        while left:
            for message in consumer.consume(500, timeout=0.2):
                if (error := message.error()) is not None:
                    raise BrokerError(f"Topic {topic} cannot be read: {error.str()}.")
                heard = time.monotonic()
                record = _record(message)
                if record.partition not in left or record.offset >= left[record.partition]:
                    left.pop(record.partition, None)
                elif wanted(record.partition, record.offset):
                    yield record
                else:
                    left.pop(record.partition)
            for position in consumer.position([TopicPartition(topic, p) for p in left]):
                # the range may end in offsets without a record: aborted or compacted
                if position.offset >= left.get(position.partition, position.offset + 1):
                    left.pop(position.partition, None)
            if time.monotonic() - heard > _ANSWER_SECONDS * 4:
                raise BrokerError.unreachable(bootstrap_servers, _ANSWER_SECONDS * 4)
    finally:
        consumer.close()


def take(
    bootstrap_servers: str, topic: str, ranges: Mapping[int, tuple[int, int]], count: int
) -> list[Record]:
    """The first records of offset ranges, partition by partition, `count` at most; in seconds.

    Of a range that is not kept any more, what is left of it.
    """
    # little ahead of what is asked for: values may be large
    consumer = _consumer(bootstrap_servers, **{"queued.min.messages": 1, "fetch.wait.max.ms": 50})
    found: list[Record] = []
    deadline = time.monotonic() + _ANSWER_SECONDS
    try:
        for partition, (start, end) in sorted(ranges.items()):
            if len(found) >= count or time.monotonic() >= deadline:
                break
            place = TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=_ANSWER_SECONDS)
            first, last = max(start, low), min(end, high)
            if first < last:
                consumer.assign([TopicPartition(topic, partition, first)])
                found += _take(consumer, place, last, count - len(found), deadline)
    except KafkaException as error:
        raise BrokerError(
            f"Topic {topic} cannot be read at {bootstrap_servers}: {error.args[0].str()}.",
            "Check the broker, then try again.",
        ) from None
    finally:
        consumer.close()
    return found


def _take(
    consumer: Consumer, place: TopicPartition, end: int, count: int, deadline: float
) -> Iterator[Record]:
    """The records of the one partition that is assigned, up to an offset."""
    while count > 0 and time.monotonic() < deadline:
        for message in consumer.consume(count, timeout=0.1):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            record = _record(message)
            if record.offset >= end:
                return
            count -= 1
            yield record
        # the range may end in offsets without a record: aborted or compacted
        if consumer.position([place])[0].offset >= end:
            return


def _consumer(bootstrap_servers: str, **more: Any) -> Consumer:
    known: dict[str, Any] = {
        "group.id": f"ebbtide-{uuid.uuid4()}",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": 1_000_000,
    }
    return Consumer(_settings(bootstrap_servers, **known | more))


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
