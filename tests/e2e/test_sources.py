"""What a real broker says of the topics that a rewind reads again; checkpoints made by hand."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from ebbtide import Kafka
from ebbtide.checkpoint import Owner, read_checkpoint
from ebbtide.checks import Check
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka.admin import list_topics
from ebbtide.connectors.kafka.source import ask_topics
from ebbtide.errors import BrokerError
from ebbtide.history import Entry
from ebbtide.retention.limits import read_windows
from ebbtide.rewind import RewindRequest, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.runtime.ownership import claim
from ebbtide.times import in_utc
from tests.conftest import Cli
from tests.e2e.conftest import wait_until
from tests.trees import build
from tests.unit.test_pipeline import PIPELINE

HOUR_MS = 3_600_000


def send(settings: Settings, topic: str, count: int, partitions: int = 2) -> None:
    with kafka.Sender(settings.kafka, topic) as sender:
        for n in range(count):
            sender.send(b"%d" % n, b"key", partition=n % partitions)


def checkpoint_of(folder: Path, topic: str, *ends: tuple[int, ...]) -> Path:
    """A checkpoint whose batches read up to these offsets, partition by partition."""
    build(folder, len(ends), len(ends))
    first = json.dumps({topic: {str(p): 0 for p in range(len(ends[0]))}})
    (folder / "sources" / "0" / "0").write_bytes(b"\x00v1\n" + first.encode())
    for n, end in enumerate(ends):
        meta = {"batchWatermarkMs": 0, "batchTimestampMs": n * HOUR_MS, "conf": {}}
        offset = {topic: {str(p): at for p, at in enumerate(end)}}
        (folder / "offsets" / str(n)).write_text(f"v1\n{json.dumps(meta)}\n{json.dumps(offset)}")
    for file in (folder / "offsets").glob(".*.crc"):
        file.unlink()
    return folder


def verdicts(settings: Settings, checkpoint: Path, batch: int) -> dict[str, Check]:
    plan = plan_rewind(
        RewindRequest(str(checkpoint), ToBatch(batch), assume_stopped=True),
        connection=settings.kafka,
    )
    return {check.name: check for check in plan.checks}


def delete_topic(settings: Settings, topic: str) -> None:
    admin = AdminClient(settings.kafka.client_settings())
    for future in admin.delete_topics([topic]).values():
        future.result(60)
    wait_until(lambda: topic not in list_topics(settings.kafka))


def test_a_topic_that_was_recreated_is_refused_however_much_it_holds(
    settings: Settings, tmp_path: Path
) -> None:
    kafka.create_missing_topics(settings.kafka, ["visits"])
    send(settings, "visits", 8)
    pipeline = replace(PIPELINE, source=Kafka("visits", schema="event_time TIMESTAMP"))
    checkpoint = checkpoint_of(tmp_path / "c", "visits", (1, 1), (2, 3), (4, 4))
    with claim(str(checkpoint), pipeline, settings):
        pass
    # what was read before the note was taken cannot be told
    assert verdicts(settings, checkpoint, 1)["kafka"].detail == (
        "holds the whole range: at most 6 records"
    )
    note = json.loads((checkpoint / ".ebbtide" / "pipeline.json").read_text())
    (known,) = note["source"]["topic_ids"]
    assert known["since_batch"] == 3

    # one more batch, by that run; then the topic is deleted, and made again with more records
    checkpoint_of(checkpoint, "visits", (1, 1), (2, 3), (4, 4), (4, 4))
    delete_topic(settings, "visits")
    assert "the topic is gone" in verdicts(settings, checkpoint, 1)["kafka"].detail
    kafka.create_missing_topics(settings.kafka, ["visits"])
    send(settings, "visits", 30)
    check = verdicts(settings, checkpoint, 3)["kafka"]
    assert check.verdict == "refuse"
    assert check.detail == "topic visits is not the one that was read: it was recreated"
    windows = read_windows(read_checkpoint(str(checkpoint)), Owner(**note), settings.kafka)
    assert {window.closes_first for window in windows.by_batch.values()} == {"kafka"}
    assert windows.oldest is None

    # a run on the new topic: what it reads can be read again, what went before cannot
    with claim(str(checkpoint), pipeline, settings):
        pass
    checkpoint_of(checkpoint, "visits", (1, 1), (2, 3), (4, 4), (4, 4), (9, 9))
    assert verdicts(settings, checkpoint, 4)["kafka"].verdict == "ok"
    assert verdicts(settings, checkpoint, 3)["kafka"].verdict == "refuse"


def test_a_broker_that_does_not_know_the_topic_proves_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    """The embedded broker of the home is only a guess; one that was named is not."""
    checkpoint = read_checkpoint(str(checkpoint_of(tmp_path / "c", "elsewhere", (1, 1), (2, 3))))
    assert ask_topics(checkpoint, replace(settings.kafka, guessed=True)) is None
    assert ask_topics(checkpoint, settings.kafka) == {}


def test_a_compacted_topic_may_give_less(settings: Settings, tmp_path: Path) -> None:
    config = {"cleanup.policy": "compact"}
    kafka.create_missing_topics(settings.kafka, ["prices"], config=config)
    send(settings, "prices", 6)
    checkpoint = checkpoint_of(tmp_path / "c", "prices", (1, 1), (3, 3))
    found = verdicts(settings, checkpoint, 1)
    assert (found["kafka"].verdict, found["compaction"].verdict) == ("ok", "warn")
    assert found["compaction"].detail.startswith("topic prices is compacted: a record whose key")


def test_partitions_that_were_added(settings: Settings, tmp_path: Path) -> None:
    kafka.create_missing_topics(settings.kafka, ["visits"])
    send(settings, "visits", 8)
    admin = AdminClient(settings.kafka.client_settings())
    admin.create_partitions([NewPartitions("visits", 4)])["visits"].result(60)
    wait_until(lambda: len(kafka.retained_offsets(settings.kafka, "visits")) == 4)
    send(settings, "visits", 40, partitions=4)
    # batch 2 is the first that knows partition 2; no batch knows partition 3
    checkpoint = checkpoint_of(tmp_path / "c", "visits", (1, 1), (4, 4), (6, 6, 5))
    found = verdicts(settings, checkpoint, 1)["kafka"]
    # from partition 2 all that batch 2 read, though the batch before knows nothing of it
    assert (found.verdict, found.detail) == ("ok", "holds the whole range: at most 15 records")

    def drop(partition: int, before: int) -> None:
        place = TopicPartition("visits", partition, before)
        for future in admin.delete_records([place]).values():
            future.result(60)

    drop(3, 2)
    assert "visits partition 3: 2 records have aged out" in (
        verdicts(settings, checkpoint, 1)["kafka"].detail
    )
    drop(2, 4)
    assert "visits partition 2: 4 records have aged out of Kafka (and 1 more" in (
        verdicts(settings, checkpoint, 1)["kafka"].detail
    )


def test_until_when_kafka_keeps_what_a_batch_needs(
    settings: Settings, tmp_path: Path, inside: Cli
) -> None:
    """Ten records, four minutes apart; batch n begins with the n-th; an hour is kept."""
    config = {"retention.ms": str(HOUR_MS), "retention.bytes": "1000000"}
    kafka.create_missing_topics(settings.kafka, ["visits"], partitions=1, config=config)
    now = int(time.time() * 1000)
    written = [now - (10 - n) * 240_000 for n in range(10)]
    producer = Producer(settings.kafka.client_settings())
    for at in written:
        producer.produce("visits", b"{}", timestamp=at)
    producer.flush(60)
    checkpoint = checkpoint_of(tmp_path / "c", "visits", *((n + 1,) for n in range(10)))
    found = read_windows(read_checkpoint(str(checkpoint)), Owner(), settings.kafka)
    assert found.remarks == (
        "Topic visits keeps at most 1,000,000 bytes a partition: it may let go of records earlier.",
    )
    assert {window.closes_first for window in found.by_batch.values()} == {"kafka"}
    ends = [in_utc(window.until) for window in found.by_batch.values() if window.until]
    assert ends == [in_utc(at + HOUR_MS) for at in written]

    shown = inside("inspect", checkpoint, "--bootstrap-servers", settings.kafka.address)
    assert f"Kafka closes it first, not before {ends[0][:16].replace('T', ' ')}" in shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 80
    # three records have gone, and the batches that begin with them can run no more
    admin = AdminClient(settings.kafka.client_settings())
    for future in admin.delete_records([TopicPartition("visits", 0, 3)]).values():
        future.result(60)
    answer = inside(
        "inspect", checkpoint, "--bootstrap-servers", settings.kafka.address, "-o", "json"
    )
    after = json.loads(answer.stdout)
    assert (after["oldest_restorable"], after["oldest_replayable"]) == (0, 3)
    assert after["batches"][2]["closed"] == "visits partition 0: 1 records have aged out of Kafka"


def test_records_older_than_the_retention_may_go_at_any_moment(
    settings: Settings, tmp_path: Path
) -> None:
    config = {"retention.ms": str(HOUR_MS)}
    kafka.create_missing_topics(settings.kafka, ["visits"], partitions=1, config=config)
    producer = Producer(settings.kafka.client_settings())
    for hours in (3, 2, 0):  # the last one keeps the others: Kafka removes whole segments
        producer.produce("visits", b"{}", timestamp=int(time.time() * 1000) - hours * HOUR_MS)
    producer.flush(60)
    checkpoint = checkpoint_of(tmp_path / "c", "visits", (1,), (2,), (3,), (3,))
    now = datetime.now(timezone.utc).replace(microsecond=0)
    found = read_windows(read_checkpoint(str(checkpoint)), Owner(), settings.kafka, now=now)
    assert [found.by_batch[batch].until for batch in (0, 1)] == [now, now]
    # and one that begins where the topic ends needs nothing of it
    assert found.by_batch[3].closes_first == "checkpoint"


def test_kafka_may_keep_what_only_the_history_remembers(settings: Settings, tmp_path: Path) -> None:
    """Spark has cleaned up batches 0 to 5; Kafka has let go of the first three records."""
    kafka.create_missing_topics(settings.kafka, ["visits"], partitions=1)
    send(settings, "visits", 10, partitions=1)
    ends = [(n + 1,) for n in range(10)]
    checkpoint = checkpoint_of(tmp_path / "c", "visits", *ends)
    entries = {
        n: Entry(n, "origin", "", "", (json.dumps({"visits": {"0": end}}),), 1)
        for n, (end,) in enumerate(ends)
    }
    for n in range(6):
        (checkpoint / "offsets" / str(n)).unlink()
        (checkpoint / "commits" / str(n)).unlink()
    admin = AdminClient(settings.kafka.client_settings())
    for future in admin.delete_records([TopicPartition("visits", 0, 3)]).values():
        future.result(60)
    read = read_checkpoint(str(checkpoint))
    alone = read_windows(read, Owner(), settings.kafka)
    found = read_windows(read, Owner(), settings.kafka, entries=entries)
    assert [(kept.keeper, kept.from_batch) for kept in alone.retained] == [
        ("checkpoint", 7),
        ("kafka", 7),
    ]
    assert [(kept.keeper, kept.from_batch) for kept in found.retained] == [
        ("checkpoint", 7),
        ("kafka", 3),
    ]
    assert list(found.by_batch) == list(alone.by_batch) == [7, 8, 9]


def test_the_first_records_of_ranges(settings: Settings) -> None:
    kafka.create_missing_topics(settings.kafka, ["visits"], partitions=2)
    send(settings, "visits", 60)
    large = b"x" * 900_000
    with kafka.Sender(settings.kafka, "visits") as sender:
        sender.send(large, b"\xff<script>", partition=1)

    def places(ranges: dict[int, tuple[int, int]], count: int) -> list[tuple[int, int]]:
        found = kafka.take(settings.kafka, "visits", ranges, count)
        return [(record.partition, record.offset) for record in found]

    assert places({1: (2, 5), 0: (28, 99)}, 20) == [(0, 28), (0, 29), (1, 2), (1, 3), (1, 4)]
    assert places({0: (0, 30), 1: (0, 30)}, 20) == [(0, n) for n in range(20)]
    assert places({0: (5, 5)}, 20) == places({0: (30, 40)}, 20) == []
    (record,) = kafka.take(settings.kafka, "visits", {1: (30, 31)}, 20)
    assert (record.key, record.value) == (b"\xff<script>", large)
    # of what has gone, the rest
    admin = AdminClient(settings.kafka.client_settings())
    for future in admin.delete_records([TopicPartition("visits", 0, 7)]).values():
        future.result(60)
    assert places({0: (5, 9)}, 20) == [(0, 7), (0, 8)]
    with pytest.raises(BrokerError, match="Topic nothing cannot be read at"):
        kafka.take(settings.kafka, "nothing", {0: (0, 1)}, 20)
