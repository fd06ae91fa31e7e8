"""What every demo needs: its own home and broker, jobs as real processes, steps and a narrator."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from ebbtide.config import Settings, make_folder
from ebbtide.connectors.kafka import Record, Sender, consume_range, retained_offsets
from ebbtide.errors import EbbtideError
from ebbtide.local import free_port, start_broker, stop_broker
from ebbtide.systems.console import ConsoleBatch, parse_console

_WAIT_SECONDS = 120
_COMMAND_SECONDS = 300
_SETTLE_SECONDS = 1.5
_MARKER = ".ebbtide-demo"
Expected = TypeVar("Expected")
Rows = TypeVar("Rows")


class Narrator(Protocol):
    """Tells the reader what the demo does."""

    def title(self, text: str) -> None:
        """Begin a section."""

    def tell(self, text: str) -> None:
        """Explain what happens and why."""

    def show(self, text: str) -> None:
        """Show real output."""

    def check(self, text: str) -> None:
        """Report a check that passed."""


class DemoFailedError(EbbtideError):
    """The real output differs from what the demo expects."""


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
        yield replace(settings, home=home, bootstrap_servers=broker.bootstrap_servers)
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
        self.command = [
            *(sys.executable, "-m", "ebbtide", verb, pipeline, "--home", str(settings.home)),
            *("--bootstrap-servers", settings.kafka.address, *flags),
        ]
        make_folder(settings.logs, "--home")
        name = f"{Path(pipeline.rsplit(':')[-1]).name}-{verb}.stderr"
        self._errors = (settings.logs / name).open("w+", encoding="utf-8")
        self.text = ""
        """The text that the job has printed so far."""
        # its own session: a Ctrl-C is for the demo, which then asks the job to stop
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
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

    def wait_for_batch(self, id_: int) -> list[ConsoleBatch]:
        """Wait until a batch is printed; returns all batches so far."""
        wait_for(lambda: any(b.id == id_ for b in self.batches()), f"batch {id_}", self)
        return self.batches()

    def settle(self) -> list[ConsoleBatch]:
        """Leave time for a batch that must not come; returns all batches so far."""
        time.sleep(_SETTLE_SECONDS)
        return self.batches()

    def errors(self) -> list[str]:
        """The lines that the job wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().splitlines()

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
        self._errors.close()


class DemoRun:
    """A demo that is running: its home and broker, and its narrator."""

    def __init__(self, local: Settings, narrator: Narrator) -> None:
        self.local, self.narrator = local, narrator

    def send(self, step: DemoStep[Any]) -> None:
        """Explain a step and send its events."""
        self.narrator.title(step.title)
        self.narrator.tell(step.text)
        if step.events:
            self.narrator.show(send(self.local, "visits", step.events))


class ConsoleRun(DemoRun, Generic[Rows]):
    """A demo of a job that prints its batches; `read` takes what matters from a batch."""

    def __init__(
        self,
        local: Settings,
        narrator: Narrator,
        pipeline: str,
        read: Callable[[ConsoleBatch], Rows],
    ) -> None:
        super().__init__(local, narrator)
        self._pipeline, self._read = pipeline, read

    def expect(self, job: Job, batches: Mapping[int, Rows]) -> None:
        """Wait for batches and check their rows."""
        printed = job.wait_for_batch(max(batches))
        self._check([batch for batch in printed if batch.id in batches], batches)
        self.narrator.check(f"batch {' and '.join(map(str, batches))} as expected")

    def finish(self, job: Job, steps: Sequence[DemoStep[dict[int, Rows]]]) -> dict[int, Rows]:
        """Stop the job; its batches by id, which must be those of the steps and no others."""
        printed = job.settle()
        job.stop()
        require_batches([id_ for step in steps for id_ in step.expected], printed)
        return {batch.id: self._read(batch) for batch in printed}

    def run_again(self, batches: Mapping[int, Rows]) -> dict[int, Rows]:
        """Start the job again: exactly these batches must come, with the same rows."""
        with Job(self.local, self._pipeline) as job:
            job.wait_for_batch(max(batches))
            printed = job.settle()
            job.stop()
        require_batches(list(batches), printed)
        self._check(printed, batches)
        return {batch.id: self._read(batch) for batch in printed}

    def _check(self, printed: Sequence[ConsoleBatch], expected: Mapping[int, Rows]) -> None:
        for batch in printed:
            self.narrator.show(batch.text)
            rows = self._read(batch)
            if rows != expected[batch.id]:
                raise DemoFailedError(
                    f"Batch {batch.id} should print {expected[batch.id]}, not {rows}."
                )


def require_batches(expected: Sequence[int], printed: Sequence[ConsoleBatch]) -> None:
    """Raise unless exactly these batches were printed."""
    if (ids := [batch.id for batch in printed]) != list(expected):
        raise DemoFailedError(f"Expected batches {list(expected)}, not {ids}.")


def type_command(settings: Settings, *arguments: str) -> str:
    """Run `ebbtide …` as a user would and return its output; raises if it fails."""
    command = [sys.executable, "-m", "ebbtide", *arguments]
    command += ["--bootstrap-servers", settings.kafka.address]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise DemoFailedError(
            f"ebbtide {' '.join(arguments)} took longer than {_COMMAND_SECONDS} s."
        ) from None
    if done.returncode:
        raise DemoFailedError(f"ebbtide {' '.join(arguments)} failed: {done.stdout.strip()}")
    return done.stdout.strip("\n")


def wait_for(condition: Callable[[], object], what: str, job: Job) -> None:
    """Wait until something is true that a running job brings about."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        if not job.running:
            raise DemoFailedError(f"The job ended before {what}: {job.errors()[-1:]}")
        if time.monotonic() > deadline:
            raise DemoFailedError(f"Waited {_WAIT_SECONDS} s for {what}.")
        time.sleep(0.05)


def reports(job: Job) -> list[dict[str, Any]]:
    """The reports of a job that runs with `-o json`, one for each batch."""
    return [json.loads(line) for line in job.errors() if line.startswith("{")]


def read_topic(settings: Settings, topic: str) -> list[Record]:
    """Every record of a topic, in the order of writing."""
    retained = retained_offsets(settings.kafka, topic)
    start = {partition: first for partition, (first, _) in retained.items()}
    end = {partition: last for partition, (_, last) in retained.items()}
    records = consume_range(settings.kafka, topic, start, end)
    return sorted(records, key=lambda record: (record.timestamp_ms, record.offset))


def send(settings: Settings, topic: str, events: Sequence[dict[str, object]]) -> str:
    """Send events so that they arrive together; returns the lines as sent."""
    lines = [json.dumps(event) for event in events]
    with Sender(settings.kafka, topic) as sender:
        for line in lines:
            sender.send(line.encode())
    return "\n".join(lines)


def tree(folder: Path) -> list[str]:
    """The files that Spark wrote below a folder, without checksums and our own notes."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(
        str(path) for path in files if not any(part.startswith(".") for part in path.parts)
    )
