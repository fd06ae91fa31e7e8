"""What every demo needs: a home and a broker of its own, jobs as real processes, a narrator."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from ebbtide.config import Settings, make_folder
from ebbtide.connectors.kafka import Record, Sender, consume_range, retained_offsets
from ebbtide.errors import EbbtideError
from ebbtide.local.broker import free_port, start_broker, stop_broker
from ebbtide.systems.console import ConsoleBatch, parse_console

_WAIT_SECONDS = 120
_COMMAND_SECONDS = 300
_SETTLE_SECONDS = 1.5
_MARK = ".ebbtide-demo"


class Narrator(Protocol):
    """Tells the reader what happens."""

    def title(self, text: str) -> None:
        """Begin a part."""

    def tell(self, text: str) -> None:
        """Say what happens and why."""

    def show(self, text: str) -> None:
        """Show text as it came from a real output."""

    def check(self, text: str) -> None:
        """Say what was found as it should be."""


class DemoFailedError(EbbtideError):
    """A real output was not what the demo promises."""


@contextmanager
def stage(settings: Settings, name: str) -> Iterator[Settings]:
    """An empty home with a running broker; the home stays afterwards, to look around in."""
    home = settings.home / "demos" / name
    if home.exists():
        if not (home / _MARK).exists():
            raise EbbtideError(
                f"{home} was not made by a demo, so it is not emptied.", "Choose another --home."
            )
        stop_broker(home / "broker")
        shutil.rmtree(home)
    make_folder(home, "--home")
    (home / _MARK).touch()
    broker = start_broker(home / "broker", port=free_port())
    try:
        yield replace(settings, home=home, bootstrap_servers=broker.bootstrap_servers)
    finally:
        stop_broker(home / "broker")


class Job:
    """`ebbtide run …` or `archive …` as a process, its stdout followed as it comes."""

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
        self._text = ""
        # a group of its own: a Ctrl-C is for the demo, which then asks the job to stop
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
            self._text += line

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def text(self) -> str:
        """What the job has printed so far."""
        return self._text

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def batches(self) -> list[ConsoleBatch]:
        """The batches that the job has printed so far."""
        return parse_console(self._text)

    def wait_for_batch(self, id_: int) -> list[ConsoleBatch]:
        """Wait until a batch is printed; returns all so far."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < deadline:
            found = self.batches()
            if any(batch.id == id_ for batch in found):
                return found
            if self._process.poll() is not None:
                raise DemoFailedError(
                    f"The job ended (exit {self._process.returncode}) before batch {id_}: "
                    f"{self.errors()[-1:]}"
                )
            time.sleep(0.05)
        raise DemoFailedError(f"Batch {id_} did not come within {_WAIT_SECONDS} s.")

    def settle(self) -> list[ConsoleBatch]:
        """Give a batch that should not come the time to come."""
        time.sleep(_SETTLE_SECONDS)
        return self.batches()

    def errors(self) -> list[str]:
        """What the job wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().splitlines()

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self._process.wait(_WAIT_SECONDS)
        self._reader.join(5)
        return code

    def stop(self) -> int:
        """Ask the job to finish its batch and end; returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        self._process.kill()
        self.wait()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.kill()
        self._errors.close()


def run_again(settings: Settings, pipeline: str, batches: Sequence[int]) -> list[ConsoleBatch]:
    """Start a job until it has printed its last batch; these batches and no other must come."""
    with Job(settings, pipeline) as job:
        job.wait_for_batch(max(batches))
        again = job.settle()
        job.stop()
    require_batches(batches, again)
    return again


def require_batches(due: Sequence[int], seen: Sequence[ConsoleBatch]) -> None:
    """Refuse other batches than those that are due."""
    if (found := [batch.id for batch in seen]) != list(due):
        raise DemoFailedError(f"Batches {list(due)} were due, {found} came.")


def type_command(settings: Settings, *arguments: str) -> str:
    """Run `ebbtide …` as a person would; returns all that it says, fails if it does."""
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


def wait_for(true: Callable[[], object], what: str, job: Job) -> None:
    """Wait for something that a running job is to bring about."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not true():
        if not job.running:
            raise DemoFailedError(f"A job ended before {what} came: {job.errors()[-1:]}")
        if time.monotonic() > deadline:
            raise DemoFailedError(f"Waited {_WAIT_SECONDS} s for {what}.")
        time.sleep(0.05)


def reports(job: Job) -> list[dict[str, Any]]:
    """What each batch of a job that runs with `-o json` did: the lines of JSON on its stderr."""
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
    """The files below a folder that Spark wrote, without checksums and our own notes."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(
        str(path) for path in files if not any(part.startswith(".") for part in path.parts)
    )
