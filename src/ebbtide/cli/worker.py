"""The commands `ebbtide worker status` and `stop` for the Spark that reprocess keeps."""

from __future__ import annotations

import typer

from ebbtide.cli import options
from ebbtide.cli.commands import command
from ebbtide.cli.output import log_line, show_json, show_table
from ebbtide.errors import EbbtideError


@command("ebbtide worker status", "ebbtide worker status -o json")
def status(environment: options.HomeOptions, output: options.Output = options.OUTPUT) -> None:
    """Show whether a Spark is kept for the next reprocess; exit 1 if none is."""
    from ebbtide.warm_jvm import STATUS, ask_worker

    found = ask_worker(environment.settings, STATUS)
    row: dict[str, object] = {"running": bool(found)}
    row |= {name: found.get(name) for name in ("pid", "app", "busy", "commands", "ends_in_seconds")}
    if output == "json":
        show_json(row)
    else:
        rows = [(name.replace("_", " "), "-" if row[name] is None else row[name]) for name in row]
        show_table(("worker", ""), rows)
    if not found:
        raise typer.Exit(1)


@command("ebbtide worker stop")
def stop(environment: options.HomeOptions, output: options.Output = options.OUTPUT) -> None:
    """End the Spark that is kept, unless a command uses it."""
    from ebbtide.warm_jvm import STOP, ask_worker

    found = ask_worker(environment.settings, STOP)
    if found.get("busy") and "pid" not in found:
        raise EbbtideError(
            "A reprocess uses it.", "Wait until it has ended, or interrupt it with Ctrl-C."
        )
    if output == "json":
        show_json({"stopped": bool(found), "pid": found.get("pid")})
    else:
        log_line(f"Ended process {found['pid']}." if found else "None is kept.")
