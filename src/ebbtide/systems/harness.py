"""Play demos: each has its own home and broker, jobs as real processes, and a narrator."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from rich.console import Console

from ebbtide.config import Settings, make_folder
from ebbtide.connectors.kafka import Record, Sender, consume_range, retained_offsets
from ebbtide.errors import EbbtideError
from ebbtide.formatting import format_batches, wrap
from ebbtide.local import free_port, start_broker, stop_broker
from ebbtide.systems.console import ConsoleBatch, parse_console

_WIDTH = 80
_WAIT_SECONDS = 120
_COMMAND_SECONDS = 300
SETTLE_SECONDS = 1.5
"""How long a demo waits for output that must not come."""
_MARKER = ".ebbtide-demo"
_WITH_SPARK = ("run", "archive", "reprocess")
Expected = TypeVar("Expected")
Rows = TypeVar("Rows")


class Narrator:
    """Tells the reader what a demo does, on stdout or on stderr."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._console = Console(stderr=to_stderr, highlight=False, markup=False)

    def title(self, text: str) -> None:
        """Begin a section."""
        self._console.print()
        self._console.rule(f" {text} ", align="left", style="bold cyan", characters="─")

    def tell(self, text: str) -> None:
        """Explain what happens and why; a line `$ …` is a command, which is never broken."""
        for line in text.splitlines():
            if line.startswith("$ "):
                self._console.print(line, soft_wrap=True, style="bold")
            else:
                self._print_prose(line)

    def show(self, text: str) -> None:
        """Show real output."""
        self._console.print()
        self._console.print(text.rstrip("\n"), soft_wrap=True, style="dim")
        self._console.print()

    def check(self, text: str) -> None:
        """Report a check that passed."""
        self._print_prose(f"✓ {text}", style="green")

    def _print_prose(self, text: str, style: str = "") -> None:
        for line in wrap(text, min(self._console.width, _WIDTH)):
            self._console.print(line, soft_wrap=True, style=style)


class DemoFailedError(EbbtideError):
    """The real output differs from what the demo expects."""


def require(condition: object, problem: str) -> None:
    """Raise unless the output is as expected."""
    if not condition:
        raise DemoFailedError(problem)


@dataclass(frozen=True)
class DemoStep(Generic[Expected]):
    """What a step sends to topic `visits`, what must follow, and how it is explained."""

    title: str
    events: tuple[dict[str, object], ...]
    expected: Expected
    text: str


@contextmanager
def open_stage(settings: Settings, narrator: Narrator, name: str, title: str) -> Iterator[Settings]:
    """Begin a demo with an empty home and a running broker; the home stays, to look around in."""
    narrator.title(title)
    narrator.tell("Starting a Kafka broker (KRaft, one node) for this demo …")
    home = settings.home / "demos" / name
    if home.exists():
        if not (home / _MARKER).exists():
            raise EbbtideError(
                f"{home} was not made by a demo, so it is not emptied.", "Choose another --home."
            )
        stop_broker(home / "broker")
        shutil.rmtree(home)
    make_folder(home, "--home")
    (home / _MARKER).touch()
    broker = start_broker(home / "broker", port=free_port())
    try:
        narrator.check(f"Kafka answers at {broker.bootstrap_servers}")
        yield replace(settings, home=home, url=None).use_embedded(broker.bootstrap_servers)
    finally:
        stop_broker(home / "broker")


