"""Ask a broker about its topics and offsets, and create topics, without a JVM."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from ebbtide.config import Settings
from ebbtide.connections import KafkaConnection
from ebbtide.connectors.kafka import clients
from ebbtide.connectors.kafka.clients import ANSWER_SECONDS, broker_errors, make_client
from ebbtide.connectors.kafka.diagnosis import diagnose, is_final
from ebbtide.connectors.kafka.records import DEFAULT_PARTITIONS, Topic
from ebbtide.errors import BrokerError, EbbtideError
from ebbtide.pipeline import Endpoint

_GLANCE_SECONDS = 1.0
"""After so long it is looked whether the broker has refused us for good."""
_NO_ID = "A" * 22
"""The text form of an id that is all zeros."""

Offsets = dict[int, tuple[int, int]]
"""By partition, the earliest offset that Kafka still holds and the next one to be written."""


def _admin(connection: KafkaConnection, **more: Any) -> AdminClient:
    return make_client(AdminClient, connection, **more)


def find_problem(
    connection: KafkaConnection, timeout_seconds: float = ANSWER_SECONDS
) -> EbbtideError | None:
    """Why no broker answers within the time, or why none can be asked; None if one does."""
    try:
        _read_metadata(connection, timeout_seconds)
    except EbbtideError as error:
        return error
    return None


def _read_metadata(connection: KafkaConnection, timeout_seconds: float) -> Any:
    """What a broker says of the cluster; refused, with the reason, if none answers in time."""
    errors: list[KafkaError] = []
    admin = _admin(connection, error_cb=errors.append)
    began = time.monotonic()
    while True:
        left = began + timeout_seconds - time.monotonic()
        try:
            return admin.list_topics(timeout=max(0.0, min(left, _GLANCE_SECONDS)))
        except KafkaException:
            admin.poll(0)  # which has the reasons
        if left <= _GLANCE_SECONDS or is_final(errors):
            raise diagnose(connection, errors, time.monotonic() - began)


def require_brokers(settings: Settings, endpoints: Iterable[Endpoint]) -> None:
    """Refuse unless the broker of each endpoint answers and Spark can be told how to reach it."""
    asked: list[KafkaConnection] = []
    for endpoint in endpoints:
        if not endpoint.topics:
            continue
        connection = settings.connect(endpoint.connection)
        if connection not in asked:
            connection.spark_options()
            if (problem := find_problem(connection)) is not None:
                raise problem
            asked.append(connection)


def list_topics(connection: KafkaConnection, producer: Producer | None = None) -> dict[str, int]:
    """The topics with the number of partitions of each, without Kafka's own.

    A `producer` that is given asks for them, and is connected then.
    """
    try:
        if producer is None:
            topics = _read_metadata(connection, ANSWER_SECONDS).topics
        else:
            topics = producer.list_topics(timeout=ANSWER_SECONDS).topics
    except KafkaException:
        unreachable = BrokerError.unreachable(str(connection), ANSWER_SECONDS)
        raise find_problem(connection) or unreachable from None
    return {n: len(t.partitions) for n, t in topics.items() if not n.startswith("__")}


def create_missing_topics(
    connection: KafkaConnection,
    topics: Iterable[str],
    partitions: int = DEFAULT_PARTITIONS,
    config: Mapping[str, str] | None = None,
) -> list[str]:
    """Create the topics that do not exist; returns their names."""
    existing = list_topics(connection)
    missing = [topic for topic in dict.fromkeys(topics) if topic not in existing]
    if not missing:
        return []
    admin = _admin(connection)
    created = admin.create_topics(
        [NewTopic(topic, num_partitions=partitions, config=dict(config or {})) for topic in missing]
    )
    for topic, future in created.items():
        problem = f"Topic {topic} cannot be created"
        next_step = "Create it yourself, or name another."
        # another process may have created it in the meantime
        created_since = KafkaError.TOPIC_ALREADY_EXISTS
        with broker_errors(connection, problem, next_step, ignored=created_since):
            future.result(timeout=ANSWER_SECONDS)
    _wait_for_leaders(admin, missing)
    return missing


def _wait_for_leaders(admin: AdminClient, topics: Iterable[str]) -> None:
    """A topic that was just created cannot be read until each partition has a leader."""
    deadline = time.monotonic() + ANSWER_SECONDS
    for topic in topics:
        while time.monotonic() < deadline:
            partitions = admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions
            if partitions and all(p.leader >= 0 for p in partitions.values()):
                break
            time.sleep(0.02)


def retained_offsets(connection: KafkaConnection, topic: str) -> Offsets:
    """For each partition, the earliest offset that is still held and the next to be written."""
    problem = f"The offsets of topic {topic} cannot be read"
    with clients.open_consumer(connection, problem) as consumer:
        return {
            partition: consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=ANSWER_SECONDS
            )
            for partition in range(list_topics(connection).get(topic, 0))
        }


def offsets_since(connection: KafkaConnection, topic: str, since_ms: int) -> Offsets:
    """By partition: the first offset written at a time or later, and the end; none if no topic."""
    retained = retained_offsets(connection, topic)
    if not retained:
        return {}
    found = first_since(connection, Topic(topic, "", retained), [since_ms])
    firsts = {partition: records[0][0] for partition, records in found.items() if records}
    return {p: (firsts.get(p, end), end) for p, (_, end) in retained.items()}


def topic_ids(connection: KafkaConnection, topics: Iterable[str]) -> dict[str, str]:
    """The ids of those of the topics that exist; empty where the broker gives none."""
    return {name: id_ for name, (id_, _) in _ids_and_partitions(connection, topics).items()}


def describe_topics(connection: KafkaConnection, topics: Iterable[str]) -> dict[str, Topic]:
    """The ids, offsets and settings of those of the topics that exist."""
    described = _ids_and_partitions(connection, topics)
    if not described:
        return {}
    admin = _admin(connection)
    resources = {name: ConfigResource(ConfigResource.Type.TOPIC, name) for name in described}
    configs = admin.describe_configs(list(resources.values()), request_timeout=ANSWER_SECONDS)
    places = [TopicPartition(name, p) for name, (_, parts) in described.items() for p in parts]
    ends = [
        admin.list_offsets(dict.fromkeys(places, spec), request_timeout=ANSWER_SECONDS)
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
    ]
    offsets: dict[str, Offsets] = {name: {} for name in described}
    for place in places:
        with broker_errors(connection, f"The offsets of topic {place.topic} cannot be read"):
            first, last = (end[place].result().offset for end in ends)
        offsets[place.topic][place.partition] = (first, last)
    return {
        name: Topic(name, described[name][0], offsets[name], _config(configs[resource]))
        for name, resource in resources.items()
    }


def _ids_and_partitions(
    connection: KafkaConnection, topics: Iterable[str]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    admin = _admin(connection)  # held until the last answer: it fails those that are still to come
    answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=ANSWER_SECONDS)
    described = {}
    for name, answer in answers.items():
        problem = f"Topic {name} cannot be described"
        next_step = "Check the address and your credentials."
        missing = KafkaError.UNKNOWN_TOPIC_OR_PART
        with broker_errors(connection, problem, next_step, ignored=missing):
            topic = answer.result()
            id_ = str(topic.topic_id)
            described[name] = ("" if id_ == _NO_ID else id_, tuple(p.id for p in topic.partitions))
    return described


def _config(answer: Any) -> dict[str, str]:
    """A topic's settings; none where we may not read them."""
    try:
        return {name: entry.value for name, entry in answer.result().items() if entry.value}
    except KafkaException:
        return {}


def first_since(
    connection: KafkaConnection, topic: Topic, times_ms: Iterable[int]
) -> dict[int, list[tuple[int, int]]]:
    """By partition, the first record since each time, as (offset, timestamp); all asked at once."""
    admin = _admin(connection)
    places = [TopicPartition(topic.name, partition) for partition in topic.partitions]
    answers = [
        admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.for_timestamp(at)), request_timeout=ANSWER_SECONDS
        )
        for at in times_ms
    ]
    records: dict[int, list[tuple[int, int]]] = {place.partition: [] for place in places}
    with broker_errors(connection, f"The times of topic {topic.name} cannot be read"):
        for answer in answers:
            for place, future in answer.items():
                first = future.result()
                if first.offset >= 0:
                    records[place.partition].append((first.offset, first.timestamp))
    return records
