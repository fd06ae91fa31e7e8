"""`ebbtide ui`: the same in a browser."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated

import typer

from ebbtide.cli import options
from ebbtide.cli.output import log_line, show_json
from ebbtide.config import load_settings
from ebbtide.errors import MissingExtraError
from ebbtide.registry import note_use


@options.examples(
    "ebbtide ui",
    "ebbtide ui .ebbtide/checkpoints/visits-counter --read-only",
    "ebbtide ui --port 9000 --no-browser",
)
def ui(
    checkpoints: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CKPT",
            help="Checkpoints to list besides the known ones: paths or fsspec URLs.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Where to listen; 0: any free port. [dim]8765, or the next free one[/dim]",
            show_default=False,
            min=0,
            max=65_535,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; only this machine by default.")
    ] = "127.0.0.1",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open it in a browser.")
    ] = True,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Nothing can be changed from the page.")
    ] = False,
    home: options.Home = None,
    bootstrap_servers: options.Servers = None,
    timezone: options.Zone = None,
    output: options.Output = "table",
) -> None:
    """Look at checkpoints in a browser: timeline, batches, state; rewind, undo, reprocess.

    It prints a link that opens the page once, in one browser, and serves it
    until Ctrl-C. Known are the checkpoints of the home, those that
    ebbtide.toml names as checkpoints = ["…"], and those used lately.
    """
    settings = load_settings(home=home, bootstrap_servers=bootstrap_servers, timezone=timezone)
    try:
        from ebbtide.web.server import Options, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "ebbtide":
            raise
        raise MissingExtraError.for_extra("ui", "The page") from None
    for location in checkpoints or ():
        note_use(location)
    if not _is_loopback(host):
        log_line(
            f"Warning: the page listens on {host}, without encryption. Whoever can read this "
            "network can take over the session, change checkpoints, and run code as you.",
            style="bold red",
        )

    def ready(link: str) -> None:
        if output == "json":
            show_json({"url": link})
        else:
            typer.echo(link)
        log_line("Open this link; it works once. Ctrl-C ends the page.")

    options = Options(settings, tuple(checkpoints or ()), host, port, read_only, browser)
    serve(options, ready)


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    >>> _is_loopback("127.0.0.2"), _is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
