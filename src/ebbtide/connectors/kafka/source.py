"""Kafka as a source: whether it still holds what is read again, and until when."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import zip_longest
from typing import Any

from ebbtide.checkpoint import Checkpoint, log_files
from ebbtide.checks import Check, CheckKind, PartVerdict
from ebbtide.config import Settings
from ebbtide.connections import KafkaConnection
from ebbtide.connectors import base
from ebbtide.connectors.kafka.changed import (
    compare_partitions,
    compare_topics,
    recognize_topics,
)
from ebbtide.connectors.kafka.records import Topic
from ebbtide.connectors.positions import SourcePosition, SourceStart
from ebbtide.connectors.streams import LastRead, SourceLog, StreamRead
from ebbtide.errors import BrokerError
from ebbtide.pipeline import Kafka
from ebbtide.storage import NOTES, Folder
from ebbtide.times import EPOCH

Topics = Mapping[str, Topic]
"""The topics that the broker has, by name; a topic that is not among them is gone."""
Note = Mapping[str, Any]
_STEPS = 32
"""Into how many steps a topic's retention is divided, to look up times between batches."""


class KafkaSource(base.SourceConnector[Kafka]):
    """Topics that a query reads."""

    def owns(self, offset: Any) -> bool:
        return log_files.is_kafka_offset(offset)

    def format_offset(self, offset: Any) -> str:
        return " ".join(
            f"{topic} " + " ".join(f"{p}:{position}" for p, position in partitions.items())
            for topic, partitions in offset.items()
        )

    def names_in(self, offset: str) -> tuple[str, ...]:
        return tuple(sorted(log_files.parse_kafka_offset(offset)))

    def recognize(self, name: str, options: Mapping[str, str]) -> StreamRead | None:
        return recognize_topics(options) if name.lower() == "kafka" else None

    def list_read(self, log: SourceLog) -> LastRead:
        return LastRead(self.names_in(log.end))

    def compare_read(
        self, part: str, old: LastRead, new: StreamRead, others: Sequence[StreamRead]
    ) -> PartVerdict:
        return compare_topics(part, old.names, new, others)

    def compare_offset(self, part: str, offset: str, new: StreamRead) -> PartVerdict | None:
        return compare_partitions(part, offset, new)

    def find_mismatch(self, source: Kafka, kind: str, names: tuple[str, ...]) -> str | None:
        if kind != source.kind:
            return "of a query that does not read Kafka"
        if names and names != source.topics:
            return f"of a query that reads topic {', '.join(names)}"
        return None

    def describe(
        self, source: Kafka, settings: Settings, folder: Folder, before: Mapping[str, Any]
    ) -> dict[str, Any]:
        ids = list(before.get("topic_ids", ()))
        if (id_ := _topic_id(source, settings)) and (not ids or ids[-1]["id"] != id_):
            batches = folder.ids("offsets")
            ids.append({"id": id_, "since_batch": batches[-1] + 1 if batches else 0})
        return {"kind": source.kind, "path": source.topic, "topic_ids": ids}

    def locate(self, start: SourceStart, kind: str) -> SourcePosition:
        from ebbtide.connectors.kafka.position import locate

        return locate(start, kind)

    def seed(self, start: SourceStart) -> Mapping[str, str]:
        from ebbtide.connectors.kafka.position import seed

        return seed(start)

    def check(self, replay: base.SourceReplay) -> base.SourceVerdict:
        checkpoint, batch = replay.checkpoint, replay.batch
        topics = ask_topics(checkpoint, replay.connection)
        partitions = list_from(checkpoint, checkpoint.start(batch), topics)
        return base.SourceVerdict(check_kafka(partitions, topics, batch, replay.note), partitions)

    def limit(self, asked: base.RetentionRequest) -> base.Retention:
        try:
            topics = ask_topics(asked.checkpoint, asked.connection)
            limits = {} if topics is None else limit_by_kafka(asked, topics)
        except BrokerError as error:
            return base.Retention({}, (f"How long Kafka keeps the records is not known: {error}",))
        return base.Retention(limits, tuple(_remark_topics(topics)))


