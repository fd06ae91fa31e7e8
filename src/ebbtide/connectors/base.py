"""The interface of a connector, as far as it needs no Spark.

A `Connector` is one external system, with a `SourceConnector` and a `SinkConnector`. Their default
methods are right for a system of which nothing is known, so that a new connector overrides only
what it knows better. How Spark reads and writes the system is in `streams.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar, cast

from ebbtide.checkpoint import Backup, Checkpoint, SinkChange, log_files
from ebbtide.checks import Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connections import KafkaConnection
from ebbtide.connectors.changed import ComparedSink, ComparedSource
from ebbtide.connectors.positions import PositionedSource
from ebbtide.connectors.streams import OutputPosition, SparkSink, SparkSource
from ebbtide.credentials import take_credentials
from ebbtide.errors import UsageError
from ebbtide.notes import decode
from ebbtide.pipeline import Pipeline, Sink, Source
from ebbtide.storage import Folder, WritableFolder, open_folder
from ebbtide.times import EPOCH

RESTORE, APPEND_AGAIN, WAIVE = "restore", "append-again", "none"
"""The values of `--sink`: what becomes of a sink's rows, or that it accepts batches again."""
SourceT = TypeVar("SourceT", bound=Source)
SinkT = TypeVar("SinkT", bound=Sink)


@dataclass(frozen=True)
class Limit:
    """How long one system keeps what a batch needs."""

    keeper: str
    until: datetime | None = None
    """It is kept at least until then; None if no end is in sight."""
    estimate: bool = False
    """Whether the time is extrapolated from the pace of the query so far."""
    gone: str | None = None
    """Why the batch cannot run again: something is not kept any more."""


@dataclass(frozen=True)
class Retention:
    """How long a system keeps what each batch needs, and remarks on what could not be read."""

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


