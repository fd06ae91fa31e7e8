"""Serve the web UI until Ctrl-C."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from ebbtide.config import Settings, write_whole
from ebbtide.errors import UsageError
from ebbtide.web.app import make_app
from ebbtide.web.context import WebContext, make_templates

DEFAULT_PORT = 8765
_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_TRIED = 100
"""Number of ports that are tried, from the default on."""
_END_SECONDS = 4.0
"""How long to wait for running requests."""
_UVICORN: dict[str, Any] = {
    "log_level": "warning",
    "access_log": False,
    "timeout_graceful_shutdown": 2,
    "server_header": False,
    "proxy_headers": False,
    "ws": "none",
}


@dataclass(frozen=True)
class ServerOptions:
    """How the web UI is served."""

    settings: Settings
    checkpoints: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int | None = None
    """None: the default or the next free one; 0: any."""
    read_only: bool = False
    browser: bool = True


def serve(options: ServerOptions, on_ready: Callable[[str], None]) -> None:
    """Serve the web UI until Ctrl-C; `on_ready` gets the link that opens it once.

    Steps: **1** listen on a port; **2** announce the link; **3** open a browser if there is one;
    **4** serve in a thread; **5** end running tasks; **6** exit, even if a request still waits for
    a store.
    """
    # 1
    with _listen(options.host, options.port) as listening:
        port, locations = listening.getsockname()[1], options.checkpoints
        context = WebContext(options.settings, port, options.host, options.read_only, locations)
        server = uvicorn.Server(uvicorn.Config(make_app(context), **_UVICORN))
        # 2
        on_ready(context.link)
        # 3
        shown = options.browser and _has_display()
        with _browser(context.link) if shown else nullcontext(), _collect_signals() as signals:
            threading.Thread(target=_compile_templates, daemon=True).start()
            # 4
            serving = threading.Thread(target=server.run, args=([listening],), daemon=True)
            serving.start()
            while serving.is_alive() and not signals:
                serving.join(0.2)
            server.should_exit = True
            # 5
            context.tasks.close()
            serving.join(_END_SECONDS)
    # 6
    code = 128 + signals[0] if signals and signals[0] != signal.SIGINT else 0
    if serving.is_alive() or context.snapshots.busy:
        # such a thread cannot be stopped, and Python would wait for it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if code:
        sys.exit(code)


def _compile_templates() -> None:
    """Compile the templates before the first click."""
    templates = make_templates()
    for name in templates.list_templates():
        templates.get_template(name)


@contextmanager
def _browser(link: str) -> Iterator[None]:
    """Open the link through a private file: every user can see the arguments of a process."""
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as folder:
        page = Path(folder) / "open.html"
        text = f'<!doctype html><meta http-equiv="refresh" content="0; url={link}">'
        write_whole(page, text, private=True)
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        yield


@contextmanager
def _collect_signals() -> Iterator[list[int]]:
    """Collect the signals that ask us to stop; a closing terminal sends SIGHUP."""
    signals: list[int] = []
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # under nohup, SIGHUP stays ignored
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, lambda number, _: signals.append(number))
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _listen(host: str, port: int | None) -> socket.socket:
    """Listen on the given port, or on the first free one."""
    ports = range(DEFAULT_PORT, DEFAULT_PORT + _TRIED) if port is None else (port,)
    for candidate in ports:
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(128)
            return listening
        except (OSError, OverflowError) as error:
            listening.close()
            taken = isinstance(error, OSError) and error.errno in _TAKEN
            if taken and port is None:
                continue
            next_step = (
                "Choose another with --port, or leave --port out to get a free one."
                if taken
                else "Name an address of this machine with --host, or leave --host out."
            )
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"Cannot listen on {host}:{candidate}: {reason}.", next_step) from None
    raise UsageError(
        f"Cannot listen on {host}:{DEFAULT_PORT}: all ports from there on are taken.",
        "Choose another with --port.",
    )


def _has_display() -> bool:
    """Whether a graphical browser can be opened; a text browser would take over our terminal."""
    shown = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in shown)