def _topic_id(source: Kafka, settings: Settings) -> str:
    """The topic's id, or "" if no broker answers: a run does not depend on it."""
    from ebbtide.connectors.kafka.admin import topic_ids

    if source.needs_broker and not settings.names_kafka:
        return ""
    try:
        connection = settings.connect(source.connection)
        return topic_ids(connection, source.topics).get(source.topic, "")
    except BrokerError:
        return ""


def ask_topics(checkpoint: Checkpoint, connection: KafkaConnection | None) -> Topics | None:
    """A broker's description of a query's topics; None if no broker was asked.

    A guessed broker that has none of them counts as not asked.
    """
    read = {topic for batch in checkpoint.logs.batches[-1:] for topic, _ in batch.positions}
    if connection is None or not read:
        return None
    from ebbtide.connectors.kafka.admin import describe_topics

    topics = describe_topics(connection, sorted(read))
    return topics if topics or not connection.guessed else None


def list_from(
    checkpoint: Checkpoint, start: log_files.Positions, topics: Topics | None
) -> tuple[base.Replayed, ...]:
    """By partition, what is read from some offsets on and whether it is still there."""
    current = checkpoint.logs.batches[-1].positions
    parts = [
        base.Replayed(topic, partition, end, start.get((topic, partition), 0))
        for (topic, partition), end in sorted(current.items())
    ]
    if topics is None:
        return tuple(parts)
    added = [
        base.Replayed(topic, partition, 0, 0)
        for topic in sorted({part.topic for part in parts})
        for partition in sorted(topics[topic].partitions if topic in topics else ())
        if (topic, partition) not in current
    ]
    seen = current.keys() & start.keys()
    return tuple(
        _with_retention(part, topics.get(part.topic), (part.topic, part.partition) in seen)
        for part in (*parts, *added)
    )


def _with_retention(part: base.Replayed, topic: Topic | None, was_seen: bool) -> base.Replayed:
    if topic is None or part.partition not in topic.partitions:
        status = "the topic is gone" if topic is None else "the partition is gone"
        return replace(part, status=status)
    earliest, latest = topic.partitions[part.partition]
    status = "ok"
    if earliest > part.new and (part.records or not was_seen):
        # Spark reads a partition that it has not seen from its beginning, and wants that to be 0
        lost = min(earliest, part.current) - part.new or earliest
        status = f"{lost:,} records have aged out of Kafka"
    elif latest < part.current:
        status = f"the topic ends at {latest}, before {part.current}: it was recreated"
    return replace(part, earliest=earliest, latest=latest, status=status)


def check_kafka(
    replayed: tuple[base.Replayed, ...], topics: Topics | None, batch: int, note: Note | None
) -> tuple[Check, ...]:
    """Whether Kafka still holds what a rewind to a batch reads again; `note` is the runner's.

    The number of records is an upper limit: the markers of transactions have offsets, too.
    """
    if not replayed:
        return ()
    if topics is None:
        unasked = "nobody asked Kafka whether it still holds the records"
        return (CheckKind.KAFKA.warn(unasked, "Add --bootstrap-servers."),)
    archived = "Choose a later batch, or reprocess the range from an archive."
    if (problem := was_recreated(topics, batch, note)) is not None:
        mirrored = "If it is a mirror with the same offsets, remove topic_ids from"
        next_step = f"{archived} {mirrored} {NOTES}/pipeline.json."
        return (CheckKind.KAFKA.refuse(problem, next_step),)
    if bad := [part for part in replayed if part.status != "ok"]:
        first = bad[0]
        more = f" (and {len(bad) - 1} more partitions)" if len(bad) > 1 else ""
        where = f"{first.topic} partition {first.partition}"
        return (CheckKind.KAFKA.refuse(f"{where}: {first.status}{more}", archived),)
    records = sum(part.records for part in replayed)
    held = CheckKind.KAFKA.ok(f"holds the whole range: at most {records:,} records")
    names = [topic.name for topic in topics.values() if topic.compacted]
    if not names:
        return (held,)
    which = f"topic {names[0]} is" if len(names) == 1 else f"topics {', '.join(names)} are"
    compacted = CheckKind.COMPACTION.warn(
        f"{which} compacted: a record whose key came again later may be gone, so that a batch "
        "reads fewer than it did",
        "Where that matters, reprocess from an archive.",
    )
    return (held, compacted)


