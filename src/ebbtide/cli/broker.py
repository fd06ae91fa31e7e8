"""`ebbtide broker start|stop|status`: the embedded Kafka of a home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import options
from ebbtide.cli.output import ensure_jars, log_line, show_json, show_table
from ebbtide.config import Settings, load_settings

if TYPE_CHECKING:
    from ebbtide.local.broker import Broker

app = typer.Typer(
    name="broker", help="The embedded Kafka; its data stays between runs.", no_args_is_help=True
)


@app.command(epilog=options.example("ebbtide broker start", "ebbtide broker start --port 19092"))
def start(
    home: options.Home = None,
    port: Annotated[int | None, typer.Option(help="Default: 9092, or a free one.")] = None,
    output: options.Output = "table",
) -> None:
    """Start it in the background, or say where it runs already."""
    from ebbtide.local.broker import DEFAULT_PORT, start_broker

    settings = load_settings(home=home)
    ensure_jars()
    broker = start_broker(settings.broker, port)
    if port is None and broker.port != DEFAULT_PORT:
        log_line(f"Port {DEFAULT_PORT} is taken or was not used before: chose {broker.port}.")
    _show(settings, broker, running=True, output=output)


@app.command(epilog=options.example("ebbtide broker stop"))
def stop(home: options.Home = None, output: options.Output = "table") -> None:
    """Stop it; its data stays."""
    from ebbtide.local.broker import stop_broker

    settings = load_settings(home=home)
    _show(settings, stop_broker(settings.broker), running=False, output=output)


@app.command(epilog=options.example("ebbtide broker status", "ebbtide broker status -o json"))
def status(home: options.Home = None, output: options.Output = "table") -> None:
    """Say whether it runs and where; exit 1 if it does not."""
    from ebbtide.local.broker import find_broker

    settings = load_settings(home=home)
    broker = find_broker(settings.broker)
    _show(settings, broker, running=broker is not None, output=output)
    if broker is None:
        raise typer.Exit(1)


def _show(
    settings: Settings, broker: Broker | None, *, running: bool, output: options.Output
) -> None:
    row = {
        "running": running,
        "bootstrap_servers": broker.bootstrap_servers if broker and running else None,
        "pid": broker.pid if broker and running else None,
        "data": str(settings.broker / "data"),
    }
    if output == "json":
        show_json(row)
    else:
        show_table(("broker", ""), [(name.replace("_", " "), row[name] or "-") for name in row])
