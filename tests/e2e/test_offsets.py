"""A query on a real Kafka starts over, by its options or on a fork: each record is read once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide import fork, read_offsets
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka.admin import list_topics
from tests.conftest import Cli
from tests.e2e.conftest import wait_until

pytestmark = pytest.mark.usefixtures("one_jvm")
TOPIC = "orders"


def send(settings: Settings, numbers: range, partitions: int) -> None:
    with kafka.Sender(settings.kafka, TOPIC) as sender:
        for n in numbers:
            sender.send(b"%d" % n, b"key", partition=n % partitions)


def stream(settings: Settings, **options: str) -> DataFrame:
    reader = SparkSession.active().readStream.format("kafka").option("subscribe", TOPIC)
    reader = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="6")
    reader = reader.options(**settings.kafka.spark_options()).options(**options)
    return reader.load().select(F.col("value").cast("string").cast("int").alias("n"))


def run(
    rows: DataFrame, checkpoint: Path, *, mode: str = "append", fails: bool = False
) -> list[int]:
    """The numbers that a run wrote, or the totals of an aggregation, as they came."""
    wrote: list[int] = []

    def keep(batch: DataFrame, _id: int) -> None:
        wrote.extend(row[0] for row in batch.collect())
        if fails:
            raise RuntimeError("as asked")

    writer = rows.writeStream.foreachBatch(keep).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    if fails:
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
    else:
        query.awaitTermination()
    return wrote


def test_a_query_starts_over(settings: Settings, tmp_path: Path, inside: Cli) -> None:
    kafka.create_missing_topics(settings.kafka, [TOPIC], partitions=2)
    send(settings, range(20), 2)
    old = tmp_path / "old"
    assert sorted(run(stream(settings), old)) == list(range(20))
    middle = {n for n in range(20) if n // 2 >= 6}  # batch 2 began with the seventh of each
    position = read_offsets(old, 2, settings=settings)
    assert position.csv == f"{TOPIC},0,6\n{TOPIC},1,6"

    # on forks: from the middle and from the end, with an aggregation that the first did not have
    fork(old, tmp_path / "middle", at_batch=2, offsets_only=True)
    fork(old, tmp_path / "end", offsets_only=True)
    total = stream(settings, startingOffsets="latest").agg(F.sum("n"))
    assert run(total, tmp_path / "middle", mode="complete")[-1] == sum(middle)

    # a partition is added: it is read from its beginning
    admin = AdminClient(settings.kafka.client_settings())
    admin.create_partitions([NewPartitions(TOPIC, 3)])[TOPIC].result(10)
    wait_until(lambda: len(kafka.retained_offsets(settings.kafka, TOPIC)) == 3)
    send(settings, range(20, 29), 3)
    later = list(range(20, 29))
    run(stream(settings), tmp_path / "end", fails=True)
    assert sorted(run(stream(settings), tmp_path / "end")) == later
    assert run(total, tmp_path / "middle", mode="complete")[-1] == sum(middle) + sum(later)

    # by the option: Spark refuses offsets that do not name the partition that was added
    said = inside("offsets", old, "--bootstrap-servers", settings.kafka.address, "-o", "json")
    (source,) = json.loads(said.stdout)["sources"]
    options = source["options"]
    assert json.loads(options["startingOffsets"]) == {TOPIC: {"0": 10, "1": 10, "2": 0}}
    assert "orders partition 2 was added since, and is read from its beginning" in said.stderr
    without = {"startingOffsets": json.dumps({TOPIC: {"0": 10, "1": 10}})}
    with pytest.raises(StreamingQueryException, match="must specify all TopicPartitions"):
        run(stream(settings, **without), tmp_path / "refused")
    assert sorted(run(stream(settings, **options), tmp_path / "by-option")) == later

    # by a consumer group
    said = inside("offsets", old, "--csv", "--bootstrap-servers", settings.kafka.address)
    lines = [line.split(",") for line in said.stdout.splitlines()]
    offsets = [TopicPartition(topic, int(number), int(at)) for topic, number, at in lines]
    asked = [ConsumerGroupTopicPartitions("group", offsets)]
    for future in admin.alter_consumer_group_offsets(asked).values():
        group = future.result(10).topic_partitions
        assert {(one.partition, one.offset) for one in group} == {(0, 10), (1, 10), (2, 0)}


def test_what_kafka_says_of_a_position(settings: Settings, tmp_path: Path, inside: Cli) -> None:
    kafka.create_missing_topics(settings.kafka, [TOPIC], partitions=1)
    send(settings, range(4), 1)
    old = tmp_path / "old"
    run(stream(settings), old)
    admin = AdminClient(settings.kafka.client_settings())
    send(settings, range(4, 8), 1)
    for future in admin.delete_records([TopicPartition(TOPIC, 0, 6)]).values():
        future.result(10)
    servers = ("--bootstrap-servers", settings.kafka.address)
    assert "2 records have aged out of Kafka" in inside("offsets", old, *servers).stderr
    for future in admin.delete_topics([TOPIC]).values():
        future.result(10)
    wait_until(lambda: TOPIC not in list_topics(settings.kafka))
    gone = inside("offsets", old, *servers)
    assert gone.stdout.splitlines() == ['source 0 (kafka): {"orders":{"0":4}}']
    assert "orders partition 0 is gone, and left out" in gone.stderr
