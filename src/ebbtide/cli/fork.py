"""The command `ebbtide fork`, which starts a second checkpoint from a batch of another."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from ebbtide.cli import options
from ebbtide.cli.commands import argument, command, option
from ebbtide.cli.output import log_line, progress_bar, show_json, show_sizes

if TYPE_CHECKING:
    from ebbtide.rewind import fork as forks


@command(
    "ebbtide fork .ebbtide/checkpoints/visits-counter second-timeline --at-batch 5",
    "ebbtide run visits-counter --checkpoint second-timeline",
)
def fork(
    checkpoint: str = options.CHECKPOINT,
    new: str = argument("NEW", "Folder for the new checkpoint; it must not exist yet."),
    at_batch: int = option("--at-batch N", "First batch that the new checkpoint runs.", ...),
    replan: bool = options.REPLAN,
    sink_files: str | None = option(
        "--sink-files DIR", "New folder for the files of a job that `ebbtide run` does not start."
    ),
    assume_stopped: bool = options.RARE_ASSUME_STOPPED,
    output: options.Output = options.OUTPUT,
) -> None:
    """Create a second checkpoint that starts from a batch of the first.

    The first is only read, and its query may be running. The second gets its
    own query id and only the files that the batch needs, as hard links if it
    is on the same disk. Its first batch keeps its recorded offsets, watermark
    and time unless --replan is given.
    """
    from ebbtide.connectors import SinkPlace
    from ebbtide.rewind import fork as forks
    from ebbtide.systems import READY

    places = SinkPlace.named({"--sink-files": [sink_files] if sink_files else []})
    with progress_bar("Forking") as advance:
        made = forks.fork_checkpoint(
            checkpoint,
            new,
            at_batch,
            replan=replan,
            sink=next(iter(places), None),
            assume_stopped=assume_stopped,
            on_file=advance,
        )
    if output == "json":
        show_json(made.to_dict())
    else:
        show_sizes("copied", made.bytes)
    how = "with new boundaries" if made.mode == "replan" else "as it was planned"
    log_line(f"Done: {new} starts with batch {made.first_batch}, {how}; {checkpoint} is unchanged.")
    if trigger := forks.check_trigger(made):
        log_line(f"Warning: {trigger.advice}", style="bold yellow")
    if sink_files:
        log_line(f"To run it, start your job with checkpointLocation {new} and path {sink_files}.")
        return
    log_line(_format_sink_warning(made), style="bold yellow")
    # one that is not a built-in job has to be named by its file
    pipeline = made.pipeline if made.pipeline in READY else "PIPELINE"
    log_line(f"To run it: ebbtide run {pipeline} --checkpoint {quote(new)}", style="bold")


def _format_sink_warning(made: forks.Fork) -> str:
    from ebbtide.connectors import connector_of

    sink = made.sink or {"kind": "unknown", "name": "the sink of the first"}
    return connector_of(sink["kind"]).sink.format_fork(sink["name"])
