"""What `threading` and `time` are in a simulated process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation.world import CrashError, Task, World


class Time:
    """The module `time`; each host has clocks of its own."""

    @staticmethod
    def monotonic() -> float:
        world = World.current
        return world.now + world.task.process.skew

    @staticmethod
    def time() -> float:
        world = World.current
        return world.now - world.task.process.skew / 10

    @staticmethod
    def sleep(seconds: float) -> None:
        World.current.wait(seconds)


class Lock:
    """`threading.Lock`."""

    def __init__(self) -> None:
        self.locked = False

    def acquire(self, timeout: float = -1) -> bool:
        world = World.current
        world.require_alive()
        end = None if timeout < 0 else world.now + timeout
        while self.locked:
            world.wait(None if end is None else max(0.0, end - world.now), lambda: not self.locked)
            if self.locked and end is not None and world.now >= end:
                return False
        self.locked = True
        return True

    def release(self) -> None:
        self.locked = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            World.current.wait(timeout, self.is_set)
        return self._set


class Condition(Lock):
    """`threading.Condition`, of which only `wait_for` is used."""

    def notify_all(self) -> None:
        """Whoever waits looks by himself."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        self.release()
        try:
            if not predicate():
                World.current.wait(timeout, predicate)
        finally:
            self.acquire()
        return predicate()


class Thread:
    """`threading.Thread`."""

    def __init__(self, *, target: Callable[[], None], name: str, daemon: bool) -> None:
        del daemon
        self._target, self._name = target, name
        self._task: Task | None = None

    def start(self) -> None:
        world = World.current
        world.require_alive()
        self._task = world.spawn(world.task.process, self._name, self._target)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float) -> None:
        if self.is_alive():
            World.current.wait(timeout, lambda: not self.is_alive())


class Pool:
    """Concurrent requests: in any order, and one that fails does not keep the others back."""

    def __init__(self, workers: int) -> None:
        del workers

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[Any], Any], items: Any) -> Iterator[Any]:
        items = list(items)
        order = list(range(len(items)))
        if len(order) > 1:
            World.current.random.shuffle(order)
        answers: dict[int, Any] = {}
        failures: dict[int, BaseException] = {}
        for at in order:
            try:
                answers[at] = function(items[at])
            except CrashError:  # noqa: PERF203
                raise
            except BaseException as error:
                failures[at] = error
        if failures:
            raise failures[min(failures)]
        return (answers[at] for at in range(len(items)))


@contextmanager
def nothing() -> Iterator[None]:
    """A context without an effect."""
    yield
