"""The command `ebbtide sinks`, which shows where a query writes, and looks for it."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import log_line, show_json, show_text
from ebbtide.formatting import wrap

if TYPE_CHECKING:
    from ebbtide.connectors import base

_CKPT = "/data/ckpt"
_WIDTH = 80


@command(
    f"ebbtide sinks {_CKPT}",
    f"ebbtide sinks {_CKPT} --search /data/tables",
    f"ebbtide sinks {_CKPT} --sink-table /data/tables/visits",
)
def sinks(
    checkpoint: str = options.CHECKPOINT,
    search: str | None = option("--search DIR", "Look for the sink in this folder, at any depth."),
    sink_table: list[str] | None = options.SINK_TABLE,
    sink_files: str | None = options.SINK_FILES,
    output: options.Output = options.OUTPUT,
) -> None:
    """Show where the query of a checkpoint writes, or look for it.

    The sink is known if `ebbtide run` runs the query or `ebbtide.attach`
    follows it, or if it was named for this checkpoint, here or in a rewind.
    --search lists Delta tables whose log names this query (certain) or a
    writer that may be its foreachBatch function (possible), and folders of
    file sinks. The log of a file sink names no query, so it is likely at best.
    """
    from ebbtide import connectors, registry, rewind
    from ebbtide.checkpoint import read_checkpoint

    contents = read_checkpoint(checkpoint)
    if named := rewind.sinks.name_sinks(contents, sink_table or (), sink_files):
        log_line(f"Noted in {contents.location}: {', '.join(place.path for place in named)}.")
    if search is None:
        found = rewind.sinks.list_known_sinks(contents)
    else:
        found = connectors.sinks.search_sinks(contents, search)
    if output == "json":
        show_json([evidence.to_dict() for evidence in found])
        return
    if found:
        _show(found)
    elif search:
        log_line(
            f"Found no sink of this query in {registry.absolute(search)}. Search another folder, "
            "or name it with --sink-table or --sink-files."
        )
    else:
        log_line(
            f"No sink is known. To look for it: ebbtide sinks {quote(checkpoint)} --search DIR"
        )


def _show(found: list[base.SinkEvidence]) -> None:
    """Show each sink in two lines: a path in a column of a table could not be copied."""
    for one in found:
        show_text(one.sink.path or one.sink.name)
        for line in wrap(f"{one.sink.kind}, {one.match}: {one.detail}", _WIDTH - 2):
            show_text(f"  {line}")
