"""Arguments and options that several commands share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ebbtide import runtime
from ebbtide.cli.commands import argument, option
from ebbtide.config import Settings, load_settings

# help panels; options without one are shown first
_SAFETY = "Safety"
_SPARK = "Spark"
_METRICS = "Metrics"

Output = Literal["table", "json"]
Profile = Literal["throughput", "latency"]
OUTPUT = option("-o --output FORMAT", "table or json.", "table")


def _record_use(location: str) -> str:
    """Remember the checkpoint, because the web UI lists those used recently."""
    from ebbtide.registry import note_use

    note_use(location)
    return location


def _use_settings(conf: list[str] | None) -> list[str] | None:
    """Reach the checkpoint with the settings for Hadoop that Spark gets."""
    from ebbtide.hadoop import use_spark_settings

    pairs = (pair.partition("=") for pair in conf or [])
    use_spark_settings({name: value for name, _, value in pairs})
    return conf


def _check_plot(file: Path | None) -> Path | None:
    from ebbtide.plotting import check_plot_file

    if file is not None:
        check_plot_file(file)
    return file


def _complete_job(incomplete: str) -> list[str]:
    """The built-in jobs that a shell offers."""
    from ebbtide.systems import READY

    return [name for name in READY if name.startswith(incomplete)]


CHECKPOINT = argument("CKPT", "Path or URL of the checkpoint.", callback=_record_use)
PIPELINE = argument(
    "PIPELINE",
    "Name of a built-in job, module:attr or path.py:attr.",
    autocompletion=_complete_job,
)
QUERY = argument(
    "QUERY",
    "A function of the Spark session, or a pipeline: path.py:attr, module:attr or name.",
    autocompletion=_complete_job,
)

# what a command does
EXECUTE = option("--execute", "Apply the plan. Without it, only show the plan.")
REPLAN = option("--replan", "Let Spark choose new batch boundaries from the first batch on.")
EVENT_TIME_FIELD = option("--event-time-field NAME", "JSON field with the event time.")
PLOT = option("--plot FILE", "Also draw the result as a .png file.", callback=_check_plot)
PROFILE = option(
    "--profile PROFILE",
    "throughput, or latency: results sooner, some again after a crash (default: the pipeline's, "
    "or throughput).",
)
SINK_TABLE = option("--sink-table TABLE", "A Delta table that the query writes; may be repeated.")
SINK_FILES = option("--sink-files DIR", "The folder that the query writes files to.")
YES = option("-y --yes", "Do not ask for confirmation.", panel=_SAFETY)
ASSUME_STOPPED = option(
    "--assume-stopped", "Go ahead even if the query wrote a moment ago.", panel=_SAFETY
)
RARE_ASSUME_STOPPED = option("--assume-stopped", "", hidden=True)
"""Asked for on a store that cannot keep two processes apart."""
QUERY_CHECKPOINT = option(
    "--checkpoint CKPT",
    "Checkpoint of the query (default, for a pipeline: checkpoints/<name> in --home).",
)


@dataclass(frozen=True)
class HomeOptions:
    """Where a command runs."""

    panel = "Environment"

    home: str | None = option(
        "--home DIR",
        "Folder or URL of checkpoints, tables and journals (default: EBBTIDE_HOME or ./.ebbtide).",
    )

    @property
    def settings(self) -> Settings:
        """These options, completed from the environment and from ebbtide.toml."""
        return load_settings(**asdict(self))


@dataclass(frozen=True)
class KafkaOptions(HomeOptions):
    """Where a command runs and which Kafka it uses."""

    bootstrap_servers: str | None = option(
        "--bootstrap-servers SERVERS",
        "Kafka's address (default: EBBTIDE_BOOTSTRAP_SERVERS or the embedded broker).",
    )
    kafka_config: str | None = option(
        "--kafka-config FILE",
        "Properties of a Kafka client: TLS, user, password (default: EBBTIDE_KAFKA_CONFIG).",
    )


@dataclass(frozen=True)
class TimeOptions(HomeOptions):
    """Where a command runs and how it reads times."""

    timezone: str | None = option(
        "--timezone ZONE",
        "Time zone for times that are given without one (default: EBBTIDE_TIMEZONE or UTC).",
    )


@dataclass(frozen=True)
class Environment(TimeOptions, KafkaOptions):
    """Where a command runs, which Kafka it uses and how it reads times."""


@dataclass(frozen=True)
class SparkOptions:
    """Which Spark a command starts."""

    master: str | None = option("--master URL", r"Spark master (default: local\[*]).", panel=_SPARK)
    conf: list[str] | None = option(
        "--conf K=V", "Spark setting; may be repeated.", panel=_SPARK, callback=_use_settings
    )
    archive_env: str | None = option(
        "--archive-env FILE",
        "Packed Python for the workers.",
        panel=_SPARK,
    )

    def read_conf(self) -> dict[str, str]:
        """Parse the values of --conf."""
        return runtime.session.parse_conf(self.conf or [])

    def to_flags(self) -> dict[str, Any]:
        """The arguments of `SparkFlags` and of what is derived from it."""
        return {"master": self.master, "conf": self.read_conf(), "archive_env": self.archive_env}


@dataclass(frozen=True)
class QueryOptions(SparkOptions):
    """How a query runs."""

    checkpoint: str | None = option(
        "--checkpoint CKPT",
        "Checkpoint of the query (default: checkpoints/<name> in --home; of an archive, "
        "checkpoints/<table>-archive).",
    )
    available_now: bool = option(
        "--available-now", "Process the records that are available, then stop."
    )
    trigger: str | None = option(
        "--trigger TIME", 'Interval between batches, such as "20 seconds".'
    )
    max_offsets_per_trigger: int | None = option(
        "--max-offsets-per-trigger N", "Maximum number of records per batch.", panel=_SPARK
    )
    metrics_port: int | None = option(
        "--metrics-port N",
        "Serve Prometheus metrics on this port (0 = any free port).",
        panel=_METRICS,
        min=0,
        max=65_535,
    )
    metrics_host: str | None = option(
        "--metrics-host HOST", "Address of the metrics (default: 127.0.0.1).", panel=_METRICS
    )
    assume_stopped: bool = RARE_ASSUME_STOPPED
