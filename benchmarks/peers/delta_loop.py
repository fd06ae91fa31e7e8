"""Copy a topic into a Delta table by a loop over delta-rs, or read an hour of such a table.

`delta_loop.py write SERVERS TOPIC OUT FOLDER` is not exactly once: what a crash repeats is in the
table twice. Tuned: large fetches, 1,000,000 records a commit, event times cut from the text.
`delta_loop.py read TABLE DAY HOUR NAME NAME` (of the columns for day and hour) prints rows, bytes,
files and the CPU seconds of the best of five readings.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake import DeltaTable, write_deltalake

_BATCH = 1_000_000


def write(servers: str, topic: str, _out: str, folder: str) -> None:
    """Two partitions, one process: delta-rs writes with threads of its own."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "loop",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 16 << 20,
            "queued.min.messages": 500_000,
            "queued.max.messages.kbytes": 256 << 10,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    held: list[Any] = []
    ended: set[int | None] = set()
    while len(ended) < 2:
        for message in consumer.consume(10_000, timeout=1):
            error = message.error()
            if error is None:
                held.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        if len(held) >= _BATCH or (held and len(ended) == 2):
            write_deltalake(
                f"{folder}/table", _to_table(held), mode="append", partition_by=["day", "hour"]
            )
            held = []
    consumer.close()


def _to_table(messages: list[Any]) -> Any:
    """The columns of the archive; the time is parsed by Arrow, all at once."""
    import orjson

    values = [message.value() for message in messages]
    texts = pa.array([orjson.loads(value)["event_time"].rstrip("Z") for value in values])
    times = pc.strptime(texts, "%Y-%m-%dT%H:%M:%S", "us").cast(pa.timestamp("us", "UTC"))
    stamps = pa.array([message.timestamp()[1] for message in messages], pa.timestamp("ms", "UTC"))
    return pa.table(
        {
            "event_time": times,
            "key": pa.array([message.key() for message in messages], pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array([message.topic() for message in messages]),
            "partition": pa.array([message.partition() for message in messages], pa.int32()),
            "offset": pa.array([message.offset() for message in messages], pa.int64()),
            "timestamp": stamps.cast(pa.timestamp("us", "UTC")),
            "day": times.cast(pa.date32()),
            "hour": pc.hour(times).cast(pa.int32()),
        }
    )


def read(table: str, day: str, hour: str, day_name: str, hour_name: str) -> None:
    """The values of one hour, with the same reader for every table."""
    best, rows, size = float("inf"), 0, 0
    for _ in range(5):
        began = time.process_time()
        chosen = [(day_name, "=", day), (hour_name, "=", hour)]
        values = DeltaTable(table).to_pyarrow_table(partitions=chosen, columns=["value"])["value"]
        rows, size = len(values), pc.sum(pc.binary_length(values)).as_py()
        best = min(best, time.process_time() - began)
    everything = DeltaTable(table)
    files = len(everything.file_uris(partition_filters=chosen))
    total = everything.to_pyarrow_dataset().count_rows()
    print(json.dumps({"rows": rows, "bytes": size, "seconds": best, "files": files, "all": total}))


if __name__ == "__main__":
    works: dict[str, Any] = {"write": write, "read": read}
    works[sys.argv[1]](*sys.argv[2:])