class SourceConnector(ComparedSource, PositionedSource, Generic[SourceT]):
    """What a rewind must know of a source; the defaults are for one that cannot be asked."""

    def owns(self, offset: Any) -> bool:
        """Whether an offset, parsed from JSON, is one of this source."""
        return False

    def format_offset(self, offset: Any) -> str:
        """Format an offset briefly."""
        return json.dumps(offset, separators=(",", ":"))

    def names_in(self, offset: str) -> tuple[str, ...]:
        """The topics or the table that an offset names."""
        return ()

    def find_mismatch(self, source: SourceT, kind: str, names: tuple[str, ...]) -> str | None:
        """Whose checkpoint it is, if one with such offsets belongs to another source."""
        return None

    def describe(
        self, source: SourceT, settings: Settings, folder: Folder, before: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The runner's note: what `check` must know later; `before` is the last one."""
        return {"kind": source.kind}

    def location(self, source: SourceT, settings: Settings) -> str | None:
        """The path or URL that Spark reads; None if it is no folder."""
        return None

    def check(self, replay: SourceReplay) -> SourceVerdict:
        """Whether the source still holds what a rewind reads again."""
        unseen = "whether source {} still holds the range cannot be seen from here"
        next_step = "See that its data is still there."
        return SourceVerdict(
            tuple(
                CheckKind.OTHER_SOURCE.warn(unseen.format(read.index), next_step)
                for read in replay.ranges
            )
        )

    def limit(self, asked: RetentionRequest) -> Retention:
        """How long the source keeps what each batch reads."""
        return Retention()


@dataclass(frozen=True)
class SinkPlace:
    """Where a query writes, as its runner noted it or as the user named it."""

    kind: str
    name: str
    path: str = ""
    """Of a table or a folder; of Kafka, the topic."""

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> SinkPlace:
        """From the runner's note."""
        return cls(note["kind"], note["name"], note.get("path", ""))

    @classmethod
    def named(cls, flags: Mapping[str, Collection[str]]) -> tuple[SinkPlace, ...]:
        """From the options that name a sink; each belongs to a connector.

        >>> [place.kind for place in SinkPlace.named({"--sink-table": ["/visits", "/clicks"]})]
        ['delta', 'delta']
        """
        from ebbtide.connectors.registry import all_connectors

        # absolute: a saved plan or an undo may be carried out from elsewhere
        places = (
            cls(connector.kind, take_credentials(path), open_folder(path).url)
            for connector in all_connectors()
            for path in flags.get(connector.sink.flag or "", ())
        )
        return tuple({place.address: place for place in places}.values())

    @property
    def address(self) -> tuple[str, str]:
        """The same for every name of a table or a folder."""
        with suppress(UsageError):  # not one of a filesystem
            return self.kind, open_folder(self.path).address if self.path else self.name
        return self.kind, self.path


@dataclass(frozen=True)
class SinkEvidence:
    """What a table or a folder shows of a query: a sign that the query writes there."""

    CERTAIN: ClassVar[str] = "certain"
    LIKELY: ClassVar[str] = "likely"
    POSSIBLE: ClassVar[str] = "possible"

    sink: SinkPlace
    match: str
    detail: str
    batch: int | None = None
    """The last batch that it shows."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        plain = asdict(self)
        return {**plain.pop("sink"), **plain}


@dataclass(frozen=True)
class ReplayedQuery:
    """The query and the batches that run again, as a sink must know them."""

    checkpoint: Checkpoint
    first: int
    """The first batch that runs again; all after it do, too."""
    remedy: str | None = None
    """The value of `--sink`."""
    connection: KafkaConnection | None = None

    @property
    def first_batch(self) -> log_files.Batch:
        """The first batch, as the checkpoint's logs have it."""
        return self.checkpoint.logs.by_id[self.first]

    @property
    def last(self) -> int:
        """The last batch that is committed, or planned."""
        return self.checkpoint.logs.batches[-1].id

    @property
    def batches(self) -> str:
        """The batches in words."""
        return format_batches(self.first, self.last)


@dataclass(frozen=True)
class SinkPlan:
    """What the sink will do with the batches, and what a rewind does to the sink."""

    REMEDIES: ClassVar[tuple[str, ...]] = (RESTORE, APPEND_AGAIN)
    """The possible values of `--sink`."""

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
    """The time so many milliseconds after 1970; None if that lies beyond the calendar."""
    try:
        return None if milliseconds is None else EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def format_batches(first: int, last: int) -> str:
    """Format a range of batches.

    >>> format_batches(3, 3), format_batches(3, 5)
    ('batch 3', 'batches 3 to 5')
    """
    return f"batches {first} to {last}" if last > first else f"batch {first}"


class SinkConnector(ComparedSink, Generic[SinkT]):
    """What a rewind must know of a sink; the defaults are for one that writes whatever it gets."""

    flag: ClassVar[str | None] = None
    """The option that names such a sink."""
    remedies: ClassVar[tuple[str, ...]] = ()
    """The values of `--sink` that it can do."""
    can_restore: ClassVar[bool] = False
    """Whether a rewind can roll it back."""
    is_replaced: ClassVar[bool] = False
    """Whether a reprocess replaces a range of it in one commit, rather than adding to it."""
    hint: ClassVar[str] = ""
    """The next step where it is not known what the sink does."""
    log: ClassVar[str | None] = None
    """The folder in it by which such a sink is recognized."""
    names_query: ClassVar[bool] = False
    """Whether that log says which query wrote a batch."""

    def place(self, sink: SinkT, settings: Settings) -> SinkPlace:
        """Where it writes."""
        return SinkPlace(sink.kind, str(sink))

    def location(self, sink: SinkT, settings: Settings) -> str | None:
        """The path or URL that Spark writes to; None if it is no folder."""
        return None

    def begin(
        self,
        folder: WritableFolder,
        place: SinkPlace,
        logs: log_files.Logs,
        *,
        is_own: bool = False,
    ) -> bool:
        """Prepare a place for a query's next batch; False if others have written there.

        `is_own`: the query wrote there before. Refused if the place would skip batches that the
        query has not run.
        """
        return True

    def lacks_place(self, place: SinkPlace) -> bool:
        """Whether a plan can tell what the sink does only if the user names its place."""
        return self.can_restore and not place.path

    def plan(self, place: SinkPlace, query: ReplayedQuery) -> tuple[SinkPlan, Check]:
        """What a replay will do to it, and how a rewind rolls it back."""
        again = f"{place.name} gets the output of {query.batches} again"
        return SinkPlan(place), CheckKind.SINK.warn(again, self.hint)

    def examine(self, place: SinkPlace, checkpoint: Checkpoint) -> SinkEvidence | None:
        """What a place shows of a query; None if it shows no sign of it."""
        return None

    def find_others(self, place: SinkPlace, checkpoint: Checkpoint) -> list[SinkEvidence]:
        """Other places next to one that whoever writes it for the query writes, too."""
        return []

    def plan_undo(
        self, folder: Folder, change: SinkChange, backup: Backup, ids: Collection[str]
    ) -> SinkChange:
        """How to undo the change in a backup; refused where others would lose work."""
        raise NotImplementedError

    def apply(
        self, folder: WritableFolder, change: SinkChange, backup: Backup, returning: Backup | None
    ) -> None:
        """Carry out a planned change; after an interruption, run it again to finish.

        `backup` is what the change makes, `returning` the one that an undo brings back.
        """
        raise NotImplementedError

    def revert(
        self, folder: WritableFolder, change: SinkChange, backup: Backup, returning: Backup | None
    ) -> None:
        """Take a change back, as far as it was carried out, because the whole of it stopped."""

    def format_manual_return(self, change: SinkChange, backup: Backup) -> str:
        """What is left to do if a change cannot be taken back."""
        return f"Restore {change.path} yourself."

    def find_missing(self, folder: Folder, change: SinkChange, backup: Backup) -> str | None:
        """A file of the sink that is missing from a backup."""
        return None

    def delete_quarantined(
        self, folder: WritableFolder, change: SinkChange, backup: Backup
    ) -> None:
        """Delete for good the files of the sink that a backup has set aside."""

    def format_change(self, change: SinkChange) -> str | None:
        """What was done to the sink; None if nothing."""
        return None

    def format_return(self, change: SinkChange) -> str:
        """What an undo would do to the sink."""
        raise NotImplementedError

    def format_fork(self, name: str, *, starts_over: bool) -> str:
        """A warning for when a fork of the query runs, too; `starts_over` with batch 0."""
        return f"Warning: it also writes to {name}, unless the code that you run names another."

    def format_replay(self, sink: SinkT, batches: str, check: Check) -> str:
        """What a rewind would do to it, as advice compares it with a reprocess."""
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
        """What a reprocess does to it; `dated`: whether each result says when it begins."""
        return CheckKind.OUTPUT.ok(f"{sink} gets the results again")


@dataclass(frozen=True)
class Connector:
    """One external system: as a source, as a sink, and as Spark reads and writes it."""

    kind: str
    """Its name in values, notes and plans."""
    label: str = ""
    """Its name in messages about how long data is kept."""
    source: SourceConnector[Any] = SourceConnector()
    sink: SinkConnector[Any] = SinkConnector()
    streams: str = ""
    """The module in which `SOURCE` and `SINK` are how Spark reads and writes it."""
    jar: str = ""
    """How the name of the jar begins that Spark needs for it; empty if it is a part of Spark."""

    def open_source(self, pipeline: Pipeline, settings: Settings) -> SparkSource:
        """A pipeline's source as Spark reads it."""
        return cast(SparkSource, import_module(self.streams).SOURCE(pipeline, settings))

    def open_sink(self, sink: Sink, settings: Settings) -> SparkSink[Any]:
        """A sink as Spark writes it."""
        return cast("SparkSink[Any]", import_module(self.streams).SINK(sink, settings))
