"""A loop written by hand: one process a partition, no state on disk, nothing exactly once.

`loop.py windows|consume SERVERS TOPIC OUT FOLDER`. What is tuned: large fetches, many records a
call, orjson, and a window found by cutting the text of the time.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Process

import orjson
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

WORK, SERVERS, TOPIC, OUT, _FOLDER = sys.argv[1:]
SETTINGS = {
    "bootstrap.servers": SERVERS,
    "group.id": "loop",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.message.max.bytes": 16 << 20,
    "fetch.wait.max.ms": 100,
    "queued.min.messages": 500_000,
    "queued.max.messages.kbytes": 256 << 10,
    "check.crcs": False,
}


def read(partition: int) -> Iterator[list[Message]]:
    """All records of a partition, many at a time."""
    consumer = Consumer(SETTINGS)
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    while True:
        messages = consumer.consume(10_000, timeout=1)
        last = messages[-1].error() if messages else None
        if last is not None and last.code() == KafkaError._PARTITION_EOF:
            yield messages[:-1]
            consumer.close()
            return
        yield messages


def count(partition: int) -> None:
    """The records of each window, or only how many there are."""
    counts: Counter[str] = Counter()
    loads = orjson.loads
    for messages in read(partition):
        if WORK == "consume":
            counts["all"] += len(messages)
        else:
            counts.update([loads(each.value() or b"")["event_time"][:15] for each in messages])
    producer = Producer({"bootstrap.servers": SERVERS})
    for start, number in counts.items():
        record = {"start": start + "0", "count": number, "part": partition}
        producer.produce(OUT, orjson.dumps(record))
    producer.flush()


if __name__ == "__main__":
    workers = [Process(target=count, args=(partition,)) for partition in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(any(worker.exitcode for worker in workers))
