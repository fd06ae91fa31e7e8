"""Options in, the page served until Ctrl-C out."""

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
from ebbtide.web.context import Context, make_templates

DEFAULT_PORT = 8765
_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_TRIED = 100
"""So many ports from the default on are tried."""
_END_SECONDS = 4.0
"""So long the requests under way are waited for."""


@dataclass(frozen=True)
class Options:
    """How the page is served."""

    settings: Settings
    checkpoints: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int | None = None
    """None: the default or the next free one; 0: any."""
    read_only: bool = False
    browser: bool = True


def serve(options: Options, on_ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; `on_ready` is told the link that opens it, once.

    Steps: **1** a port; **2** the link; **3** a browser, if one is there; **4** serve, in a thread
    of its own; **5** end what is under way in order; **6** leave, whoever still waits for a store.
    """
    # 1
    with _listen(options.host, options.port) as listening:
        context = Context(
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
        with _browser(context.link) if shown else nullcontext(), _heard() as asked:
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
    if serving.is_alive() or context.catalogue.busy:
        # such a thread cannot be ended, and Python would wait for it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if code:
        sys.exit(code)


def _configure(context: Context) -> uvicorn.Config:
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
    """Have the templates ready before somebody clicks."""
    templates = make_templates()
    for name in templates.list_templates():
        templates.get_template(name)


@contextmanager
def _browser(link: str) -> Iterator[None]:
    """Open the link in a browser: by a file that only we can read, as all see what is started."""
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as folder:
        page = Path(folder) / "open.html"
        text = f'<!doctype html><meta http-equiv="refresh" content="0; url={link}">'
        write_whole(page, text, private=True)
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        yield


@contextmanager
def _heard() -> Iterator[list[int]]:
    """The signals that ask us to end, as they come; a terminal that closes sends one, too."""
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
    """A socket that listens: on the port that was asked for, or the first free one."""
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
    raise _cannot_listen(host, DEFAULT_PORT, OSError("every port up to there is taken"))


def _cannot_listen(host: str, port: int, error: Exception) -> UsageError:
    why = getattr(error, "strerror", None) or str(error)
    taken = isinstance(error, OSError) and error.errno in (None, *_TAKEN)
    return UsageError(
        f"The page cannot listen on {host}:{port}: {why}.",
        "Choose another with --port, or leave --port out to get a free one."
        if taken
        else "Name an address of this machine with --host, or leave --host out.",
    )


def _has_display() -> bool:
    """Whether a browser with windows can be opened; one for terminals would take ours away."""
    shown = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in shown)