def was_recreated(topics: Topics, batch: int, note: Note | None) -> str | None:
    """Which topic was deleted and created again since a batch or a later one read it.

    >>> note = {"path": "t", "topic_ids": [{"id": "x", "since_batch": 0}]}
    >>> was_recreated({"t": Topic("t", "y", {})}, 3, note)
    'topic t is not the one that was read: it was recreated'
    """
    if not note or (topic := topics.get(note.get("path", ""))) is None:
        return None
    ids = note.get("topic_ids", ())
    ends = [later["since_batch"] for later in ids[1:]]
    for read, end in zip_longest(ids, ends):
        if topic.id and read["id"] != topic.id and (end is None or end > batch):
            return f"topic {topic.name} is not the one that was read: it was recreated"
    return None


def limit_by_kafka(asked: base.RetentionRequest, topics: Topics) -> dict[int, base.Limit]:
    """How long Kafka keeps the records from the first of a batch on.

    Kafka drops a partition's records from the oldest on, and stops at the first segment with one
    that is young enough. So a record stays as long as the youngest before it, or it itself, does.
    Of the batches that only the history knows, the oldest one that Kafka still has is named.
    """
    checkpoint, now_ms = asked.checkpoint, (asked.now - EPOCH) // timedelta(milliseconds=1)
    times = {
        name: _first_since(asked, topic, now_ms)
        for name, topic in topics.items()
        if topic.retention_ms is not None
    }

    def judge(batch: int, start: log_files.Positions) -> base.Limit:
        parts = list_from(checkpoint, start, topics)
        bad = next((part for part in parts if part.status != "ok"), None)
        gone = was_recreated(topics, batch, asked.note)
        if gone is None and bad is not None:
            gone = f"{bad.topic} partition {bad.partition}: {bad.status}"
        if gone is not None:
            return base.Limit(Kafka.kind, gone=gone)
        ends = []
        for part in parts:
            retention = topics[part.topic].retention_ms
            if retention is None or part.latest is None or part.new >= part.latest:
                continue
            stamps = [at for offset, at in times[part.topic][part.partition] if offset <= part.new]
            # one that is older than the retention may go at any moment
            ends.append(max(max(stamps, default=0) + retention, now_ms))
        return base.Limit(Kafka.kind, base.from_millis(min(ends, default=None)))

    limits = {batch: judge(batch, checkpoint.start(batch)) for batch in asked.batches}
    return _oldest_kept(asked, judge) | limits


def _oldest_kept(
    asked: base.RetentionRequest, judge: Callable[[int, log_files.Positions], base.Limit]
) -> dict[int, base.Limit]:
    """The oldest batch of the history that Kafka still has; it has those after it, too."""
    logged, offsets = asked.checkpoint.logs.by_id, asked.older
    older = [id_ for id_ in sorted(offsets) if id_ not in logged and id_ - 1 in offsets]

    def limit(id_: int) -> base.Limit:
        before = log_files.kafka_positions(offsets[id_ - 1])
        return judge(id_, {**asked.checkpoint.first_offsets, **before})

    at = bisect_left(older, True, key=lambda id_: limit(id_).gone is None)
    return {older[at]: limit(older[at])} if at < len(older) else {}


def _first_since(
    asked: base.RetentionRequest, topic: Topic, end: int
) -> dict[int, list[tuple[int, int]]]:
    """By partition, the first records since some times: those of the batches, and some between."""
    from ebbtide.connectors.kafka.admin import first_since

    assert asked.connection is not None
    oldest = end - min(topic.retention_ms or 0, end)
    planned = {batch.offsets.timestamp_ms for batch in asked.checkpoint.logs.batches}
    steps = {end - (end - oldest) * step // _STEPS for step in range(_STEPS + 1)}
    times = sorted(at for at in planned | steps if oldest <= at <= end)
    return first_since(asked.connection, topic, times)


def _remark_topics(topics: Topics | None) -> list[str]:
    if topics is None:
        return ["How long Kafka keeps the records is not known: add --bootstrap-servers."]
    remarks = []
    for topic in topics.values():
        if (size := topic.retention_bytes) is not None:
            remarks.append(
                f"Topic {topic.name} keeps at most {size:,} bytes a partition: "
                "it may let go of records earlier."
            )
        if topic.compacted:
            remarks.append(
                f"Topic {topic.name} is compacted: a record whose key came again later may be gone."
            )
    return remarks
