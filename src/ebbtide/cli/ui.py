"""The command `ebbtide ui`, which serves the web UI."""

from __future__ import annotations

from ipaddress import ip_address

import typer

from ebbtide.cli import options
from ebbtide.cli.commands import argument, command, option
from ebbtide.cli.output import log_line, show_json
from ebbtide.errors import MissingExtraError
from ebbtide.registry import note_use

_SERVER = "Server"


@command(
    "ebbtide ui",
    "ebbtide ui .ebbtide/checkpoints/visits-counter --read-only",
    "ebbtide ui --port 9000 --no-browser",
)
def ui(
    environment: options.Environment,
    checkpoints: list[str] | None = argument(
        "CKPT", "More checkpoints to list: paths or fsspec URLs.", None
    ),
    port: int | None = option(
        "--port N",
        "Port to listen on, 0 = any free port (default: 8765, or the next free one).",
        panel=_SERVER,
        min=0,
        max=65535,
    ),
    host: str = option("--host HOST", "Address to listen on.", "127.0.0.1", panel=_SERVER),
    browser: bool = option("--browser/--no-browser", "Open it in a browser.", True, panel=_SERVER),
    read_only: bool = option("--read-only", "Allow no changes from the web UI."),
    output: options.Output = options.OUTPUT,
) -> None:
    """Inspect, rewind and reprocess in a browser.

    It prints a link that opens the web UI once, in one browser, and serves it
    until Ctrl-C. It lists the checkpoints in the home, those that ebbtide.toml
    names as checkpoints = ["…"], and those used recently.
    """
    settings = environment.settings
    try:
        from ebbtide.web import ServerOptions, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "ebbtide":
            raise
        raise MissingExtraError.for_extra("ui", "The web UI") from None
    for location in checkpoints or ():
        note_use(location)
    if not _is_loopback(host):
        log_line(
            f"Warning: the web UI listens on {host}, without encryption. Whoever can read this "
            "network can take over the session, change checkpoints, and run code as you.",
            style="bold red",
        )

    def ready(link: str) -> None:
        if output == "json":
            show_json({"url": link})
        else:
            typer.echo(link)
        log_line("Open this link; it works once. Ctrl-C stops the web UI.")

    named = tuple(checkpoints or ())
    serve(ServerOptions(settings, named, host, port, read_only, browser), ready)


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    >>> _is_loopback("127.0.0.2"), _is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
