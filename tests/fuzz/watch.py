"""Run the cases of a target within limits of time and memory, and keep what went wrong."""

from __future__ import annotations

import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType

from ebbtide import credentials, errors
from tests.fuzz.target import Target

SECONDS, MEGABYTES = 2.0, 500
"""The most that a case may take: of CPU time, so that a busy machine fails none, and of memory."""
_ROUND = 1000
"""After so many cases, what this process itself takes by now is measured again."""
_MINIMIZE_SECONDS = 5.0


class TooSlowError(BaseException):
    """A case has taken too long; it is no `Exception`, so that no parser catches it."""


@dataclass
class Failure:
    """What went wrong, and the shortest input that shows it."""

    key: str
    """Its kind and the place in our code: other inputs that end there are the same failure."""
    data: bytes
    trace: str
    times: int = 1


@dataclass
class Watch:
    """Runs one case of a target after the other."""

    target: Target
    seconds: float = SECONDS
    megabytes: int = MEGABYTES
    cases: int = 0
    slowest: float = 0.0
    slowest_data: bytes = b""
    peak: int = 0
    """By how many kilobytes the process grew in one case."""
    failures: dict[str, Failure] = field(default_factory=dict)
    _before: tuple[object, tuple[int, int]] | None = None

    def run(self, data: bytes) -> str | None:
        """Run a case; the key of its failure, if it failed."""
        if self.cases % _ROUND == 0:
            self._begin_round()
        # a process learns a handful of passwords, not a million
        errors._HIDDEN.clear()
        credentials._GIVEN.clear()
        self.cases += 1
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        failure = self._attempt(data)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
        self.peak = max(self.peak, grown)
        if failure is None and grown > self.megabytes << 10:
            failure = Failure("memory", data, f"it took {grown >> 10} MB")
        if failure is None:
            return None
        known = self.failures.setdefault(failure.key, failure)
        known.times += known is not failure
        if len(data) < len(known.data):
            known.data, known.trace = data, failure.trace
        return failure.key

    def _attempt(self, data: bytes) -> Failure | None:
        began = time.process_time()
        try:
            # again and again: the first may come while Python ignores what is raised
            signal.setitimer(signal.ITIMER_PROF, self.seconds, self.seconds / 4)
            try:
                self.target.play(data)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        except self.target.allowed:
            pass
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            return Failure(_key_of(error), data, _format(error))
        took = time.process_time() - began
        if took > self.slowest:
            self.slowest, self.slowest_data = took, data
        return None

    def _begin_round(self) -> None:
        if not self.target.native:
            limit_memory(self.megabytes)

    @contextmanager
    def limits(self) -> Iterator[Watch]:
        """Watch the cases that run inside."""
        memory = resource.getrlimit(resource.RLIMIT_AS)
        before = signal.signal(signal.SIGPROF, _stop)
        try:
            yield self
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
            resource.setrlimit(resource.RLIMIT_AS, memory)

    def minimize(self) -> None:
        """Shorten the input of each failure as far as a few seconds allow."""
        for key, failure in self.failures.items():
            small = Watch(self.target, self.seconds, self.megabytes)
            end = time.monotonic() + _MINIMIZE_SECONDS
            size = len(failure.data) // 2
            while size and time.monotonic() < end:
                at, shorter = 0, False
                while at < len(failure.data) and time.monotonic() < end:
                    tried = failure.data[:at] + failure.data[at + size :]
                    if small.run(tried) == key:
                        failure.data, failure.trace = tried, small.failures[key].trace
                        shorter = True
                    else:
                        at += size
                size = size if shorter and size == 1 else size // 2


def limit_memory(megabytes: int) -> None:
    """Let this process have so much more memory than it has now."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), most))


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise TooSlowError


def _key_of(error: BaseException) -> str:
    """The kind of an error, and the innermost line of ours; where time ran out, the function."""
    place, trace = "?", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/src/ebbtide/" in code.co_filename:
            file = code.co_filename.rpartition("/src/ebbtide/")[2]
            place = f"{file}:{code.co_name}:{trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, TooSlowError | MemoryError):
        place = place.rpartition(":")[0]
    return f"{type(error).__name__} in {place}"


def _format(error: BaseException) -> str:
    trace: TracebackType | None = error.__traceback__
    lines = traceback.format_exception(type(error), error, trace)
    return "".join(lines)[-4000:]


def silence() -> None:
    """Nothing that a parser logs is of interest."""
    with suppress(ImportError):
        import logging

        logging.disable()
    sys.setswitchinterval(0.05)
