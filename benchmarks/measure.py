"""Run a contender as a process tree, and say what the whole tree took.

A benchmark's `run` yields lines of text and values of `Result`. `python -m benchmarks` prints them,
and `--json FILE` keeps them (docs/adr/026-benchmarks.md).

    tree = measure(["ebbtide", "run", …], log=folder / "ours.log", first_output=topic_has_records)
    yield Result("windowed count", "Ebbtide", "event", 3_000_000, (tree,))

A benchmark that gives no table of contenders yields a `Ratio` for each goal.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

FIRST_OUTPUT = "EBBTIDE_BENCH_FIRST_OUTPUT"
"""Names a file that a contender may create with its first output, where no probe sees it."""
WIDTH = 80
_SAMPLE_SECONDS = 0.25
_LINGER_SECONDS = 15
"""How long what a contender left running may take to end; then it is killed."""

# Adopts what its descendants leave behind (PR_SET_CHILD_SUBREAPER is 36) and waits for everything,
# so that RUSAGE_CHILDREN is the CPU time of the whole tree. Not a module: it must cost nothing.
_REAPER = """
import ctypes, json, os, resource, signal, subprocess, sys, time
answer, linger, *command = sys.argv[1:]
if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0):
    sys.exit("prctl failed: " + os.strerror(ctypes.get_errno()))
started = time.monotonic()
try:
    first = subprocess.Popen(command)
except OSError as error:
    sys.exit(str(error))
signal.signal(signal.SIGTERM, lambda *_: first.poll() is None and first.terminate())
signal.signal(signal.SIGINT, signal.SIG_IGN)
code = seconds = None
while True:
    try:
        pid, status = os.waitpid(-1, 0 if code is None else os.WNOHANG)
    except ChildProcessError:
        break
    if pid == first.pid:
        code, seconds = os.waitstatus_to_exitcode(status), time.monotonic() - started
        first.returncode = code
        end = time.monotonic() + float(linger)
    elif not pid:
        if time.monotonic() > end:
            me = os.getpid()
            with open(f"/proc/{me}/task/{me}/children") as children:
                for child in map(int, children.read().split()):
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(answer, "w") as file:
    json.dump([code, seconds, used.ru_utime + used.ru_stime], file)
"""


@dataclass(frozen=True)
class Measurement:
    """What one run of a command took, with everything that it started."""

    seconds: float
    """From start to end of the command itself."""
    cpu_seconds: float
    """User and system time of the whole process tree."""
    peak_bytes: int
    """The largest memory of the whole tree at one time: shared pages count once (PSS)."""
    first_output_seconds: float | None = None
    exit_code: int = 0


@dataclass(frozen=True)
class Result:
    """What one contender took for one work, over its repeats."""

    work: str
    contender: str
    unit: str
    """What is counted, such as `event`."""
    count: int
    """How many of them each run processed."""
    runs: tuple[Measurement, ...] = ()
    problem: str = ""
    """Why there is no figure, or why the figures do not count: a wrong total, no installation."""
    note: str = ""
    """What a reader must know to compare this row, such as a smaller number of events."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Other figures, by names that end in their unit, such as `p50_ms`."""

    @property
    def cpu_us(self) -> float:
        """CPU time per unit in microseconds: the median of the runs."""
        return 1e6 * statistics.median(run.cpu_seconds for run in self.runs) / self.count

    @property
    def per_second(self) -> float:
        """Units per second of wall time: the median of the runs."""
        return self.count / statistics.median(run.seconds for run in self.runs)

    @property
    def spread(self) -> float:
        """The range of the CPU times as a share of their median: 0 for a single run."""
        return spread([run.cpu_seconds for run in self.runs])

    @property
    def peak_bytes(self) -> int:
        """The largest peak of the runs."""
        return max(run.peak_bytes for run in self.runs)

    @property
    def first_output_seconds(self) -> float | None:
        """The median time to the first output, of the runs that had one."""
        seen = [run.first_output_seconds for run in self.runs]
        times = [each for each in seen if each is not None]
        return statistics.median(times) if times else None

    @property
    def counts(self) -> bool:
        """Whether the figures may be compared."""
        return bool(self.runs) and not self.problem

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; the medians are there for readers, `from_dict` ignores them."""
        saved = asdict(self)
        if self.runs:
            saved["cpu_us"], saved["per_second"] = self.cpu_us, self.per_second
            saved["spread"] = self.spread
        return saved

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Result:
        """The result that was saved."""
        names = ("work", "contender", "unit", "count", "problem", "note", "figures")
        runs = tuple(Measurement(**run) for run in saved["runs"])
        return cls(runs=runs, **{name: saved[name] for name in names})


class Progress(str):
    """A line that only shows how far a benchmark is: it is printed and not kept."""

    __slots__ = ()


@dataclass(frozen=True)
class Ratio:
    """A goal, and what was found.

    >>> Ratio("start", "to plain Spark", 0.7, 0.65).verdict
    'met'
    """

    work: str
    text: str
    limit: float
    found: float | None
    """None if it was not measured, or if a contender was disqualified."""
    at_least: bool = False
    unit: str = "×"

    @property
    def bound(self) -> str:
        """The limit as a reader sees it."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}"

    @property
    def value(self) -> str:
        """What was found, as a reader sees it."""
        return "–" if self.found is None else f"{self.found:.2f} {self.unit}"

    @property
    def verdict(self) -> str:
        """Whether that is enough."""
        if self.found is None:
            return "not measured"
        met = self.found >= self.limit if self.at_least else self.found <= self.limit
        return "met" if met else "missed"

    def __str__(self) -> str:
        return f"{self.text}: {self.value} (goal: {self.bound}, {self.verdict})"


