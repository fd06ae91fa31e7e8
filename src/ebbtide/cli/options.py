"""Arguments and options that several commands share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from ebbtide.cli.commands import argument, option
from ebbtide.config import Settings, load_settings

# Panels of a command's options. Options without one are shown first.
TARGET = "Target (exactly one)"
SINK = "Sink"
SAFETY = "Safety"
SPARK = "Spark"
METRICS = "Metrics"
ENVIRONMENT = "Environment"


def _record_use(location: str) -> str:
    """Remember the checkpoint, because the web UI lists those used recently."""
    from ebbtide.registry import note_use

    note_use(location)
    return location


CheckpointPath = Annotated[
    str, argument("CKPT", "Path or fsspec URL of the checkpoint.", callback=_record_use)
]
PipelineName = Annotated[
    str, argument("PIPELINE", "Name of a built-in job, module:attr or path.py:attr.")
]
Output = Annotated[Literal["table", "json"], option("-o --output FORMAT", "table or json.")]

# what a command does
Execute = Annotated[bool, option("--execute", "Apply the plan. Without it, only show the plan.")]
Replan = Annotated[
    bool, option("--replan", "Let Spark choose new batch boundaries from the first batch on.")
]
EventTimeField = Annotated[
    str | None, option("--event-time-field NAME", "JSON field with the event time.")
]
Plot = Annotated[Path | None, option("--plot FILE", "Also draw the result as a .png file.")]
Yes = Annotated[bool, option("-y --yes", "Do not ask for confirmation.", panel=SAFETY)]
AssumeStopped = Annotated[
    bool,
    option("--assume-stopped", "Go ahead even if the query wrote a moment ago.", panel=SAFETY),
]

# where a command runs
Home = Annotated[
    str | None,
    option(
        "--home DIR",
        "Folder of a local run: broker, checkpoints, tables (default: EBBTIDE_HOME or ./.ebbtide).",
        panel=ENVIRONMENT,
    ),
]
Servers = Annotated[
    str | None,
    option(
        "--bootstrap-servers SERVERS",
        "Kafka's address (default: EBBTIDE_BOOTSTRAP_SERVERS or the embedded broker).",
        panel=ENVIRONMENT,
    ),
]
Zone = Annotated[
    str | None,
    option(
        "--timezone ZONE",
        "Time zone for times that are given without one (default: EBBTIDE_TIMEZONE or UTC).",
        panel=ENVIRONMENT,
    ),
]
UnusedAssumeStopped = Annotated[bool, option("--assume-stopped", "", hidden=True)]


@dataclass(frozen=True)
class HomeOptions:
    """Where a command runs."""

    home: Home = None

    @property
    def settings(self) -> Settings:
        """These options, completed from the environment and from ebbtide.toml."""
        return load_settings(**asdict(self))


@dataclass(frozen=True)
class KafkaOptions(HomeOptions):
    """Where a command runs and which Kafka it uses."""

    bootstrap_servers: Servers = None


@dataclass(frozen=True)
class Environment(KafkaOptions):
    """Where a command runs, which Kafka it uses and how it reads times."""

    timezone: Zone = None


# how a query runs
AvailableNow = Annotated[
    bool, option("--available-now", "Process the records that are available, then stop.")
]
Trigger = Annotated[
    str | None, option("--trigger TIME", 'Interval between batches, such as "20 seconds".')
]
QueryCheckpoint = Annotated[
    str | None,
    option("--checkpoint CKPT", "Checkpoint of the query (default: checkpoints/<name> in --home)."),
]
MaxOffsets = Annotated[
    int | None,
    option("--max-offsets-per-trigger N", "Maximum number of records per batch.", panel=SPARK),
]
Master = Annotated[
    str | None, option("--master URL", r"Spark master (default: local\[*]).", panel=SPARK)
]
Conf = Annotated[
    list[str] | None, option("--conf K=V", "Spark setting; may be repeated.", panel=SPARK)
]
MetricsPort = Annotated[
    int | None,
    option(
        "--metrics-port N",
        "Serve Prometheus metrics on this port (0 = any free port).",
        panel=METRICS,
        min=0,
        max=65_535,
    ),
]
MetricsHost = Annotated[
    str | None,
    option("--metrics-host HOST", "Address of the metrics (default: 127.0.0.1).", panel=METRICS),
]


@dataclass(frozen=True)
class SparkOptions:
    """Which Spark a command starts."""

    master: Master = None
    conf: Conf = None


@dataclass(frozen=True)
class QueryOptions(SparkOptions):
    """How a query runs."""

    checkpoint: QueryCheckpoint = None
    available_now: AvailableNow = False
    trigger: Trigger = None
    max_offsets_per_trigger: MaxOffsets = None
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = None
