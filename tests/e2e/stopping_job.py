"""A program that does what disturbs a follower: a test runs it in a folder of its own.

A listener that throws, odd names, relative paths, two sessions, a fork, `spark.stop()`, and Spark
again. It prints one line, and fails if anything is not as it should be.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

import ebbtide
from ebbtide.attaching import attachment
from ebbtide.checkpoint import read_checkpoint
from ebbtide.history import kept_entries
from ebbtide.rewind import lease
from ebbtide.storage import open_folder

ODD = 'a/b "q" \\ é\n{x="1"} %s'
setattr(attachment, "_WATCH_SECONDS", 0.5)  # noqa: B010 - it is private


class Throwing(StreamingQueryListener):
    """Somebody's listener with a bug."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        raise RuntimeError("not ours", event)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        raise RuntimeError("not ours", event)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        raise RuntimeError("not ours", event)


def get_session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def start(spark: SparkSession, name: str, checkpoint: str) -> StreamingQuery:
    writer = spark.readStream.format("rate").load().writeStream.format("noop").queryName(name)
    return writer.option("checkpointLocation", checkpoint).start()


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 180
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


def recorded(checkpoint: str) -> int:
    return len(kept_entries(read_checkpoint(checkpoint)))


def is_released(checkpoint: str) -> bool:
    held = lease.read_lease(open_folder(checkpoint))
    return held is not None and held.released


def fork() -> None:
    """Start a child that ends as programs end, and wait for it."""
    if (child := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0


spark = get_session()
spark.streams.addListener(Throwing())
attached = ebbtide.attach(spark)
assert ebbtide.attach(spark) is attached
other = spark.newSession()
start(spark, ODD, "relative/one two")
query = start(other, "other", "relative/other")
assert ebbtide.attach(query) is not attached
wait_until(lambda: recorded("relative/one two") > 1)
wait_until(lambda: recorded("relative/other") > 1)
fork()
count = recorded("relative/other")
wait_until(lambda: recorded("relative/other") > count)
spark.stop()
wait_until(lambda: is_released("relative/one two") and is_released("relative/other"))
wait_until(lambda: not [each for each in threading.enumerate() if "ebbtide" in each.name])
spark = get_session()
ebbtide.attach(spark)
count = recorded("relative/other")
query = start(spark, "other", "relative/other")
wait_until(lambda: recorded("relative/other") > count)
query.stop()
wait_until(lambda: is_released("relative/other"))
print("followed, forked, stopped, started again")  # noqa: T201