def spread(values: Sequence[float]) -> float:
    """The range of some values as a share of their median.

    >>> spread([9.0, 10.0, 12.0])
    0.3
    """
    return (max(values) - min(values)) / statistics.median(values) if len(values) > 1 else 0.0


# --- running ----------------------------------------------------------------------------------


class MeasuredTree:
    """A running command with all that it started; `running` makes one."""

    def __init__(self, reaper: subprocess.Popen[bytes], first_output: Callable[[], bool]) -> None:
        self._root, self._reaper = reaper, psutil.Process(reaper.pid)
        self._probe = first_output
        self._started = time.monotonic()
        self._over = threading.Event()
        self._own_seconds: dict[psutil.Process, float] = {}
        self.peak_bytes = 0
        self.first_output_seconds: float | None = None

    @property
    def processes(self) -> list[psutil.Process]:
        """The living processes of the tree."""
        try:
            return self._reaper.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    @property
    def runs(self) -> bool:
        """Whether the command has not ended: at first, none of its processes may be there."""
        return self._root.poll() is None

    def cpu_seconds(self) -> float:
        """The CPU time of the tree so far, ended processes included if they were waited for."""
        total = 0.0
        for process in [self._reaper, *self.processes]:
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.children_user + times.children_system
            total += 0 if process is self._reaper else times.user + times.system
        return total

    def stop(self, sign: int = signal.SIGTERM) -> None:
        """Send a signal to the command itself, as a user would."""
        for process in self._reaper.children()[:1]:
            process.send_signal(sign)

    def kill(self) -> None:
        """End every process of the tree, also those that are only about to start."""
        while self.runs:
            for process in self.processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._root.wait(_SAMPLE_SECONDS)

    @property
    def sampled_seconds(self) -> float:
        """A lower bound: the time of children that their parent refused to wait for, too."""
        return sum(self._own_seconds.values())

    def sample(self) -> None:
        """Until told to end: the memory of the tree, and whether there is output."""
        turn = 0
        while not self._over.wait(_SAMPLE_SECONDS / 5):
            if self.first_output_seconds is None and self._probe():
                self.first_output_seconds = time.monotonic() - self._started
            if turn % 5 == 0:
                self.peak_bytes = max(self.peak_bytes, sum(map(self._look_at, self.processes)))
            turn += 1

    def _look_at(self, process: psutil.Process) -> int:
        try:
            times = process.cpu_times()
            self._own_seconds[process] = times.user + times.system
            return int(_pss(process.pid))
        except (psutil.Error, OSError):
            return 0  # it ended meanwhile

    def finish_sampling(self) -> None:
        """End `sample`, and look for output a last time."""
        self._over.set()
        if self.first_output_seconds is None and self._probe():
            self.first_output_seconds = time.monotonic() - self._started


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0


class Outcome:
    """What `running` measured: there when the block has ended."""

    def __init__(self, tree: MeasuredTree) -> None:
        self.tree = tree
        self.measurement: Measurement | None = None


