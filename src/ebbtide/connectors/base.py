"""What every connector answers without Spark: about itself as a source and as a sink.

`Connector` is the whole of one external system, `SourceConnector` and `SinkConnector` are its two
ends. The base classes answer for a system of which nothing is known, so that a new connector
implements only what it knows better. How Spark reads and writes it is in `streams.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ebbtide.checkpoint import Backup, Checkpoint, SinkChange
from ebbtide.checks import OK, WARN, Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors.streams import OutputPosition, SparkSink, SparkSource
from ebbtide.notes import decode
from ebbtide.pipeline import Pipeline, Sink, Source
from ebbtide.storage import Folder, WritableFolder, open_folder
from ebbtide.times import EPOCH

if TYPE_CHECKING:
    from ebbtide.connections import KafkaConnection

RESTORE, APPEND_AGAIN = "restore", "append-again"
SourceT = TypeVar("SourceT", bound=Source)
SinkT = TypeVar("SinkT", bound=Sink)


@dataclass(frozen=True)
class Limit:
    """How long one keeper keeps what a batch needs."""

    keeper: str
    until: datetime | None = None
    """It is kept at least until then; None if no end is in sight."""
    estimate: bool = False
    """Whether the time follows from the pace of the query so far."""
    gone: str | None = None
    """Why the batch cannot run again: something is not kept any more."""


@dataclass(frozen=True)
class Retention:
    """By batch, how long a system keeps what the batch needs, and what could not be found out."""

    limits: Mapping[int, Limit] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class RetentionRequest:
    """Which batches of a checkpoint are to run again, and what is known of the system."""

    checkpoint: Checkpoint
    note: Mapping[str, Any]
    """What the runner noted of the source or the sink; empty if that was another one."""
    connection: KafkaConnection | None
    now: datetime
    older: Mapping[int, tuple[str | None, ...]] = field(default_factory=dict)
    """The offsets of batches that only the history knows."""

    @property
    def batches(self) -> list[int]:
        """The batches that the checkpoint can give, oldest first."""
        reasons = self.checkpoint.restorable.items()
        return [batch for batch, reason in reasons if reason is None]


@dataclass(frozen=True)
class SourceRange:
    """What a rewind reads again of one source, by its offsets."""

    index: int
    start: str | None
    """Where the batch before the first one ended."""
    first: str | None
    """Where the first batch ended."""
    end: str
    """Where the last planned batch ends."""


@dataclass(frozen=True)
class SourceReplay:
    """What a rewind to a batch reads again of a query's sources of one kind."""

    checkpoint: Checkpoint
    batch: int
    ranges: tuple[SourceRange, ...]
    note: Mapping[str, Any]
    """What the runner noted of the source; empty if that was another one."""
    connection: KafkaConnection | None = None
    replan: bool = False


@dataclass(frozen=True)
class Replayed:
    """What a rewind means for one partition of a Kafka source."""

    topic: str
    partition: int
    current: int
    new: int
    earliest: int | None = None
    latest: int | None = None
    status: str = "not asked"

    @property
    def records(self) -> int:
        """How many records will be read again."""
        return max(0, self.current - self.new)


@dataclass(frozen=True)
class SourceVerdict:
    """Whether sources still hold what is read again."""

    checks: tuple[Check, ...]
    partitions: tuple[Replayed, ...] = ()
    """Of Kafka, partition by partition."""


