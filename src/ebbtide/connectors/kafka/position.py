"""The position of a query in Kafka: as `startingOffsets` and as the offsets of a consumer group."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ebbtide.checkpoint import log_files
from ebbtide.connections import KafkaConnection
from ebbtide.connectors.kafka.records import Topic
from ebbtide.connectors.positions import GroupOffset, SourcePosition, SourceStart
from ebbtide.errors import CheckpointError

Partition = tuple[str, int]
_LIMITS = {-1: "latest", -2: "earliest"}
"""What the numbers below 0 mean in `startingOffsets`."""


def locate(start: SourceStart, kind: str) -> SourcePosition:
    """The next record of each partition.

    Spark wants to be told of every partition that a topic has, and of no other. One that was added
    since is read from its beginning, as Spark does when it finds it; one that is gone is left out.
    """
    position = dict(log_files.kafka_positions([start.offset]))
    if start.offset is None:
        remark = "where it began is not noted: a new query begins as its own options say"
        return SourcePosition(start.index, kind, None, remarks=(remark,))
    latest = log_files.kafka_positions([start.latest])
    topics = _ask(start.connection, {**latest, **position})
    held = _held(topics) if topics is not None else latest.keys() or position.keys()
    gone, added = sorted(position.keys() - held), sorted(held - position.keys())
    position |= dict.fromkeys(added, 0)
    kept = {key: offset for key, offset in sorted(position.items()) if key in held}
    remarks = [
        *(f"{_name(key)} is gone, and left out" for key in gone),
        *(f"{_name(key)} was added since, and is read from its beginning" for key in added),
        *(
            f"{_name(key)} begins with the {_LIMITS.get(offset, offset)} record, which is no place "
            "for a consumer group"
            for key, offset in kept.items()
            if offset < 0
        ),
        *(_find_problems(kept, topics) if topics is not None else ()),
    ]
    groups = tuple(GroupOffset(*key, offset) for key, offset in kept.items() if offset >= 0)
    options = {"startingOffsets": format_offsets(kept)} if kept else {}
    return SourcePosition(
        start.index, kind, start.offset, options, groups, tuple(remarks), can_fork=True
    )


def seed(start: SourceStart) -> Mapping[str, str]:
    """The file in which Spark notes where a query begins: it asks for no option then."""
    position = log_files.kafka_positions([start.offset])
    if start.offset is None and start.latest is not None:
        raise CheckpointError(
            f"{start.name} has no file {start.directory}/0, which says where it began.",
            "Choose a later batch.",
        )
    for key, offset in position.items():
        if offset < 0:
            raise CheckpointError(
                f"{start.name} begins {_name(key)} with the {_LIMITS.get(offset, offset)} record: "
                "that is no offset.",
                "Choose a later batch.",
            )
    return {f"{start.directory}/0": f"\0v1\n{format_offsets(position)}"} if position else {}


def format_offsets(position: log_files.Positions) -> str:
    """As Spark writes them.

    >>> format_offsets({("visits", 1): 5, ("visits", 0): 3})
    '{"visits":{"0":3,"1":5}}'
    """
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(position.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(by_topic, separators=(",", ":"))


def _ask(
    connection: KafkaConnection | None, position: log_files.Positions
) -> Mapping[str, Topic] | None:
    """A broker's description of the topics; a guessed broker that has none counts as not asked."""
    from ebbtide.connectors.kafka.admin import describe_topics

    if connection is None or not position:
        return None
    topics = describe_topics(connection, sorted({topic for topic, _ in position}))
    return topics if topics or not connection.guessed else None


def _held(topics: Mapping[str, Topic]) -> set[Partition]:
    return {(name, number) for name, topic in topics.items() for number in topic.partitions}


def _find_problems(position: log_files.Positions, topics: Mapping[str, Topic]) -> Iterator[str]:
    for (name, number), offset in position.items():
        earliest, latest = topics[name].partitions[number]
        if 0 <= offset < earliest:
            yield f"{_name((name, number))}: {earliest - offset:,} records have aged out of Kafka"
        elif offset > latest:
            yield f"{_name((name, number))} ends at {latest}, before {offset}: it was recreated"


def _name(key: Partition) -> str:
    return f"{key[0]} partition {key[1]}"
