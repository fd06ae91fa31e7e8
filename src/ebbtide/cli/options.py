"""Arguments, options and help panels that the commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, Literal, TypeVar

import typer

# panels of a command's options; what names none of them is shown first
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
    """Format the epilog of a command; a line that is too long is continued as a shell reads it.

    >>> print(example("ebbtide jobs"))
    [bold]Example[/bold]
      $ ebbtide jobs
    """
    folded = [
        wrap(line, _EXAMPLE_WIDTH, break_long_words=False, break_on_hyphens=False) for line in lines
    ]
    return "\n".join(["[bold]Example[/bold]", *("  $ " + " \\\n      ".join(f) for f in folded)])


def flag(*names: str, text: str, panel: str | None = None) -> Any:
    """Describe a switch, whose type needs no column in the help."""
    return typer.Option(*names, help=text, metavar="", rich_help_panel=panel)


def check_port(port: int | None) -> int | None:
    """Refuse what is no port; unlike min= and max=, this takes no room in the help."""
    if port is not None and not 0 <= port <= 65_535:
        raise typer.BadParameter(f"{port} is not in the range 0<=x<=65535.")
    return port


def _record_use(location: str) -> str:
    """Remember the checkpoint, because the web UI lists those used recently."""
    from ebbtide.registry import note_use

    note_use(location)
    return location


CheckpointPath = Annotated[
    str,
    typer.Argument(
        metavar="CKPT",
        help="Path or fsspec URL of the checkpoint.",
        show_default=False,
        callback=_record_use,
    ),
]
PipelineName = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="Name of a built-in job, module:attr or path.py:attr.",
        show_default=False,
    ),
]
Output = Annotated[
    Literal["table", "json"],
    typer.Option("-o", "--output", metavar="FORMAT", help="table or json."),
]

# what a command changes, and when
Execute = Annotated[bool, flag("--execute", text="Apply the plan. Without it, only show the plan.")]
Yes = Annotated[bool, flag("--yes", "-y", text="Do not ask for confirmation.", panel=SAFETY)]
AssumeStopped = Annotated[
    bool,
    flag(
        "--assume-stopped",
        text="Proceed although the query wrote recently: you know that it is stopped.",
        panel=SAFETY,
    ),
]
Replan = Annotated[
    bool, flag("--replan", text="Let Spark choose new batch boundaries from the first batch on.")
]
EventTimeField = Annotated[
    str | None,
    typer.Option("--event-time-field", metavar="NAME", help="JSON field with the event time."),
]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Also draw the result as a .png file.")
]

# where a command runs
Home = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of a local run: broker, checkpoints, tables "
        "(default: EBBTIDE_HOME or ./.ebbtide).",
        rich_help_panel=ENVIRONMENT,
    ),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        metavar="SERVERS",
        help="Kafka's address (default: EBBTIDE_BOOTSTRAP_SERVERS or the embedded broker).",
        rich_help_panel=ENVIRONMENT,
    ),
]
Zone = Annotated[
    str | None,
    typer.Option(
        "--timezone",
        metavar="ZONE",
        help="Time zone for times that are given without one (default: EBBTIDE_TIMEZONE or UTC).",
        rich_help_panel=ENVIRONMENT,
    ),
]
# accepted by every command, also by those that do not need it
UnusedHome = Annotated[str | None, typer.Option("--home", hidden=True)]
UnusedServers = Annotated[str | None, typer.Option("--bootstrap-servers", hidden=True)]
UnusedAssumeStopped = Annotated[bool, typer.Option("--assume-stopped", hidden=True)]

# how a query runs
AvailableNow = Annotated[
    bool, flag("--available-now", text="Process the records that are available, then stop.")
]
Trigger = Annotated[
    str | None,
    typer.Option("--trigger", metavar="TIME", help='Interval between batches, as "20 seconds".'),
]
MaxOffsets = Annotated[
    int | None,
    typer.Option(
        "--max-offsets-per-trigger",
        metavar="N",
        help="Maximum number of records per batch.",
        rich_help_panel=SPARK,
    ),
]
QueryCheckpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="CKPT",
        help="Checkpoint of the query (default: checkpoints/<name> in the home).",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help=r"Spark master (default: local\[*]).", rich_help_panel=SPARK
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="K=V",
        help="Spark setting. Repeat it to give several.",
        rich_help_panel=SPARK,
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        help="Serve Prometheus metrics on this port (0 = any free port).",
        callback=check_port,
        rich_help_panel=METRICS,
    ),
]
MetricsHost = Annotated[
    str | None,
    typer.Option(
        "--metrics-host",
        metavar="HOST",
        help="Address to serve metrics on (default: 127.0.0.1).",
        rich_help_panel=METRICS,
    ),
]
