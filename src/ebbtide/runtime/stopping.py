"""Stop a running query after its current batch is finished and committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

_NANOSECONDS = 100_000_000


def finish_and_stop(
    query: StreamingQuery, while_waiting: Callable[[], None] = lambda: None
) -> None:
    """Wait until the running batch is committed, then stop the query.

    If `while_waiting`, which is called again and again, raises, the query is stopped at once.

    Spark's own `stop` interrupts the batch in the middle; once it has run again, a sink such as
    Kafka holds part of it twice. Spark plans and commits a batch under one fair lock, and signals a
    condition of that lock at the end of each trigger. So: **1** take the lock; **2** wait on the
    condition until every planned batch is committed; **3** while we hold the lock, no batch can
    begin: tell the query's thread to end; **4** release the lock.
    """
    execution = query._jsq.streamingQuery()
    # 1
    lock = execution.awaitProgressLock()
    lock.lock()
    try:
        try:
            # 2
            _wait_between_batches(query, execution, while_waiting)
            # 3
            execution.state().set(_terminated(execution))
            execution.queryExecutionThread().interrupt()
        finally:
            # 4
            lock.unlock()
    finally:  # without the lock, which its thread takes at the end
        query.stop()


def _wait_between_batches(
    query: StreamingQuery, execution: Any, while_waiting: Callable[[], None]
) -> None:
    progressed = execution.awaitProgressLockCondition()
    was_in_flight = _in_flight(execution)
    while query.isActive:
        while_waiting()
        signalled = progressed.awaitNanos(_NANOSECONDS) > 0
        in_flight = _in_flight(execution)
        # right after a commit the trigger still writes its progress: wait for its signal
        if not in_flight and (signalled or not was_in_flight):
            return
        was_in_flight = in_flight


def _in_flight(execution: Any) -> bool:
    planned, done = execution.offsetLog(), execution.commitLog()
    return bool(planned.getLatestBatchId().toString() != done.getLatestBatchId().toString())


def _terminated(execution: Any) -> Any:
    """The state TERMINATED, whose package changed in Spark 4.1."""
    package = execution.state().get().getClass().getPackageName()
    loader = execution.getClass().getClassLoader()
    return loader.loadClass(f"{package}.TERMINATED$").getField("MODULE$").get(None)
