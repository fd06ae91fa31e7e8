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
        context = WebContext(
            options.settings,
            port=listening.getsockname()[1],
            host=options.host,
            read_only=options.read_only,
            opened=options.checkpoints,
        )
        server = uvicorn.Server(_configure(context))
        # 2
        on_ready(context.link)
        # 3
        shown = options.browser and _has_display()
        with _browser(context.link) if shown else nullcontext(), _collect_signals() as asked:
            threading.Thread(target=_warm, daemon=True).start()
            # 4
            serving = threading.Thread(target=server.run, args=([listening],), daemon=True)
            serving.start()
            while serving.is_alive() and not asked:
                serving.join(0.2)
            server.should_exit = True
            # 5
            context.tasks.close()
            serving.join(_END_SECONDS)
    # 6
    code = 128 + asked[0] if asked and asked[0] != signal.SIGINT else 0
    if serving.is_alive() or context.snapshots.busy:
        # such a thread cannot be stopped, and Python would wait for it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if code:
        sys.exit(code)


def _configure(context: WebContext) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(context),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=2,
    )


def _warm() -> None:
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
    asked: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number and not (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                before[number] = signal.signal(number, lambda number, _: asked.append(number))
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _listen(host: str, port: int | None) -> socket.socket:
    """Listen on the given port, or on the first free one."""
    ports = range(DEFAULT_PORT, DEFAULT_PORT + _TRIED) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in ports:
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(128)
        except (OSError, OverflowError) as error:
            listening.close()
            if port is not None or not isinstance(error, OSError) or error.errno not in _TAKEN:
                raise _cannot_listen(host, candidate, error) from None
        else:
            return listening
    raise _cannot_listen(host, DEFAULT_PORT, OSError("all ports from there on are taken"))


def _cannot_listen(host: str, port: int, error: Exception) -> UsageError:
    why = getattr(error, "strerror", None) or str(error)
    taken = isinstance(error, OSError) and error.errno in (None, *_TAKEN)
    return UsageError(
        f"Cannot listen on {host}:{port}: {why}.",
        "Choose another with --port, or leave --port out to get a free one."
        if taken
        else "Name an address of this machine with --host, or leave --host out.",
    )


def _has_display() -> bool:
    """Whether a graphical browser can be opened; a text browser would take over our terminal."""
    shown = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in shown)