@contextmanager
def running(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    first_output: Callable[[], bool] | None = None,
    timeout_seconds: float = 900,
) -> Iterator[Outcome]:
    """A command that runs beside the block. After the block, wait for it to end.

    The block may stop it (`outcome.tree.stop()`), and is interrupted by nothing; what it runs and
    prints goes to `log`. If the block fails, the whole tree is killed.
    """
    answer = log.with_name(f"{log.name}.usage")
    mark = log.with_name(f"{log.name}.first")
    for old in (answer, mark):
        old.unlink(missing_ok=True)
    words = [str(word) for word in command]
    reaper = [sys.executable, "-IS", "-c", _REAPER, str(answer), str(_LINGER_SECONDS), *words]
    variables = {**os.environ, **(env or {}), FIRST_OUTPUT: str(mark)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            reaper, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables, cwd=cwd
        )
    tree = MeasuredTree(process, first_output or mark.exists)
    outcome, ended = Outcome(tree), False
    sampler = threading.Thread(target=tree.sample, daemon=True)
    sampler.start()
    try:
        yield outcome
        process.wait(timeout_seconds)
        ended = True
    except subprocess.TimeoutExpired:
        raise ContenderError(f"did not end within {timeout_seconds:.0f} s") from None
    finally:
        tree.finish_sampling()
        if not ended:
            tree.kill()
        sampler.join()
    if process.returncode or not answer.exists():
        raise ContenderError(last_line(log))
    code, seconds, cpu_seconds = json.loads(answer.read_text("utf-8"))
    used = max(cpu_seconds, tree.sampled_seconds)
    first = tree.first_output_seconds
    outcome.measurement = Measurement(seconds, used, tree.peak_bytes, first, code)


def measure(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    first_output: Callable[[], bool] | None = None,
    timeout_seconds: float = 900,
) -> Measurement:
    """Run a command to its end; one that fails raises, with the last line of its output."""
    with running(
        command,
        log=log,
        env=env,
        cwd=cwd,
        first_output=first_output,
        timeout_seconds=timeout_seconds,
    ) as outcome:
        pass
    assert outcome.measurement is not None
    if outcome.measurement.exit_code:
        raise ContenderError(f"exit code {outcome.measurement.exit_code}: {last_line(log)}")
    return outcome.measurement


class ContenderError(Exception):
    """A contender that cannot be measured: the others go on."""


def last_line(log: Path) -> str:
    """The last line that names an error, else the last: stacks and plans may follow it."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    said = [line for line in lines if line] or ["no output"]
    errors = [line for line in said if re.match(r"(Caused by: )?[\w.]*(Error|Exception): ", line)]
    return (errors or said)[-1][:300]


# --- showing ----------------------------------------------------------------------------------


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> str:
    """A plain table: the first column to the left, cut if need be; the others to the right.

    >>> print(format_table(["who", "µs"], [["ours", "1.5"], ["another one", "12.0"]], 15))
    who          µs
    ─────────  ────
    ours        1.5
    another …  12.0
    """
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    widths[0] = max(4, min(widths[0], width - sum(widths[1:]) - 2 * (len(widths) - 1)))
    lines = []
    for row in [head, ["─" * each for each in widths], *rows]:
        first = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
        cells = [f"{cell:>{each}}" for cell, each in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())
    return "\n".join(lines)


def format_results(results: Sequence[Result]) -> str:
    """The contenders of one work: CPU time first, as noise disturbs it least."""
    unit = results[0].unit
    head = [results[0].work, f"CPU µs/{unit}", "spread", f"{unit}s/s", "peak MB", "first out"]
    rows = [_row(result) for result in results]
    remarks = [
        f"{result.contender}: {text}"
        for result in results
        for text in (result.problem, result.note)
        if text
    ]
    return "\n".join([format_table(head, rows), *(cut for each in remarks for cut in _wrap(each))])


def _row(result: Result) -> list[str]:
    if not result.runs:
        return [result.contender, "–", "–", "–", "–", "–"]
    first = result.first_output_seconds
    return [
        result.contender,
        f"{result.cpu_us:,.2f}" + ("" if result.counts else " WRONG"),
        f"{result.spread:.0%}" if len(result.runs) > 1 else "1 run",
        f"{result.per_second:,.0f}",
        f"{result.peak_bytes / 1e6:,.0f}",
        "–" if first is None else f"{first:.1f} s",
    ]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="· ", subsequent_indent="  ")
