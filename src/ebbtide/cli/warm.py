"""The commands `ebbtide warm status` and `stop` for the JVM that reprocess keeps."""

from __future__ import annotations

import typer

from ebbtide.cli import options
from ebbtide.cli.commands import command
from ebbtide.cli.output import log_line, show_json, show_table
from ebbtide.errors import EbbtideError


@command("ebbtide warm status", "ebbtide warm status -o json")
def status(environment: options.HomeOptions, output: options.Output = options.OUTPUT) -> None:
    """Show whether a JVM is kept for the next reprocess; exit 1 if none is."""
    from ebbtide.warm_jvm import ask_keeper

    found = ask_keeper(environment.settings, "status")
    row: dict[str, object] = {"running": bool(found)}
    row |= {name: found.get(name) for name in ("pid", "app", "busy", "commands", "ends_in_seconds")}
    if output == "json":
        show_json(row)
    else:
        rows = [(name.replace("_", " "), "-" if row[name] is None else row[name]) for name in row]
        show_table(("warm JVM", ""), rows)
    if not found:
        raise typer.Exit(1)


@command("ebbtide warm stop")
def stop(environment: options.HomeOptions, output: options.Output = options.OUTPUT) -> None:
    """End the JVM that is kept, unless a command uses it."""
    from ebbtide.warm_jvm import ask_keeper

    found = ask_keeper(environment.settings, "stop")
    if found.get("busy") and "pid" not in found:
        raise EbbtideError(
            "A reprocess uses it.", "Wait until it has ended, or interrupt it with Ctrl-C."
        )
    if output == "json":
        show_json({"stopped": bool(found), "pid": found.get("pid")})
    else:
        log_line(f"Ended process {found['pid']}." if found else "None is kept.")
