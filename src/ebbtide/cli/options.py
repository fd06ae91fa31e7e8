"""Arguments, options and help panels that the commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, Literal, TypeVar

import typer

# Panels of a command's options. Options without one are shown first.
TARGET = "Target (exactly one)"
SINK = "Sink"
SAFETY = "Safety"
SPARK = "Spark"
METRICS = "Metrics"
ENVIRONMENT = "Environment"

Command = TypeVar("Command", bound=Callable[..., None])
EPILOGS: dict[Callable[..., None], str] = {}
_EXAMPLE_WIDTH = 74


def examples(*lines: str) -> Callable[[Command], Command]:
    """Give a command the lines that its help shows as examples."""

    def keep(command: Command) -> Command:
        EPILOGS[command] = example(*lines)
        return command

    return keep


def example(*lines: str) -> str:
    """Format the epilog of a command; a long line is continued as a shell reads it.

    >>> print(example("ebbtide jobs"))
    [bold]Example[/bold]
      $ ebbtide jobs
    """
    folded = [
        wrap(line, _EXAMPLE_WIDTH, break_long_words=False, break_on_hyphens=False) for line in lines
    ]
    return "\n".join(["[bold]Example[/bold]", *("  $ " + " \\\n      ".join(f) for f in folded)])


def option(usage: str, text: str, *, panel: str | None = None, **rest: Any) -> Any:
    """Describe an option by the way it is typed: `--port N`, or `-y --yes` for a switch.

    Typer would show the type of an option that has no metavar, `<bool>` for a switch, and leave
    less room for the text.
    """
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(word for word in words if word not in names)
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **rest)


def argument(metavar: str, text: str, **rest: Any) -> Any:
    """Describe an argument."""
    return typer.Argument(metavar=metavar, help=text, **rest)


def check_port(port: int | None) -> int | None:
    """Refuse an invalid port; Typer would write `min=` and `max=` into the help, at great width."""
    if port is not None and not 0 <= port <= 65_535:
        raise typer.BadParameter(f"{port} is not in the range 0<=x<=65535.")
    return port


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
TopicName = Annotated[str, argument("TOPIC", "Name of the topic.")]
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
# accepted by every command, even one that does not need them
UnusedHome = Annotated[str | None, option("--home DIR", "", hidden=True)]
UnusedServers = Annotated[str | None, option("--bootstrap-servers SERVERS", "", hidden=True)]
UnusedAssumeStopped = Annotated[bool, option("--assume-stopped", "", hidden=True)]

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
        callback=check_port,
    ),
]
MetricsHost = Annotated[
    str | None,
    option(
        "--metrics-host HOST",
        "Address to serve the metrics on (default: 127.0.0.1).",
        panel=METRICS,
    ),
]
