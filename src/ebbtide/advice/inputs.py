"""Read what the advice is based on: the checkpoint, the archive and the broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import TypeVar

from ebbtide.advice.options import RecoveryStep
from ebbtide.archive import Archive, read_archive
from ebbtide.checkpoint import Checkpoint, read_checkpoint
from ebbtide.config import Settings
from ebbtide.connectors.kafka import KafkaConnection
from ebbtide.errors import BrokerError, EbbtideError
from ebbtide.local import require_connection
from ebbtide.pipeline import Pipeline
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
class AdviceInputs:
    """What the advice is based on; an error stands for what cannot be read."""

    pipeline: Pipeline
    settings: Settings
    location: str
    """The location of the stream's checkpoint."""
    checkpoint: Checkpoint | EbbtideError
    archive: Archive | EbbtideError
    connection: KafkaConnection | None
    """The broker to ask about offsets and retention."""
    broker_error: BrokerError | None
    reference: str
    """The pipeline as the user typed it."""
    flags: Mapping[str, str]
    """Other flags as the user typed them; commands repeat them."""

    def command(self, line: str, *names: str) -> str:
        """A command with those of the named flags that the user gave."""
        flags = [f" {name} {quote(self.flags[name])}" for name in names if name in self.flags]
        return line + "".join(flags)

    @property
    def first_steps(self) -> tuple[RecoveryStep, ...]:
        """Steps to take before anything can read from Kafka."""
        if not self.pipeline.topics or self.connection or self.broker_error:
            return ()
        what = "Start the embedded broker, or name another with --bootstrap-servers."
        return (RecoveryStep(what, self.command("ebbtide broker start", "--home")),)

    @property
    def stateful(self) -> bool:
        """Whether the query is known to keep state."""
        return isinstance(self.checkpoint, Checkpoint) and bool(self.checkpoint.operators)

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


def read_inputs(
    pipeline: Pipeline, settings: Settings, location: str, reference: str, flags: Mapping[str, str]
) -> AdviceInputs:
    """Read checkpoint, archive and broker; what is missing is not an error yet."""
    connection, broker_error = None, None
    try:
        if pipeline.topics:
            connection = require_connection(settings, pipeline.source.connection)
    except BrokerError as error:
        broker_error = error
    return AdviceInputs(
        *(pipeline, settings, location),
        _value_or_error(lambda: _read_finished(location, pipeline)),
        _value_or_error(lambda: read_archive(pipeline, settings)),
        connection,
        broker_error,
        quote(reference),
        flags,
    )


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
