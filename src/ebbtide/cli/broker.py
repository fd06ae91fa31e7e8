"""The commands `ebbtide broker start`, `stop` and `status` for the embedded Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import ensure_jars, log_line, show_json, show_table
from ebbtide.config import Settings

if TYPE_CHECKING:
    from ebbtide.local import EmbeddedBroker


@command("ebbtide broker start", "ebbtide broker start --port 19092")
def start(
    environment: options.HomeOptions,
    port: int | None = option("--port N", "Port to listen on (default: 9092, or a free one)."),
    output: options.Output = options.OUTPUT,
) -> None:
    """Start it in the background, or show where it is running already."""
    from ebbtide.local import DEFAULT_PORT, start_broker

    settings = environment.settings
    ensure_jars("broker")
    broker = start_broker(settings.broker, port)
    if port is None and broker.port != DEFAULT_PORT:
        log_line(f"Port {DEFAULT_PORT} is taken or was not used before: chose {broker.port}.")
    _show(settings, broker, output)


@command("ebbtide broker stop")
def stop(environment: options.HomeOptions, output: options.Output = options.OUTPUT) -> None:
    """Stop it and keep its data; a JVM that reprocess --warm keeps ends with it."""
    from ebbtide.local import stop_broker
    from ebbtide.warm_jvm import ask_keeper

    settings = environment.settings
    ask_keeper(settings, "stop")
    stop_broker(settings.broker)
    _show(settings, None, output)


@command("ebbtide broker status", "ebbtide broker status -o json")
def status(environment: options.HomeOptions, output: options.Output = options.OUTPUT) -> None:
    """Show whether and where it is running; exit 1 if it is not."""
    from ebbtide.local import find_broker

    settings = environment.settings
    broker = find_broker(settings.broker)
    _show(settings, broker, output)
    if broker is None:
        raise typer.Exit(1)


def _show(settings: Settings, broker: EmbeddedBroker | None, output: options.Output) -> None:
    row = {
        "running": broker is not None,
        "bootstrap_servers": broker and broker.bootstrap_servers,
        "pid": broker and broker.pid,
        "data": str(settings.broker / "data"),
    }
    if output == "json":
        show_json(row)
    else:
        shown = {**row, "running": "yes" if broker else "no"}
        show_table(("broker", ""), [(n.replace("_", " "), v or "-") for n, v in shown.items()])
