"""A pipeline and settings in, what can be seen without a JVM out: checkpoint, archive, broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

from ebbtide.advice.options import Step
from ebbtide.archive.facts import Archive, read_archive
from ebbtide.checkpoint import Checkpoint, read_checkpoint
from ebbtide.config import Settings
from ebbtide.connectors.kafka import KafkaConnection
from ebbtide.errors import BrokerError, EbbtideError
from ebbtide.local.broker import require_connection
from ebbtide.pipeline import Pipeline
from ebbtide.runtime.ownership import check_owner
from ebbtide.storage import open_folder

_WHY = {
    "flatMapGroupsWithState": "keeps state of its own for each key",
    "applyInPandasWithState": "keeps state of its own for each key",
    "dedupe": "drops duplicates among all events that ever were",
    "dedupeWithinWatermark": "drops duplicates by the order in which events came",
    "symmetricHashJoin": "joins two streams",
    "globalLimit": "takes the first rows of all",
}


@dataclass(frozen=True)
class Broker:
    """The broker to ask."""

    connection: KafkaConnection | None = None
    error: BrokerError | None = None


@dataclass(frozen=True)
class Scene:
    """What there is; where something cannot be read, the error that says why."""

    pipeline: Pipeline
    settings: Settings
    location: str
    """Where the stream's checkpoint is."""
    checkpoint: Checkpoint | EbbtideError
    archive: Archive | EbbtideError
    broker: Broker
    reference: str
    """The pipeline as it is typed."""
    flags: Mapping[str, str]
    """Other flags as they were typed, to be typed again."""

    def command(self, line: str, *names: str) -> str:
        """A line to type, with those of the given flags that it takes."""
        flags = [f" {name} {quote(self.flags[name])}" for name in names if name in self.flags]
        return line + "".join(flags)

    @property
    def first_steps(self) -> tuple[Step, ...]:
        """What must be done before anything can read Kafka."""
        broker = self.broker
        if not self.pipeline.topics or broker.connection is not None or broker.error is not None:
            return ()
        what = "Start the embedded broker, or name yours with --bootstrap-servers."
        return (Step(what, self.command("ebbtide broker start", "--home")),)

    @property
    def stateful(self) -> bool:
        """Whether the query is known to keep state."""
        return isinstance(self.checkpoint, Checkpoint) and bool(self.checkpoint.operators)

    @property
    def ends(self) -> dict[int, int] | None:
        """By partition of the topic, up to where the stream has planned to read."""
        if not isinstance(self.checkpoint, Checkpoint) or not self.checkpoint.logs.batches:
            return None
        return self.of_topic(self.checkpoint.logs.batches[-1].positions)

    def of_topic(self, positions: Mapping[tuple[str, int], int]) -> dict[int, int]:
        """Offsets by partition of the pipeline's topic."""
        topics = self.pipeline.source.topics
        return {p: offset for (name, p), offset in positions.items() if name in topics}


def look(
    pipeline: Pipeline,
    settings: Settings,
    location: str,
    reference: str,
    flags: Mapping[str, str],
) -> Scene:
    """See what there is; nothing that is missing is an error yet."""
    return Scene(
        pipeline,
        settings,
        location,
        _checkpoint(location, pipeline),
        _archive(pipeline, settings),
        _broker(pipeline, settings),
        quote(reference),
        flags,
    )


def _checkpoint(location: str, pipeline: Pipeline) -> Checkpoint | EbbtideError:
    try:
        check_owner(open_folder(location), pipeline)
        found = read_checkpoint(location)
        found.require_finished()
    except EbbtideError as error:
        return error
    return found


def _archive(pipeline: Pipeline, settings: Settings) -> Archive | EbbtideError:
    try:
        return read_archive(pipeline, settings)
    except EbbtideError as error:
        return error


def _broker(pipeline: Pipeline, settings: Settings) -> Broker:
    if not pipeline.topics:
        return Broker()
    try:
        return Broker(require_connection(settings))
    except BrokerError as error:
        return Broker(error=error)


def why_no_range(pipeline: Pipeline, checkpoint: Checkpoint | None) -> str | None:
    """Why a result of the query hangs on more than a range of event time; None if it need not.

    Spark's notes in the checkpoint tell: the names of the operators and the keys of their state.
    What they do not tell, the plan of the reprocess will.
    """
    if (why := pipeline.why_no_range) is not None:
        return f"it {why}"
    if pipeline.sessions is not None or checkpoint is None or not checkpoint.operators:
        return None
    if len(checkpoint.operators) > 1:
        return f"it keeps state in {len(checkpoint.operators)} steps that build on each other"
    (operator,) = checkpoint.operators
    name = operator.name or ""
    if name.startswith("transformWithState"):
        return "it keeps state of its own for each key"
    if name in _WHY:
        return f"it {_WHY[name]}"
    if name != "stateStoreSave":
        return None
    keys = checkpoint.folder.read("state", str(operator.id), "0", "_metadata", "schema")
    if keys is None or '"spark.timeWindow":true' in keys or '"spark.sessionWindow":true' in keys:
        return None
    return "it aggregates over all events that ever were, not over windows"
