"""Read what the advice is based on: the checkpoint, the archive and the broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from shlex import quote
from types import MappingProxyType
from typing import TypeVar

from ebbtide.advice.options import RecoveryStep
from ebbtide.archive import Archive, read_archive
from ebbtide.checkpoint import Checkpoint, Owner, read_checkpoint
from ebbtide.checks import REFUSE, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors import SinkPlace, SinkPlan, base, connector_of
from ebbtide.connectors.kafka import KafkaConnection
from ebbtide.errors import BrokerError, EbbtideError
from ebbtide.local import require_connection
from ebbtide.pipeline import Pipeline
from ebbtide.rewind import RewindPlan, sinks
from ebbtide.runtime import ownership
from ebbtide.storage import open_folder

KAFKA_FLAGS = ("--bootstrap-servers", "--kafka-config")
FLAGS = ("--home", *KAFKA_FLAGS, "--timezone")
_WHY = {
    "flatMapGroupsWithState": "keeps custom state for each key",
    "applyInPandasWithState": "keeps custom state for each key",
    "dedupe": "drops duplicates among all events so far",
    "dedupeWithinWatermark": "drops duplicates in the order of arrival",
    "symmetricHashJoin": "joins two streams",
    "globalLimit": "takes the first rows of all batches",
}
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class AdviceInputs(ABC):
    """What the advice on any query is based on; an error stands for what cannot be read."""

    name: str
    """Of the query."""
    settings: Settings
    location: str
    """The location of the query's checkpoint."""
    checkpoint: Checkpoint | EbbtideError
    connection: KafkaConnection | None
    """The broker to ask about offsets and retention."""
    broker_error: BrokerError | None
    event_time_field: str | None
    """The field of a record that holds the event time."""
    sinks: tuple[SinkPlan, ...]
    """Where the query writes, and how that is rolled back; empty if it is not known."""
    flags: Mapping[str, str]
    """Flags as the user typed them; commands repeat them."""

    def command(self, line: str, *names: str) -> str:
        """A command with those of the named flags that the user gave."""
        flags = [f" {name} {quote(self.flags[name])}" for name in names if name in self.flags]
        return line + "".join(flags)

    @property
    def stateful(self) -> bool:
        """Whether the query is known to keep state."""
        return isinstance(self.checkpoint, Checkpoint) and bool(self.checkpoint.operators)

    @property
    def first_steps(self) -> tuple[RecoveryStep, ...]:
        """Steps to take before anything can read from Kafka."""
        return ()

    def trial(self, _batch: int) -> tuple[RecoveryStep, ...]:
        """Steps that try the corrected code from a batch on, and change nothing."""
        return ()

    @abstractmethod
    def stop(self, process: int | None) -> RecoveryStep:
        """How to stop the query, which runs in a process of this machine, or elsewhere."""

    @abstractmethod
    def restart(self) -> RecoveryStep:
        """How to start the query again."""

    @abstractmethod
    def describe_output(self, plan: RewindPlan) -> str:
        """What a rewind does to the output."""


@dataclass(frozen=True)
class PlainInputs(AdviceInputs):
    """What the advice on a job of somebody's own is based on: its checkpoint alone."""

    def trial(self, batch: int) -> tuple[RecoveryStep, ...]:
        """Replay it to a folder of its own."""
        line = f"ebbtide replay path.py:build --checkpoint {quote(self.location)}"
        return (
            RecoveryStep(
                "Try the corrected code: path.py:build is your file and the function in it that "
                "builds the query. It writes to a folder of its own.",
                self.command(f"{line} --to-scratch --from-batch {batch}", *FLAGS),
            ),
        )

    def stop(self, process: int | None) -> RecoveryStep:
        """In words only: whatever runs the job may start it again."""
        where = "" if process is None else f" (process {process})"
        return RecoveryStep(f"Stop your job{where}, and see that nothing restarts it.")

    def restart(self) -> RecoveryStep:
        """In words only: Ebbtide does not know how the job is started."""
        return RecoveryStep(
            "Start your job again as you always do, with the corrected code and the same "
            "checkpoint."
        )

    def describe_output(self, plan: RewindPlan) -> str:
        """What the checks of its sinks say; a refusal is the plan's problem."""
        checks = (check for check in plan.checks if check.kind is CheckKind.SINK)
        passed = [check.advice for check in checks if check.verdict != REFUSE]
        return " ".join(passed) or "?"