class Job:
    """`ebbtide run …` or `archive …` as a process whose stdout is read as it comes."""

    def __init__(
        self,
        settings: Settings,
        pipeline: str,
        *flags: str,
        verb: Literal["run", "archive"] = "run",
    ) -> None:
        name = f"{Path(pipeline.rsplit(':')[-1]).name}-{verb}.stderr"
        self._stderr = make_folder(settings.logs, "--home") / name
        self.text = ""
        """The text that the job has printed so far."""
        # its own session: a Ctrl-C is for the demo, which then asks the job to stop
        self._stderr.unlink(missing_ok=True)
        with self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                _command(settings, verb, pipeline, "--home", settings.location(), *flags),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.text += line

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it is still running."""
        return self._process.poll() is None

    def batches(self) -> list[ConsoleBatch]:
        """The batches that the job has printed so far."""
        return parse_console(self.text)

    def errors(self) -> list[str]:
        """The lines that the job wrote to stderr."""
        return self._stderr.read_text("utf-8").splitlines()

    def reports(self) -> list[dict[str, Any]]:
        """The reports of a job that runs with `-o json`, one for each batch."""
        return [json.loads(line) for line in self.errors() if line.startswith("{")]

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something is true that the job brings about."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not condition():
            if not self.running:
                raise DemoFailedError(f"The job ended before {what}: {self.errors()[-1:]}")
            require(time.monotonic() < deadline, f"Waited {_WAIT_SECONDS} s for {what}.")
            time.sleep(0.05)

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self._process.wait(_WAIT_SECONDS)
        self._reader.join(5)
        return code

    def stop(self) -> int:
        """Ask the job to finish its batch and stop; returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it abruptly, as a power cut would."""
        self._process.kill()
        self.wait()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.kill()


@dataclass
class DemoRun:
    """A demo that is running: its home and broker, its narrator, and its jobs by name."""

    local: Settings
    narrator: Narrator
    jobs: Mapping[str, Job] = field(default_factory=dict)

    def begin(self, title: str, text: str) -> None:
        """Begin a section with an explanation."""
        self.narrator.title(title)
        self.narrator.tell(text)

    def send(self, step: DemoStep[Any]) -> None:
        """Explain a step and send its events so that they arrive together."""
        self.begin(step.title, step.text)
        if lines := [json.dumps(event) for event in step.events]:
            with Sender(self.local.kafka, "visits") as sender:
                for line in lines:
                    sender.send(line.encode())
            self.narrator.show("\n".join(lines))

    def type_command(self, *arguments: str) -> str:
        """Run `ebbtide …` as a user would and show its output; raises if it fails."""
        command = f"ebbtide {shlex.join(arguments)}"
        try:
            done = subprocess.run(
                _command(self.local, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=_COMMAND_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise DemoFailedError(f"{command} took longer than {_COMMAND_SECONDS} s.") from None
        require(done.returncode == 0, f"{command} failed: {done.stdout.strip()}")
        output = done.stdout.strip("\n")
        lines = (part for line in output.splitlines() for part in wrap(line, _WIDTH))
        self.narrator.show("\n".join(lines))
        return output


@dataclass(kw_only=True)
class ConsoleRun(DemoRun, Generic[Rows]):
    """A demo of a job that prints its batches; `read` takes what matters from a batch."""

    pipeline: str
    read: Callable[[ConsoleBatch], Rows]

    def play(self, steps: Sequence[DemoStep[dict[int, Rows]]]) -> dict[int, Rows]:
        """Send the first step, start the job, play the others and stop it; returns its batches."""
        self.send(steps[0])
        with Job(self.local, self.pipeline) as job:
            self._expect(job, steps[0].expected)
            for step in steps[1:]:
                self.send(step)
                self._expect(job, step.expected)
            time.sleep(SETTLE_SECONDS)
            job.stop()
        expected = [id_ for step in steps for id_ in step.expected]
        printed = [batch.id for batch in job.batches()]
        require(printed == expected, f"Expected batches {expected}, not {printed}.")
        return {batch.id: self.read(batch) for batch in job.batches()}

    def _expect(self, job: Job, expected: Mapping[int, Rows]) -> None:
        """Wait for batches and check their rows."""
        last = max(expected)
        job.wait_for(lambda: any(batch.id == last for batch in job.batches()), f"batch {last}")
        for batch in job.batches():
            if batch.id in expected:
                self.narrator.show(batch.text)
                rows, wanted = self.read(batch), expected[batch.id]
                require(rows == wanted, f"Batch {batch.id} should print {wanted}, not {rows}.")
        self.narrator.check(f"{format_batches(list(expected))} as expected")


def _command(settings: Settings, verb: str, *arguments: str) -> list[str]:
    # the environment or ebbtide.toml may say how to connect to the user's own Kafka
    zone = ("--timezone", settings.timezone) if verb in _WITH_SPARK else ()
    config = settings.kafka_config or os.devnull
    address = ("--bootstrap-servers", settings.kafka.address, "--kafka-config", config)
    # spark-defaults.conf may name a cluster, which does not reach the home and broker of a demo
    master = ("--master", "local[*]") if verb in _WITH_SPARK else ()
    return [sys.executable, "-m", "ebbtide", verb, *master, *zone, *arguments, *address]


def read_topic(settings: Settings, topic: str) -> list[Record]:
    """Every record of a topic, in the order of writing."""
    retained = retained_offsets(settings.kafka, topic)
    start = {partition: first for partition, (first, _) in retained.items()}
    end = {partition: last for partition, (_, last) in retained.items()}
    records = consume_range(settings.kafka, topic, start, end)
    return sorted(records, key=lambda record: (record.timestamp_ms, record.offset))


def read_messages(settings: Settings, topic: str) -> list[dict[str, Any]]:
    """Every record of a topic as `ebbtide consume` prints it, in the order of writing."""
    return [json.loads(record.to_json()) for record in read_topic(settings, topic)]
