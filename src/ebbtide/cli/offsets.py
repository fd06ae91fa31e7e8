"""The command `ebbtide offsets`, which shows where a query stands in its sources."""

from __future__ import annotations

import sys
from shlex import quote
from typing import TYPE_CHECKING

from ebbtide.cli import options
from ebbtide.cli.checkpoint import ask_kafka
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import log_line, show_json
from ebbtide.errors import printable

if TYPE_CHECKING:
    from ebbtide.connectors import sources

_CKPT = ".ebbtide/checkpoints/visits-counter"


@command(
    f"ebbtide offsets {_CKPT}",
    f"ebbtide offsets {_CKPT} --at-batch 5 -o json",
    f"ebbtide offsets {_CKPT} --csv > group.csv",
)
def offsets(
    environment: options.KafkaOptions,
    checkpoint: str = options.CHECKPOINT,
    at_batch: int | None = option("--at-batch N", "Batch that begins there (default: the next)."),
    csv: bool = option("--csv", "Only topic,partition,offset: for kafka-consumer-groups."),
    output: options.Output = options.OUTPUT,
) -> None:
    """Show the position of a query, to start another one there.

    For Kafka that is the option startingOffsets and, with --csv, the file for
    kafka-consumer-groups --reset-offsets --from-file. For Delta it is the option
    startingVersion, where that is exact. The next batch begins where the last
    committed one ended; a batch that is planned, but not committed, is not read.
    """
    from ebbtide.checkpoint import read_checkpoint
    from ebbtide.connectors import sources

    contents = read_checkpoint(checkpoint)
    connection = ask_kafka(contents, environment.settings)
    position = sources.read_position(contents, at_batch, connection)
    if csv:
        sys.stdout.write(f"{position.csv}\n" if position.csv else "")
    elif output == "json":
        show_json(position.to_dict())
    else:
        _show(position)
    _log(position, checkpoint)


def _show(position: sources.QueryPosition) -> None:
    """Line by line, not as a table: what is folded cannot be copied."""
    for source in position.sources:
        lines = [f"source {source.index} ({source.kind}): {source.offset or 'nothing read yet'}"]
        lines += [f'.option("{name}", {value!r})' for name, value in source.options.items()]
        lines += [group.to_csv() for group in source.group_offsets]
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


def _log(position: sources.QueryPosition, checkpoint: str) -> None:
    log_line(f"This is where batch {position.batch} of {checkpoint} begins.")
    if position.planned:
        log_line(
            f"Warning: batch {position.batch} is planned, but not committed. A new query reads "
            "its records again, and its output may be in the sink already.",
            style="bold yellow",
        )
    for source in position.sources:
        for remark in source.remarks:
            log_line(f"Source {source.index}: {remark}.", style="bold yellow")
    log_line("Spark reads these options only if the query has a new checkpoint.")
    if all(source.can_fork for source in position.sources):
        flags = f"--at-batch {position.batch} --offsets-only"
        log_line(f"A checkpoint that begins here: ebbtide fork {quote(checkpoint)} NEW {flags}")
