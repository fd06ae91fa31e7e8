"""Define a pipeline: its source, pure transform, sink and event time, as one frozen value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ebbtide.connections import SERVERS, own_connection
from ebbtide.credentials import take_credentials
from ebbtide.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OutputMode = Literal["append", "update", "complete"]
Scope = Literal["stream", "batch"]
Profile = Literal["throughput", "latency"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Endpoint:
    """What a pipeline reads or writes; `kind` names the connector that knows how."""

    kind: ClassVar[str]

    @property
    def topics(self) -> tuple[str, ...]:
        """Kafka topics that must exist."""
        return ()

    @property
    def connection(self) -> Mapping[str, str]:
        """The properties of a connection of its own to Kafka, instead of that of the settings."""
        return {}

    @property
    def needs_broker(self) -> bool:
        """Whether the settings must name a Kafka for its topics."""
        return bool(self.topics) and SERVERS not in self.connection


class Source(Endpoint):
    """What a pipeline reads."""

    needs_schema: ClassVar[bool] = False
    has_broken_records: ClassVar[bool] = False
    """Whether it holds raw records, of which broken ones go to the dead letters."""
    schema: str = ""


class Sink(Endpoint):
    """Where a pipeline writes."""

    takes_batches: ClassVar[bool] = False
    """Whether a pipeline of scope `batch` can write to it."""
    why_no_range: ClassVar[str | None] = None
    """Why a range of event time cannot be written to it."""

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Functions of the user that it calls with each batch's rows and its number."""
        return ()


@dataclass(frozen=True)
class Kafka(Source, Sink):
    """A topic: as a source its values are JSON objects of the schema, as a sink one JSON a row.

    `options` go to Spark, those with the prefix `kafka.` to its Kafka client. If there are some of
    a connection (`kafka.bootstrap.servers`, `kafka.security.…`, `kafka.sasl.…`, `kafka.ssl.…`), it
    is connected by these and by none of `--kafka-config`.

    >>> Kafka("visits", schema="visit_id INT, event_time TIMESTAMP").topic
    'visits'
    """

    kind: ClassVar[str] = "kafka"
    needs_schema: ClassVar[bool] = True
    has_broken_records: ClassVar[bool] = True
    takes_batches: ClassVar[bool] = True

    topic: str
    schema: str = ""
    key: str | None = None
    """As a sink: the SQL expression that gives the record's key, such as `window.start`."""
    starting_offsets: str = "earliest"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.topic):
            raise UsageError(f"{self.topic!r} is not a topic name.", "Use letters, digits, . _ -")

    def __str__(self) -> str:
        return f"topic {self.topic}"

    @property
    def topics(self) -> tuple[str, ...]:
        """Itself."""
        return (self.topic,)

    @property
    def connection(self) -> Mapping[str, str]:
        """Those of its options that say how to connect."""
        return own_connection(self.options)


@dataclass(frozen=True)
class Delta(Source, Sink):
    """A Delta table: a path or URL, or a bare name for a table in the home folder."""

    kind: ClassVar[str] = "delta"

    path: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", take_credentials(self.path))

    def __str__(self) -> str:
        return f"Delta {self.path}"


@dataclass(frozen=True)
class Files(Source, Sink):
    """A folder of files in one of Spark's formats (json, parquet, csv, orc, text)."""

    kind: ClassVar[str] = "files"
    needs_schema: ClassVar[bool] = True

    path: str
    format: str = "json"
    schema: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", take_credentials(self.path))

    def __str__(self) -> str:
        return f"{self.format} files {self.path}"

    @property
    def location(self) -> str:
        """The folder, wherever the process is started: a URL, or an absolute path."""
        path = self.path.rstrip("/") or "/"
        return path if "://" in path else str(Path(path).absolute())

    @property
    def reprocessed(self) -> str:
        """Where new results go: the log of Spark's file sink knows only what the stream wrote."""
        return f"{self.location}-reprocessed"


@dataclass(frozen=True)
class Console(Sink):
    """The terminal, in Spark's own form: at full column width unless `truncate` is set."""

    kind: ClassVar[str] = "console"

    rows: int = 20
    truncate: bool = False

    def __str__(self) -> str:
        return "console"