@dataclass(frozen=True)
class PipelineInputs(AdviceInputs):
    """What the advice on a pipeline is based on."""

    pipeline: Pipeline
    archive: Archive | EbbtideError
    reference: str
    """The pipeline as the user typed it."""

    @property
    def first_steps(self) -> tuple[RecoveryStep, ...]:
        """Start the embedded broker, where no broker is known."""
        if not self.pipeline.topics or self.connection or self.broker_error:
            return ()
        what = "Start the embedded broker, or name another with --bootstrap-servers."
        return (RecoveryStep(what, self.command("ebbtide broker start", "--home")),)

    def stop(self, process: int | None) -> RecoveryStep:
        """By the signal that `ebbtide run` waits for."""
        kill = "" if process is None else f"kill -TERM {process}"
        return RecoveryStep("Stop the stream; it ends after the running batch.", kill)

    def restart(self) -> RecoveryStep:
        """By `ebbtide run`."""
        command = self.command(f"ebbtide run {self.reference}", "--checkpoint", *FLAGS)
        return RecoveryStep("Start the stream again, with the corrected code.", command)

    def describe_output(self, plan: RewindPlan) -> str:
        """What its sink says, which knows more of itself than a place does."""
        sink, last = self.pipeline.sink, plan.last_batch or 0
        batches = base.format_batches(plan.first_batch, last)
        check = next(check for check in plan.checks if check.kind is CheckKind.SINK)
        return connector_of(sink).sink.format_replay(sink, batches, check)

    @property
    def ends(self) -> dict[int, int] | None:
        """By partition of the topic, the end offset of the last planned batch."""
        if not isinstance(self.checkpoint, Checkpoint) or not self.checkpoint.logs.batches:
            return None
        return self.of_topic(self.checkpoint.logs.batches[-1].positions)

    def of_topic(self, positions: Mapping[tuple[str, int], int]) -> dict[int, int]:
        """Offsets by partition of the pipeline's topic."""
        topics = self.pipeline.source.topics
        return {p: offset for (name, p), offset in positions.items() if name in topics}


def read_pipeline_inputs(
    pipeline: Pipeline, settings: Settings, location: str, reference: str, flags: Mapping[str, str]
) -> PipelineInputs:
    """Read checkpoint, archive and broker; what is missing is not an error yet."""
    connection, broker_error = None, None
    if pipeline.topics:
        connection, broker_error = _find_broker(settings, pipeline.source.connection)
    place = connector_of(pipeline.sink).sink.place(pipeline.sink, settings)
    return PipelineInputs(
        *(pipeline.name, settings, location),
        _value_or_error(lambda: _read_finished(location, pipeline)),
        connection,
        broker_error,
        pipeline.event_time,
        _roll_back(place),
        flags,
        pipeline,
        _value_or_error(lambda: read_archive(pipeline, settings)),
        quote(reference),
    )


def read_plain_inputs(
    location: str, settings: Settings, field: str | None, flags: Mapping[str, str]
) -> PlainInputs:
    """Read a checkpoint and what it tells of its query; raises if it is not a checkpoint.

    `field` names the event time in the records, for batches that are not in the history.
    """
    checkpoint = read_checkpoint(location)
    checkpoint.require_finished()
    owner, known = Owner.read(checkpoint.folder), sinks.KnownSinks.read(checkpoint.folder)
    return PlainInputs(
        *(owner.pipeline or location, settings, location, checkpoint),
        *_find_broker(settings),
        field or owner.event_time,
        _roll_back(*known.places),
        flags,
    )


def _roll_back(*places: SinkPlace) -> tuple[SinkPlan, ...]:
    """Sinks with the first remedy of each, which rolls it back; some need none."""
    connectors = [connector_of(place.kind).sink for place in places]
    remedies = [next(iter(sink.remedies), None) for sink in connectors]
    return tuple(map(SinkPlan, places, remedies))


def _find_broker(
    settings: Settings, own: Mapping[str, str] = MappingProxyType({})
) -> tuple[KafkaConnection | None, BrokerError | None]:
    try:
        return require_connection(settings, own), None
    except BrokerError as error:
        return None, error


def _value_or_error(read: Callable[[], _Value]) -> _Value | EbbtideError:
    try:
        return read()
    except EbbtideError as error:
        return error


def _read_finished(location: str, pipeline: Pipeline) -> Checkpoint:
    ownership.check_owner(open_folder(location), pipeline)
    checkpoint = read_checkpoint(location)
    checkpoint.require_finished()
    return checkpoint


def why_no_range(pipeline: Pipeline, checkpoint: Checkpoint | None) -> str | None:
    """Why results depend on more than a range of event time; None if no reason is known.

    Spark's metadata in the checkpoint names the operators and the keys of their state. What it does
    not show, the plan of the reprocess will.
    """
    if (why := pipeline.why_no_range) is not None:
        return f"it {why}"
    if pipeline.sessions is not None or checkpoint is None or not checkpoint.operators:
        return None
    if len(checkpoint.operators) > 1:
        return f"it keeps state in {len(checkpoint.operators)} operators that depend on each other"
    (operator,) = checkpoint.operators
    name = operator.name or ""
    if name.startswith("transformWithState"):
        return "it keeps custom state for each key"
    if name in _WHY:
        return f"it {_WHY[name]}"
    if name != "stateStoreSave":
        return None
    keys = checkpoint.folder.read("state", str(operator.id), "0", "_metadata", "schema")
    if keys is None or '"spark.timeWindow":true' in keys or '"spark.sessionWindow":true' in keys:
        return None
    return "it aggregates over all events so far, not over windows"
