"""The world of one run: virtual time, processes on hosts, and which of them goes on next.

Each task is a greenlet. It gives the baton back at each request to the store and when it waits, so
a seed decides every step, and a run can be played again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from greenlet import getcurrent, greenlet

NEVER = 1e18
MAX_STEPS = 60_000


class CrashError(BaseException):
    """The process is dead: nothing that it does after this has an effect."""


@dataclass(eq=False)
class Process:
    """A process on a host, with all that Ebbtide keeps in the memory of one."""

    name: str
    host: str
    pid: int
    dead: bool = False
    stalled_until: float = 0.0
    held_here: set[Any] = field(default_factory=set)
    given_back: set[str] = field(default_factory=set)
    seen: dict[Any, Any] = field(default_factory=dict)

    @property
    def skew(self) -> float:
        """How far the clocks of its host are from those of others."""
        return 1_000.0 * (sum(map(ord, self.host)) % 7)


@dataclass(eq=False)
class Task:
    """A thread of a process."""

    process: Process
    name: str
    greenlet: Any = None
    wake: float = 0.0
    until: Callable[[], bool] | None = None
    """Also goes on when this holds."""

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return bool(self.greenlet.dead)


class World:
    """What one run consists of, but for its store."""

    current: ClassVar[World]

    def __init__(self, seed: object, *, trace: bool = False) -> None:
        self.random = random.Random(str(seed))
        self.now = 1_800_000_000.0
        self.tasks: list[Task] = []
        self.processes: list[Process] = []
        self.problems: list[str] = []
        self.trace: list[str] | None = [] if trace else None
        self.steps = 0
        self.latency = 0.001
        self.first_pid = 100
        self.switching = 0.0
        """How often a task lets others go on at a request."""
        self.task: Task
        """The one that runs."""
        self._hub = getcurrent()
        World.current = self

    def add_process(self, name: str, host: str = "a") -> Process:
        """Another process on a host."""
        process = Process(name, host, self.first_pid + len(self.processes))
        self.processes.append(process)
        return process

    def spawn(self, process: Process, name: str, body: Callable[[], None]) -> Task:
        """Start a thread."""
        task = Task(process, name)

        def run() -> None:
            try:
                body()
            except CrashError:
                pass
            except Exception as error:
                self.fail(f"{process.name}: {name} ended with {error!r}")

        task.greenlet = greenlet(run, self._hub)
        self.tasks.append(task)
        return task

    def fail(self, problem: str) -> None:
        """Note what is wrong."""
        if len(self.problems) < 5:
            self.problems.append(problem)
            self.say(f"!!! {problem}")

    def say(self, text: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            name = ""
            if getcurrent() is not self._hub:
                name = self.task.process.name
                name += "" if self.task.name == "main" else f"/{self.task.name}"
            self.trace.append(f"{self.now - 1_800_000_000:9.3f} {name:16} {text}")

    def run(self, *mains: Task) -> None:
        """Until these have ended; others may still wait."""
        while True:
            ready = [task for task in self.tasks if self._is_ready(task)]
            if ready:
                task = ready[0] if len(ready) == 1 else self.random.choice(ready)
                task.wake, task.until = NEVER, None
                self.task = task
                task.greenlet.switch()
                if task.greenlet.dead:
                    self.tasks.remove(task)
                    if all(one.greenlet.dead for one in mains):
                        return
                continue
            times = [max(task.wake, task.process.stalled_until) for task in self.tasks]
            soonest = min(times, default=NEVER)
            if soonest >= NEVER:
                self.fail("all wait for each other")
                return
            self.now = max(self.now, soonest)

    def end(self) -> None:
        """Stop what is left, so that nothing of it shows up in the next run."""
        for process in self.processes:
            process.dead = True
        for task in self.tasks:
            if task.greenlet and not task.done:  # it was begun
                self.task = task
                task.greenlet.throw(CrashError)

    def _is_ready(self, task: Task) -> bool:
        process = task.process
        if process.dead:
            return True
        if process.stalled_until > self.now:
            return False
        return task.wake <= self.now or (task.until is not None and task.until())

    def wait(self, seconds: float | None, until: Callable[[], bool] | None = None) -> None:
        """Let others go on for so long, or until something holds."""
        task = self.task
        if task.process.dead:
            raise CrashError
        task.wake = NEVER if seconds is None else self.now + seconds
        task.until = until
        self._hub.switch()
        if task.process.dead:
            raise CrashError

    def require_alive(self) -> None:
        """Raise in a process that has crashed."""
        if self.task.process.dead:
            raise CrashError

    def crash(self, process: Process) -> None:
        """End a process at once."""
        self.say(f"--- {process.name} is killed")
        process.dead = True

    def step(self) -> None:
        """One request: time goes by, and maybe somebody else goes on."""
        if self.task.process.dead:
            raise CrashError
        self.steps += 1
        if self.steps > MAX_STEPS:
            if self.steps == MAX_STEPS + 1:
                self.fail("it does not come to an end")
            for process in self.processes:
                process.dead = True
            raise CrashError
        self.now += self.latency
        if len(self.tasks) > 1 and self.random.random() < self.switching:
            self.wait(0)