class SourceConnector(Generic[SourceT]):
    """What a rewind must know of a source; here, of one that cannot be asked."""

    def owns(self, offset: Any) -> bool:
        """Whether an offset, parsed from JSON, is one of this source."""
        return False

    def format_offset(self, offset: Any) -> str:
        """An offset in few characters."""
        return json.dumps(offset, separators=(",", ":"))

    def names_in(self, offset: str) -> tuple[str, ...]:
        """What an offset says of its source: which topics, or which table."""
        return ()

    def find_mismatch(self, source: SourceT, kind: str, names: tuple[str, ...]) -> str | None:
        """Whose checkpoint it is, if a checkpoint with such offsets is not of this source."""
        return None

    def describe(
        self, source: SourceT, settings: Settings, folder: Folder, before: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The runner's note: what `check` must know later; `before` is the last one."""
        return {"kind": source.kind}

    def check(self, replay: SourceReplay) -> SourceVerdict:
        """Whether the source still holds what a rewind reads again."""
        return SourceVerdict(
            tuple(
                Check(
                    CheckKind.OTHER_SOURCE,
                    WARN,
                    f"whether source {read.index} still holds the range cannot be seen from here",
                    "See that its data is still there.",
                )
                for read in replay.ranges
            )
        )

    def limit(self, asked: RetentionRequest) -> Retention:
        """How long the source keeps what each batch reads."""
        return Retention()


@dataclass(frozen=True)
class SinkPlace:
    """Where a query writes, as its owner noted it or as somebody named it."""

    kind: str
    name: str
    path: str = ""
    """Of a table or a folder; of Kafka, the topic."""

    @classmethod
    def of_note(cls, note: Mapping[str, Any] | None) -> SinkPlace | None:
        """From the runner's note."""
        return None if note is None else cls(note["kind"], note["name"], note.get("path", ""))

    @classmethod
    def named(cls, flags: Mapping[str, str | None]) -> SinkPlace | None:
        """From the options with which somebody names a sink; each belongs to a connector.

        >>> SinkPlace.named({"--sink-table": "/tables/visits", "--sink-files": None}).kind
        'delta'
        """
        from ebbtide.connectors.registry import all_connectors

        for connector in all_connectors():
            if path := flags.get(connector.sink.flag or ""):
                # absolute: a saved plan or an undo may be carried out from elsewhere
                return cls(connector.kind, path, open_folder(path).url)
        return None


@dataclass(frozen=True)
class ReplayedQuery:
    """What a sink must be told about the query and the batches that run again."""

    id: str
    ids: frozenset[str]
    """All that it has had: a rewind may give it a new one."""
    first: int
    last: int
    """The last batch that is committed, or planned."""
    planned_ms: int
    """When the first batch was planned."""
    committed: bool
    """Whether the first batch is done."""
    checkpoint: Folder
    remedy: str | None = None
    """What `--sink` says."""
    connection: KafkaConnection | None = None

    @property
    def batches(self) -> str:
        """In words."""
        return format_batches(self.first, self.last)


@dataclass(frozen=True)
class SinkPlan:
    """What the sink will do, and what a rewind does to it."""

    REMEDIES: ClassVar[tuple[str, ...]] = (RESTORE, APPEND_AGAIN)
    """What `--sink` may say."""

    sink: SinkPlace
    remedy: str | None = None
    new_query_id: bool = False
    change: SinkChange | None = None
    repeats: Mapping[str, tuple[int, int]] | None = None
    """Of Kafka, by partition: the first record that comes again, and the end."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values; `from_dict` reads them back."""
        plain = asdict(self)
        return {**plain.pop("sink"), **plain}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> SinkPlan:
        """Read a saved one."""
        place = {name: plain[name] for name in SinkPlace.__dataclass_fields__}
        return decode(cls, {**plain, "sink": place}, ignore_unknown=True)


def from_millis(milliseconds: int | None) -> datetime | None:
    """A time; None if it lies beyond the calendar, as for ever does."""
    try:
        return None if milliseconds is None else EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def format_batches(first: int, last: int) -> str:
    """A range of batches in words.

    >>> format_batches(3, 3), format_batches(3, 5)
    ('batch 3', 'batches 3 to 5')
    """
    return f"batches {first} to {last}" if last > first else f"batch {first}"


class SinkConnector(Generic[SinkT]):
    """What a rewind must know of a sink; here, of one that writes again whatever it is given."""

    flag: ClassVar[str | None] = None
    """The option with which somebody names such a sink."""
    remedies: ClassVar[tuple[str, ...]] = ()
    """What `--sink` offers."""
    can_restore: ClassVar[bool] = False
    """Whether a rewind can roll it back."""
    is_replaced: ClassVar[bool] = False
    """Whether a reprocess replaces a range of it in one commit, rather than adding to it."""
    hint: ClassVar[str] = ""
    """What to do where it is not known what the sink does."""

    def place(self, sink: SinkT, settings: Settings) -> SinkPlace:
        """Where it writes."""
        return SinkPlace(sink.kind, str(sink))

    def lacks_place(self, place: SinkPlace) -> bool:
        """Whether somebody should name the place, so that a plan can tell what the sink does."""
        return self.can_restore and not place.path

    def plan(self, place: SinkPlace, query: ReplayedQuery) -> tuple[SinkPlan, Check]:
        """What a replay will do to it, and how a rewind rolls it back."""
        check = Check(
            CheckKind.SINK, WARN, f"{place.name} gets the output of {query.batches} again"
        )
        return SinkPlan(place), replace(check, next=self.hint)

    def plan_undo(
        self, folder: Folder, change: SinkChange, backup: Backup, ids: Collection[str]
    ) -> SinkChange:
        """How the change in a backup is taken back; refused where others would lose work."""
        raise NotImplementedError

    def apply(
        self, folder: WritableFolder, change: SinkChange, backup: Backup, returning: Backup | None
    ) -> None:
        """Carry out a planned change; run again, it finishes.

        `backup` is what the change makes, `returning` the one that an undo brings back.
        """
        raise NotImplementedError

    def find_missing(self, folder: Folder, change: SinkChange, backup: Backup) -> str | None:
        """A file that a backup should have of the sink, and has not."""
        return None

    def delete_quarantined(
        self, folder: WritableFolder, change: SinkChange, backup: Backup
    ) -> None:
        """Remove for good what a backup has set aside of the sink."""

    def format_change(self, change: SinkChange) -> str | None:
        """What was done to the sink; None if nothing."""
        return None

    def format_return(self, change: SinkChange) -> str:
        """What an undo would do to the sink."""
        raise NotImplementedError

    def format_fork(self, name: str) -> str:
        """What to mind when a fork of the query runs, too."""
        return f"Warning: it also writes to {name}, unless the pipeline that you run names another."

    def format_replay(self, sink: SinkT, batches: str, check: Check) -> str:
        """What a rewind would do to it, for somebody who compares it with a reprocess."""
        return check.detail

    def limit(self, asked: RetentionRequest) -> Retention:
        """How long the sink can be rolled back to before each batch."""
        return Retention()

    def position(self, pipeline: Pipeline, settings: Settings) -> OutputPosition:
        """Where the output stands now; refused if it is not there."""
        return OutputPosition()

    def format_output(self, sink: SinkT, settings: Settings) -> str:
        """The output of a reprocess in words."""
        return self.place(sink, settings).name

    def check_reprocess(self, sink: SinkT, pipeline: Pipeline, *, dated: bool = True) -> Check:
        """What a reprocess does to it; `dated` says whether results say when they begin."""
        return Check(CheckKind.OUTPUT, OK, f"{sink} gets the results again")


@dataclass(frozen=True)
class Connector:
    """One external system: as a source, as a sink, and as Spark reads and writes it."""

    kind: str
    """As values, notes and plans name it."""
    label: str = ""
    """As a keeper of data, in words."""
    source: SourceConnector[Any] = SourceConnector()
    sink: SinkConnector[Any] = SinkConnector()
    streams: str = ""
    """The module in which `SOURCE` and `SINK` are how Spark reads and writes it."""

    def open_source(self, pipeline: Pipeline, settings: Settings) -> SparkSource:
        """A pipeline's source as Spark reads it."""
        opened: SparkSource = import_module(self.streams).SOURCE(pipeline, settings)
        return opened

    def open_sink(self, sink: Sink, settings: Settings) -> SparkSink[Any]:
        """A sink as Spark writes it."""
        opened: SparkSink[Any] = import_module(self.streams).SINK(sink, settings)
        return opened
