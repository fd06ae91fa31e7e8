"""What goes wrong, and when: drawn from the seed of a run."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from tests.simulation.world import CrashError, Process, World

ANSWER_SECONDS = 20.0
"""So long a request waits for an answer."""
_Result = TypeVar("_Result")

BEFORE, AFTER, TWICE = "fails", "fails, but is done", "is sent twice"
SLOW, HANGS, HANGS_DONE = "is slow", "gets no answer", "gets no answer, but is done"
KILLED, KILLED_AFTER, STOPPED = "kill before", "kill after", "Ctrl-C"
POWER = "power cut"
REMOTE = (BEFORE, AFTER, TWICE, SLOW, HANGS, HANGS_DONE, KILLED, KILLED_AFTER, STOPPED)
LOCAL = (BEFORE, SLOW, KILLED, KILLED_AFTER, STOPPED, POWER)
_OF_CHANGES = (AFTER, TWICE, HANGS_DONE)


class PowerCutError(CrashError):
    """All processes are dead, and what the disk had not written is lost."""


@dataclass
class Faults:
    """The faults of one run."""

    world: World
    kinds: Sequence[str]
    rate: float = 0.0
    """Of so many requests each fails in some way."""
    single: dict[str, int] = field(default_factory=dict)
    """By process, at which request one fault is due."""
    outage: tuple[float, float] = (0.0, 0.0)
    """From when to when no request gets an answer."""
    stall_rate: float = 0.0
    active: bool = True
    seen: int = 0
    on_power_cut: Callable[[], None] = lambda: None
    _counts: dict[str, int] = field(default_factory=dict)

    def operate(self, what: str, effect: Callable[[], _Result], *, changes: bool) -> _Result:
        """Carry out a request, or what becomes of it."""
        world = self.world
        world.step()
        kind = self._draw(changes=changes) if self.active else None
        if kind is None:
            if world.trace is not None:
                world.say(what)
            return effect()
        self.seen += 1
        if world.trace is not None:
            world.say(f"{what}   *** {kind}")
        return self._fail(kind, what, effect)

    def _draw(self, *, changes: bool) -> str | None:
        world = self.world
        name = world.task.process.name
        count = self._counts[name] = self._counts.get(name, 0) + 1
        begin, end = self.outage
        if begin <= world.now < end:
            return HANGS if HANGS in self.kinds else BEFORE
        if self.single.get(name) == count or (self.rate and world.random.random() < self.rate):
            kinds: Sequence[str] = self.kinds
            if not changes:
                kinds = [kind for kind in kinds if kind not in _OF_CHANGES]
            if self.single and world.random.random() < 0.4:
                kinds = (KILLED, KILLED_AFTER)
            kind = world.random.choice(kinds)
            # Python gives signals to the main thread
            return None if kind == STOPPED and world.task.name != "main" else kind
        return None

    def _fail(self, kind: str, what: str, effect: Callable[[], _Result]) -> _Result:
        world = self.world
        process = world.task.process
        if kind == SLOW:
            world.wait(world.random.random() * 4)
            return effect()
        if kind == TWICE:
            _ignore_failure(effect)
            return effect()
        if kind == POWER:
            self.on_power_cut()
            raise PowerCutError
        if kind in (KILLED, KILLED_AFTER):
            if kind == KILLED_AFTER:
                _ignore_failure(effect)
            world.crash(process)
            raise CrashError
        if kind in (AFTER, HANGS_DONE):
            _ignore_failure(effect)
        if kind == STOPPED:
            raise KeyboardInterrupt
        if kind in (HANGS, HANGS_DONE):
            world.wait(ANSWER_SECONDS)
            raise TimeoutError(errno.ETIMEDOUT, "the store does not answer")
        raise OSError(errno.EIO, f"simulated failure of: {what}")

    def stall(self, process: Process) -> None:
        """Before a change: the process may stand still, as on a host that is suspended."""
        world = self.world
        if self.active and self.stall_rate and world.random.random() < self.stall_rate:
            seconds = world.random.choice([5.0, 30.0, 55.0, 100.0, 300.0])
            world.say(f"... {process.name} is stalled for {seconds:.0f} s")
            process.stalled_until = world.now + seconds
            world.wait(0)


def _ignore_failure(effect: Callable[[], object]) -> None:
    with suppress(OSError):
        effect()
