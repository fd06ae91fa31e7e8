"""Stop a running query after its current batch is finished and committed, when told to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

_NANOSECONDS = 100_000_000
_IDLE = "Waiting for "
"""How Spark's status begins between two batches."""


def finish_and_stop(
    query: StreamingQuery,
    while_waiting: Callable[[], None] = lambda: None,
    *,
    logs_first: bool = True,
) -> None:
    """Wait until the running batch is committed, then stop the query.

    If `while_waiting`, which is called again and again, raises, the query is stopped at once.
    `logs_first`: whether a batch is in the logs before it runs, and not only at its end.

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
            wait = _wait_between_batches if logs_first else _wait_for_progress
            wait(query, execution, while_waiting)
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


def _wait_for_progress(
    query: StreamingQuery, execution: Any, while_waiting: Callable[[], None]
) -> None:
    """Wait for the progress of the running batch, which comes just before the signal.

    The query's thread takes the lock to signal and again to plan, and we are in between.
    """
    progressed, before = execution.awaitProgressLockCondition(), _last_reported(query)
    while query.isActive:
        if query._jsq.status().message().startswith(_IDLE) or _last_reported(query) != before:
            return
        while_waiting()
        progressed.awaitNanos(_NANOSECONDS)


def _last_reported(query: StreamingQuery) -> int | None:
    progress = query._jsq.lastProgress()
    return None if progress is None else int(progress.batchId())


def _in_flight(execution: Any) -> bool:
    planned, done = execution.offsetLog(), execution.commitLog()
    return bool(planned.getLatestBatchId().toString() != done.getLatestBatchId().toString())


def _terminated(execution: Any) -> Any:
    """The state TERMINATED, whose package changed in Spark 4.1."""
    package = execution.state().get().getClass().getPackageName()
    loader = execution.getClass().getClassLoader()
    return loader.loadClass(f"{package}.TERMINATED$").getField("MODULE$").get(None)


class StopRequest:
    """Whether the query is to stop: an event that a signal handler can set.

    The handler runs in the thread that waits. With a `threading.Event`, that thread may hold the
    event's lock at this moment, and would then wait for itself for good.

    >>> stop = StopRequest()
    >>> stop.wait(0.01)
    False
    >>> stop.set()
    >>> stop.wait(3600)
    True
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: SimpleQueue[None] = SimpleQueue()  # whose `put` may interrupt a `get`

    def set(self) -> None:
        """Ask the query to stop, and wake who waits."""
        self._is_set = True
        self._wakes.put(None)

    def is_set(self) -> bool:
        """Whether it is to stop."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until it is to stop; whether it is."""
        if not self._is_set:
            with suppress(Empty):
                self._wakes.get(timeout=seconds)
        return self._is_set


def pause_until(stop: StopRequest, seconds: float) -> None:
    """Wait so long for what comes before the query; raise if it is to stop."""
    if stop.wait(seconds):
        raise KeyboardInterrupt


@contextmanager
def stop_on_signals() -> Iterator[tuple[StopRequest, Callable[[], None]]]:
    """A request that Ctrl-C and SIGTERM set; a second Ctrl-C interrupts at once.

    Spark takes over SIGINT when a session starts, so call `listen` again after that.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop, lambda: None
        return
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in signals}

    def handle(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    def listen() -> None:
        for number in signals:
            signal.signal(number, handle)

    listen()
    try:
        yield stop, listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
