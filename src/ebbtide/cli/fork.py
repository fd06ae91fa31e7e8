"""The command `ebbtide fork`, which starts a second checkpoint from a batch of another."""

from __future__ import annotations

import json
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
    "ebbtide fork .ebbtide/checkpoints/visits-counter started-over --offsets-only",
)
def fork(
    checkpoint: str = options.CHECKPOINT,
    new: str = argument("NEW", "Folder for the new checkpoint; it must not exist yet."),
    at_batch: int | None = option("--at-batch N", "First batch that the new checkpoint runs."),
    offsets_only: bool = option(
        "--offsets-only",
        "Keep only the position in the sources: start there with batch 0 and without state "
        "(default: at the next batch).",
    ),
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

    With --offsets-only, new code starts over without losing its place, for
    example because it cannot read the state: no record is skipped or read
    twice. This needs Kafka or file sources.
    """
    from ebbtide.checkpoint import Owner
    from ebbtide.connectors import SinkPlace
    from ebbtide.registry import absolute
    from ebbtide.rewind import fork as forks
    from ebbtide.storage import open_folder
    from ebbtide.systems import READY

    named = SinkPlace.named({"--sink-files": [sink_files] if sink_files else []})
    with progress_bar("Forking") as advance:
        made = forks.fork_checkpoint(
            checkpoint,
            new,
            at_batch,
            replan=replan,
            offsets_only=offsets_only,
            sink=next(iter(named), None),
            assume_stopped=assume_stopped,
            on_file=advance,
        )
    if output == "json":
        show_json(made.to_dict())
    else:
        show_sizes("copied", made.bytes)
    log_line(f"Done: {new} starts {_format_start(made)}; {checkpoint} is unchanged.")
    if made.offsets_only:
        log_line(_STARTED_OVER, style="bold yellow")
        if made.is_planned:
            log_line(_PLANNED.format(made.at_batch), style="bold yellow")
    if trigger := forks.check_trigger(made):
        log_line(f"Warning: {trigger.advice}", style="bold yellow")
    if not sink_files:
        log_line(_format_sink_warning(made), style="bold yellow")
    own = "To run it, set in your job"
    if not (sink_files or made.pipeline is None or Owner.read(open_folder(checkpoint)).is_attached):
        # one that is not a built-in job has to be named by its file
        pipeline = made.pipeline if made.pipeline in READY else "PIPELINE"
        log_line(f"To run it: ebbtide run {pipeline} --checkpoint {quote(new)}", style="bold")
        own = "In a job of your own, set"
    places = {"checkpointLocation": made.checkpoint, "path": sink_files and absolute(sink_files)}
    chain = "".join(f".option({json.dumps(k)}, {json.dumps(v)})" for k, v in places.items() if v)
    log_line(f"{own}: {chain}", style="bold")


_STARTED_OVER = (
    "Warning: state and watermark start over. Windows, sessions and keys that were open lose what "
    "they had collected, and a record that would have been late is not late any more. Batch ids "
    "start with 0 again: a sink that skips ids that it has seen needs a new place."
)


_PLANNED = (
    "Warning: batch {} of the first is planned, but not committed. The second reads its records "
    "again, and its output may be in the sink already. To avoid that, let the first finish it."
)


def _format_start(made: forks.Fork) -> str:
    if made.offsets_only:
        return f"with batch 0, without state, where batch {made.at_batch} of the first begins"
    how = "with new boundaries" if made.mode == "replan" else "as it was planned"
    return f"with batch {made.first_batch}, {how}"


def _format_sink_warning(made: forks.Fork) -> str:
    from ebbtide.connectors import connector_of

    sink = made.sink or {"kind": "unknown", "name": "the sink of the first"}
    connector = connector_of(sink["kind"]).sink
    return connector.format_fork(sink["name"], starts_over=made.offsets_only)
