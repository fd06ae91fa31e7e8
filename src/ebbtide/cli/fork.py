"""`ebbtide fork`: a second checkpoint that begins with a batch of the first."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli.output import (
    AnyAssumption,
    AnyHome,
    AnyServers,
    CheckpointArgument,
    Format,
    Output,
    example,
    note,
    progress_bar,
    show_json,
    show_sizes,
)

if TYPE_CHECKING:
    from ebbtide.rewind.fork import Fork

_CKPT = ".ebbtide/checkpoints/visits-windows-counter"


def register(root: typer.Typer) -> None:
    """Add the command to the root."""
    root.command(
        epilog=example(
            f"ebbtide fork {_CKPT} second-timeline --at-batch 5",
            "ebbtide run visits-windows-counter --checkpoint second-timeline",
        )
    )(fork)


def fork(
    checkpoint: CheckpointArgument,
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW", help="The new one: a folder that is not there yet.", show_default=False
        ),
    ],
    at_batch: Annotated[
        int, typer.Option(help="The first batch that the new one runs.", show_default=False)
    ],
    replan: Annotated[
        bool,
        typer.Option(
            "--replan", help="Let Spark draw new batch boundaries, from the first batch on."
        ),
    ] = False,
    assume_stopped: AnyAssumption = False,
    home: AnyHome = None,
    bootstrap_servers: AnyServers = None,
    output: Output = Format.table,
) -> None:
    """Make a second checkpoint that begins with a batch of the first.

    The first is only read, and its query may be running. The second gets a
    query id of its own and only the files that the batch needs, on the same
    disk as hard links. Its first batch keeps its recorded records, watermark
    and time unless --replan is given.
    """
    from ebbtide.rewind.fork import fork_checkpoint
    from ebbtide.systems.jobs import READY

    del assume_stopped, home, bootstrap_servers  # the original is only read
    with progress_bar("Forking") as advance:
        made = fork_checkpoint(checkpoint, new, at_batch, replan=replan, on_file=advance)
    if output is Format.json:
        show_json(made.to_json())
    else:
        show_sizes("copied", made.bytes)
    how = "its boundaries drawn anew" if made.mode == "replan" else "as it was planned"
    note(f"Done: {new} begins with batch {made.first_batch}, {how}; {checkpoint} is as it was.")
    note(_about_sink(made), style="bold yellow")
    # one that is not a ready job has to be named by its file
    pipeline = made.pipeline if made.pipeline in READY else "PIPELINE"
    note(f"To run it: ebbtide run {pipeline} --checkpoint {quote(new)}", style="bold")


def _about_sink(made: Fork) -> str:
    from ebbtide.connectors import connector_of

    sink = made.sink or {"kind": "unknown", "name": "the sink of the first"}
    return connector_of(sink["kind"]).sink.format_fork(sink["name"])
