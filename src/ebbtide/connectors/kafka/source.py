"""Kafka offsets and a broker's answers in, out: is what is read again still there?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from ebbtide.checkpoint.layout import NOTES
from ebbtide.checkpoint.reader import Checkpoint, Positions
from ebbtide.connectors.kafka.connection import KafkaConnection
from ebbtide.connectors.kafka.records import Topic
from ebbtide.rewind.checks import OK, REFUSE, WARN, Check, Replayed

Topics = Mapping[str, Topic]
"""What the broker says of the topics that it has; a topic that is left out is gone."""


def ask_topics(checkpoint: Checkpoint, connection: KafkaConnection | None) -> Topics | None:
    """What a broker says of a query's topics; None if nobody was asked.

    A guessed broker that has none of them counts as not asked.
    """
    from ebbtide.connectors.kafka.admin import describe_topics

    read = {topic for batch in checkpoint.logs.batches[-1:] for topic, _ in batch.positions}
    if connection is None or not read:
        return None
    topics = describe_topics(connection, sorted(read))
    return topics if topics or not connection.guessed else None


def list_replayed(
    checkpoint: Checkpoint, batch: int, topics: Topics | None
) -> tuple[Replayed, ...]:
    """By partition, what a rewind to a batch reads again and whether it is still there."""
    return list_from(checkpoint, checkpoint.start(batch), topics)


def list_from(
    checkpoint: Checkpoint, start: Positions, topics: Topics | None
) -> tuple[Replayed, ...]:
    """By partition, what is read from some offsets on and whether it is still there."""
    current = checkpoint.logs.batches[-1].positions
    parts = [
        Replayed(topic, partition, end, start.get((topic, partition), 0))
        for (topic, partition), end in sorted(current.items())
    ]
    if topics is None:
        return tuple(parts)
    added = [
        Replayed(topic, partition, 0, 0)
        for topic in sorted({part.topic for part in parts})
        for partition in sorted(topics[topic].partitions if topic in topics else ())
        if (topic, partition) not in current
    ]
    known = {
        (part.topic, part.partition) for part in parts if (part.topic, part.partition) in start
    }
    return tuple(
        _with_retention(part, topics.get(part.topic), (part.topic, part.partition) in known)
        for part in (*parts, *added)
    )


def _with_retention(part: Replayed, topic: Topic | None, known: bool) -> Replayed:
    if topic is None or part.partition not in topic.partitions:
        status = "the topic is gone" if topic is None else "the partition is gone"
        return replace(part, status=status)
    earliest, latest = topic.partitions[part.partition]
    status = "ok"
    if earliest > part.new and (part.records or not known):
        # Spark reads a partition that it has not seen from its beginning, and wants that to be 0
        lost = min(earliest, part.current) - part.new or earliest
        status = f"{lost:,} records have aged out of Kafka"
    elif latest < part.current:
        status = f"the topic ends at {latest}, before {part.current}: it was made anew"
    return replace(part, earliest=earliest, latest=latest, status=status)


def check_kafka(
    replayed: tuple[Replayed, ...],
    topics: Topics | None,
    batch: int,
    noted: Mapping[str, Any] | None,
) -> tuple[Check, ...]:
    """Whether Kafka still holds what a rewind to a batch reads again; `noted` is the runner's word.

    How many records that are is an upper limit: the marks of transactions have offsets, too.
    """
    if not replayed:
        return ()
    if topics is None:
        return (
            Check(
                "kafka",
                WARN,
                "nobody asked Kafka whether it still holds the records",
                "Add --bootstrap-servers.",
            ),
        )
    archived = "Choose a later batch, or reprocess the range from an archive."
    if (anew := made_anew(topics, batch, noted)) is not None:
        mirrored = "If it is a mirror with the same offsets, remove topic_ids from"
        return (Check("kafka", REFUSE, anew, f"{archived} {mirrored} {NOTES}/pipeline.json."),)
    if bad := [part for part in replayed if part.status != "ok"]:
        first = bad[0]
        more = f" (and {len(bad) - 1} more partitions)" if len(bad) > 1 else ""
        where = f"{first.topic} partition {first.partition}"
        return (Check("kafka", REFUSE, f"{where}: {first.status}{more}", archived),)
    records = sum(part.records for part in replayed)
    held = Check("kafka", OK, f"holds the whole range: at most {records:,} records")
    return (held, *_check_compacted(topics.values()))


def _check_compacted(topics: Iterable[Topic]) -> tuple[Check, ...]:
    names = [topic.name for topic in topics if topic.compacted]
    if not names:
        return ()
    said = f"topic {names[0]} is" if len(names) == 1 else f"topics {', '.join(names)} are"
    return (
        Check(
            "compaction",
            WARN,
            f"{said} compacted: a record whose key came again later may be gone, so that a batch "
            "reads fewer than it did",
            "Where that matters, reprocess from an archive.",
        ),
    )


def made_anew(topics: Topics, batch: int, noted: Mapping[str, Any] | None) -> str | None:
    """Which topic was deleted and made again since a batch or a later one read it.

    >>> noted = {"kind": "kafka", "path": "t", "topic_ids": [{"id": "x", "since_batch": 0}]}
    >>> made_anew({"t": Topic("t", "y", {})}, 3, noted)
    'topic t is not the one that was read: it was made anew'
    """
    if not noted or noted.get("kind") != "kafka" or (topic := topics.get(noted["path"])) is None:
        return None
    ids = noted.get("topic_ids", ())
    ends = [later["since_batch"] for later in ids[1:]]
    for known, end in zip_longest(ids, ends):
        if topic.id and known["id"] != topic.id and (end is None or end > batch):
            return f"topic {topic.name} is not the one that was read: it was made anew"
    return None