@dataclass(frozen=True)
class ForeachBatch(Sink):
    """A function of your own that gets each batch's rows and its number.

    A batch that fails comes again whole, under the same number: the function must allow for that.
    """

    kind: ClassVar[str] = "foreach-batch"
    takes_batches: ClassVar[bool] = True
    why_no_range: ClassVar[str | None] = (
        "hands its batches to a function of its own, and a range has none"
    )

    write: Callable[[DataFrame, int], None]

    def __str__(self) -> str:
        return "foreachBatch"

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The one function."""
        return (self.write,)


@dataclass(frozen=True)
class Sessions:
    """How a transform with state of its own divides event time, which its plan does not show.

    Rows with the same `key` are one session until none comes for the length of `gap`. Over rows
    that do not stream, the transform must return its sessions as they are when they have ended, so
    that a range can be reprocessed.

    >>> Sessions("visit_id", timedelta(minutes=10)).key
    'visit_id'
    """

    key: str
    gap: timedelta

    def __post_init__(self) -> None:
        if self.gap < timedelta(milliseconds=1):
            raise UsageError(f"A gap of {self.gap} ends no session.", "Use a millisecond or more.")


@dataclass(frozen=True)
class Pipeline:
    """What to compute, apart from how: run as a stream, or over a range of event time.

    >>> pipeline = Pipeline(
    ...     "visits-raw",
    ...     source=Kafka("visits", schema="visit_id INT, event_time TIMESTAMP"),
    ...     event_time="event_time",
    ...     transform=lambda visits: visits,
    ...     sink=Console(),
    ... )
    >>> pipeline.dead_letter_sink
    Kafka(topic='visits-raw.dead-letters', schema='', key=None, starting_offsets='earliest')
    """

    name: str
    _: KW_ONLY
    source: Source
    transform: Callable[[DataFrame], DataFrame]
    sink: Sink
    event_time: str
    watermark: str | None = None
    output_mode: OutputMode = "append"
    scope: Scope = "stream"
    """What the transform sees: all rows so far, or those of one batch at a time, without state."""
    trigger: str | None = None
    """The time between batches, such as `20 seconds`; `--trigger` overrides it."""
    profile: Profile | None = None
    """What a run is for: `throughput`, which is the default, or `latency`; `--profile` overrides it
    (docs/guide/profiles.md)."""
    sessions: Sessions | None = None
    archive: Delta | None = None
    dead_letters: Kafka | Delta | None = None
    """Where broken records go; by default the topic `<name>.dead-letters` of the source's Kafka."""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Spark settings of this pipeline; `--conf` overrides them."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is not a pipeline name.", "Use letters, digits, . _ - (no spaces)."
            )
        if self.output_mode not in ("append", "update", "complete"):
            raise UsageError(
                f"Pipeline {self.name} has output mode {self.output_mode!r}.",
                "Use append, update or complete.",
            )
        if self.scope not in ("stream", "batch"):
            raise UsageError(
                f"Pipeline {self.name} has scope {self.scope!r}.", "Use stream or batch."
            )
        if self.profile not in (None, "throughput", "latency"):
            raise UsageError(
                f"Pipeline {self.name} has profile {self.profile!r}.",
                "Use throughput or latency.",
            )
        if self.scope == "batch" and not self.sink.takes_batches:
            raise UsageError(
                f"Pipeline {self.name} has scope batch and a {type(self.sink).__name__} sink.",
                "Write its batches to Kafka, or with a ForeachBatch of your own.",
            )
        if self.source.needs_schema and not self.source.schema:
            raise UsageError(
                f"The source of pipeline {self.name} has no schema.",
                'Add one, such as schema="visit_id INT, event_time TIMESTAMP".',
            )

    def query(self, rows: DataFrame) -> DataFrame:
        """What is asked of the source's rows, as a stream and over a range alike."""
        if self.watermark is not None and self.scope == "stream":
            rows = rows.withWatermark(self.event_time, self.watermark)
        return self.transform(rows)

    @property
    def why_no_range(self) -> str | None:
        """Why a range of event time cannot give what the stream gave, as far as this value says."""
        if self.scope == "batch":
            return "says something of each batch, and no range knows where those began and ended"
        return self.sink.why_no_range

    @property
    def dead_letter_sink(self) -> Kafka | Delta:
        """Where this pipeline's broken records go."""
        if self.dead_letters is not None:
            return self.dead_letters
        connection = {f"kafka.{name}": value for name, value in self.source.connection.items()}
        return Kafka(f"{self.name}.dead-letters", options=connection)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """What a run of this pipeline reads and writes."""
        letters = (self.dead_letter_sink,) if self.source.has_broken_records else ()
        return (self.source, self.sink, *letters)

    @property
    def topics(self) -> list[str]:
        """Every topic that a run of this pipeline reads or writes."""
        return [topic for endpoint in self.endpoints for topic in endpoint.topics]

    @property
    def needs_broker(self) -> bool:
        """Whether the settings must name a Kafka for one of the topics."""
        return any(endpoint.needs_broker for endpoint in self.endpoints)
